"""Datasets of several streams: their attributes, what they read, and what they refuse at construction."""

import math
import pickle
from collections import Counter

import pytest

from smalti import MDSWriter, Stream
from smalti.cache import CacheOptions
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import SchemaError, SmaltiError, StoreNotFound, VersionNotFound, WorldMismatch
from smalti.world import World
from tests.dataset.every_rank import global_order
from tests.dataset.mixture_sets import by_stream, flat, mixed, streams_of, take, write_three
from tests.reading_options import grouped
from tests.shard_sets import sample, write_set


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return write_three(tmp_path_factory.mktemp("three"))


def test_construction_opens_nothing():
    StreamingDataset(streams=[Stream(remote="/nowhere/a"), Stream(remote="/nowhere/b", repeat=2)], batch_size=4)


def test_a_mixture_has_its_streams_and_sizes_as_attributes(roots):
    dataset = mixed(roots, epoch_size="0.2k", world=World.of_blocks(0, 3, 1))
    assert (dataset.size, dataset.num_samples, dataset.epoch_size, len(dataset)) == (80, 80, 200, 67)
    assert dataset.num_streams == len(dataset.streams) == 3
    assert [len(manifest.digest) for manifest in dataset.manifests] == [64] * 3
    assert len({manifest.digest for manifest in dataset.manifests}) == 3
    assert dataset.num_shards == sum(len(manifest.shards) for manifest in dataset.manifests)
    assert [stream.remote for stream in dataset.streams] == roots
    with pytest.raises(SmaltiError, match=r"reads 3 streams.*`manifests`"):
        _ = dataset.manifest


def test_sample_ids_count_over_all_streams(roots):
    dataset = mixed(roots)
    assert [dataset[at]["id"] for at in (0, 39, 40, 64, 65, 79, -1)] == [0, 39, 0, 24, 0, 14, 14]
    with pytest.raises(IndexError, match="it has samples 0 to 79"):
        dataset[80]


@pytest.mark.parametrize(
    ("name", "values", "epoch_size", "taken"),
    [
        ("proportion", (2, 1, 1), None, [40, 20, 20]),
        ("proportion", (2, 1, 1), 400, [200, 100, 100]),
        ("proportion", (0.5, 0, 0.5), 40, [20, 0, 20]),
        ("repeat", (0.7, 2, None), None, [28, 50, 15]),
        ("choose", (1, 60, 0), None, [1, 60, 0]),
        ("choose", (None, None, None), 32, [16, 10, 6]),
        ("choose", (None, None, None), None, [40, 25, 15]),
    ],
)
def test_i1_an_epoch_takes_what_the_weights_say(roots, name, values, epoch_size, taken):
    dataset = mixed(roots, name, values, epoch_size=epoch_size)
    for _ in range(2):
        ids = flat(take(dataset)[0])
        assert by_stream(ids) == taken
        assert dataset.epoch_size == len(ids) == sum(taken)
        times = Counter(ids)
        for number, each in enumerate((range(40), range(40, 65), range(65, 80))):
            counts = [times[sample_id] for sample_id in each]
            assert max(counts) - min(counts) <= 1
            assert min(counts) == taken[number] // len(each)


def test_include_ids_adds_the_stream_of_each_sample(roots):
    for batch in mixed(roots).batches():
        for sample_id, stream, number in zip(
            batch["_sample_id"].tolist(), batch["_stream"].tolist(), batch["id"].tolist(), strict=True
        ):
            assert stream == (sample_id >= 40) + (sample_id >= 65)
            assert number == sample_id - (0, 40, 65)[stream]
    assert "_stream" not in next(iter(StreamingDataset(remote=roots[0], batch_size=4, include_ids=True)))


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream", "device_per_stream"])
def test_i2_the_order_depends_on_the_world_only_by_the_global_batch_of_stream_batches(roots, batching):
    orders = []
    for hosts, ranks, batch in ((1, 1, 12), (2, 3, 2), (1, 6, 2), (3, 1, 4), (1, 2, 6)):
        worlds = [World.of_blocks(rank, hosts * ranks, hosts) for rank in range(hosts * ranks)]
        options = {"batch_size": batch, "batching_method": batching, "epoch_size": 96, "tail": "pad"}
        orders.append(global_order([mixed(roots, world=world, **options) for world in worlds]))
        assert sorted(orders[-1]) == list(range(96))
    if batching == "device_per_stream":  # a rank's batch is of one stream, and these are of 12, 2, 2, 4 and 6
        assert orders[1] == orders[2]
        assert orders[0] != orders[3] != orders[4]
    else:
        assert all(order == orders[0] for order in orders)


def steps_of(roots, hosts, ranks, **options):
    """Return the stream of each sample, by step and rank."""
    worlds = [World.of_blocks(rank, hosts * ranks, hosts) for rank in range(hosts * ranks)]
    each = [[batch["_stream"].tolist() for batch in mixed(roots, world=world, **options).batches()] for world in worlds]
    return list(zip(*each, strict=True))


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 1), (2, 2)])
def test_stratified_batches_hold_the_same_number_of_each_stream(roots, hosts, ranks):
    steps = steps_of(
        roots, hosts, ranks, batch_size=16 // (hosts * ranks), epoch_size=160, batching_method="stratified"
    )
    assert [sorted(Counter(flat(step)).items()) for step in steps] == [[(0, 8), (1, 4), (2, 4)]] * 10


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 1), (2, 2)])
def test_per_stream_batches_are_of_one_stream_over_all_ranks(roots, hosts, ranks):
    steps = steps_of(roots, hosts, ranks, batch_size=8 // (hosts * ranks), epoch_size=160, batching_method="per_stream")
    assert (
        sorted(Counter(flat(step)).most_common() for step in steps) == [[(0, 8)]] * 10 + [[(1, 8)]] * 5 + [[(2, 8)]] * 5
    )


def test_device_per_stream_batches_hold_one_stream_on_each_rank(roots):
    steps = steps_of(roots, 2, 2, batch_size=4, epoch_size=160, batching_method="device_per_stream")
    assert all(len(set(batch)) == 1 for step in steps for batch in step)
    assert Counter(batch[0] for step in steps for batch in step) == {0: 20, 1: 10, 2: 10}
    assert any(len({batch[0] for batch in step}) > 1 for step in steps)


@pytest.mark.parametrize("granularity", [1, 5])
def test_fixed_sampling_takes_the_same_samples_in_each_epoch_and_balanced_others(roots, granularity):
    drawn = {}
    for method in ("fixed", "balanced"):
        options = {"sampling_method": method, "sampling_granularity": granularity}
        dataset = mixed(roots, "choose", (10, 10, 10), num_canonical_nodes=2, **options)
        drawn[method] = [sorted(flat(take(dataset)[0])) for _ in range(3)]
    assert drawn["fixed"][0] == drawn["fixed"][1] == drawn["fixed"][2]
    assert drawn["balanced"][0] != drawn["balanced"][1] != drawn["balanced"][2]


def test_an_epoch_of_one_stream_is_smaller_or_larger_than_the_set(roots):
    drawn = Counter()
    small = StreamingDataset(remote=roots[1], epoch_size=10, batch_size=5, shuffle=True, include_ids=True)
    for _ in range(5):  # 50 of 25
        drawn.update(flat(take(small)[0]))
    assert drawn == dict.fromkeys(range(25), 2)
    large = StreamingDataset(remote=roots[1], epoch_size=60, batch_size=5, shuffle=True, include_ids=True)
    assert sorted(Counter(flat(take(large)[0])).values()) == [2] * 15 + [3] * 10
    assert large.epoch_size == 60
    assert large.size == 25


def test_one_stream_without_weight_and_epoch_size_is_the_plain_data_set(roots):
    plain = StreamingDataset(remote=roots[0], batch_size=8, shuffle=True)
    alone = StreamingDataset(streams=[Stream(remote=roots[0])], batch_size=8, shuffle=True)
    assert alone.state_dict(16) == plain.state_dict(16)
    assert "mixture" not in alone.state_dict(16)["smalti"]
    assert alone.state_dict(16)["smalti"]["cursor_version"] == 1
    assert [batch["id"].tolist() for batch in alone.batches()] == [batch["id"].tolist() for batch in plain.batches()]
    assert alone.manifest.digest == plain.manifest.digest


@pytest.mark.parametrize(
    ("written", "size"), [("100k", 100_000), ("1.5M", 1_500_000), (" 2 b ", 2 * 10**9), ("7", 7), (8, 8)]
)
def test_an_epochs_size_may_be_abbreviated(roots, written, size):
    assert mixed(roots, epoch_size=written).epoch_size == size


@pytest.mark.parametrize(
    "written", ["x", "", "1.5", "-1", "1e5", "1kk", 0, -2, 1.0, True, "0.0", "0k", 1 << 62, "9999999t"]
)
def test_an_invalid_epoch_size_is_refused_at_construction(roots, written):
    with pytest.raises(ValueError, match="`epoch_size` must be a whole number"):
        mixed(roots, epoch_size=written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": [], "batch_size": 1}, "at least one Stream"),
        ({"streams": [Stream(remote="a")], "remote": "b"}, "either `streams`"),
        ({"streams": [Stream(remote="a")], "version": 3}, "either `streams`"),
        ({"streams": [Stream(remote="a", proportion=1), Stream(remote="b", repeat=1)]}, "for 1 of 2 streams"),
        ({"streams": [Stream(remote="a", proportion=1), Stream(remote="b")]}, "for 1 of 2 streams"),
        ({"streams": [Stream(remote="a", repeat=2)], "epoch_size": 10}, "must not be given with `repeat`"),
        ({"streams": [Stream(remote="a", choose=2)], "epoch_size": 10}, "must not be given with `repeat` or `choose`"),
        ({"streams": [Stream(remote="a", proportion=0)]}, "sum to more than 0"),
        ({"remote": "a", "sampling_method": "other"}, "`sampling_method` must be one of balanced, fixed"),
        ({"remote": "a", "batching_method": "other"}, "`batching_method` must be one of random, stratified"),
        ({"remote": "a", "sampling_granularity": 0}, "`sampling_granularity` must be a whole number from 1"),
    ],
)
def test_contradictory_options_are_refused_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        StreamingDataset(**grouped(**options))


def test_streams_must_be_streams():
    for alone in (Stream(remote="a"), "a"):
        with pytest.raises(TypeError, match=r"must be a list of smalti.Stream objects, found (Stream|str)"):
            StreamingDataset(streams=alone)
    with pytest.raises(TypeError, match=r"smalti.Stream objects, found str"):
        StreamingDataset(streams=["s3://a"])


@pytest.mark.parametrize("name", ["proportion", "repeat", "choose"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, -0.5, True, "2"])
def test_an_invalid_weight_is_refused_when_it_is_declared(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        Stream(remote="a", **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`remote` is needed"),
        ({"remote": "a", "choose": 1.5}, "`choose` must be a whole number"),
        ({"remote": "a", "repeat": 1, "choose": 2}, "at most one of proportion, repeat, choose"),
        ({"remote": "a", "proportion": 1e19}, r"`proportion` must be a number from 0 to 1e.18"),
    ],
)
def test_an_invalid_stream_is_refused_when_it_is_declared(options, message):
    with pytest.raises(ValueError, match=message):
        Stream(**options)


def test_weights_that_take_nothing_are_refused_when_samples_are_counted(roots):
    with pytest.raises(ValueError, match="must take at least one sample, found none"):
        take(mixed(roots, "choose", (0, 0, 0)))


def test_a_stream_too_small_for_stratified_batches_is_refused_with_the_remedy(roots):
    with pytest.raises(WorldMismatch, match=r"stream 2 would have no sample in a global batch of 8; enlarge the batch"):
        take(mixed(roots, values=(50, 50, 1), batching_method="stratified", epoch_size=202))


def test_each_stream_has_its_own_version_and_split(tmp_path):
    root = write_set(tmp_path / "grown", 20)
    write_set(root, 30, exist_ok=True)
    for split, count in (("train", 12), ("val", 7)):
        write_set(tmp_path / "split" / split, count)
    streams = [
        Stream(remote=str(root), version=1),
        Stream(remote=str(root)),
        Stream(remote=str(tmp_path / "split"), split="val"),
        Stream(remote=str(tmp_path / "split")),
    ]
    dataset = StreamingDataset(streams=streams, split="train", batch_size=4)
    with pytest.raises((VersionNotFound, StoreNotFound)):
        _ = dataset.stream  # `split` is for all streams that name none, and the first ones have no `train`
    streams[3] = Stream(remote=str(tmp_path / "split"), split="train")
    dataset = StreamingDataset(streams=streams, batch_size=4, include_ids=True, order=OrderOptions(tail="short"))
    assert [manifest.version for manifest in dataset.manifests[:2]] == [1, 2]
    assert dataset.size == 20 + 30 + 7 + 12
    ids = flat([batch["id"].tolist() for batch in dataset.batches()])
    assert ids == [*range(20), *range(30), *range(7), *range(12)]
    saved = dataset.state_dict()["smalti"]["mixture"]["streams"]
    assert [stream["split"] for stream in saved] == [None, None, "val", "train"]
    assert [stream["samples"] for stream in saved] == [20, 30, 7, 12]


def test_the_same_set_may_be_mixed_with_itself(roots):
    dataset = mixed([roots[0], roots[0]], "repeat", (1, 2))
    batches, _ = take(dataset)
    assert Counter(flat(batches)) == dict.fromkeys(range(40), 1) | dict.fromkeys(range(40, 80), 2)


def test_a_reopened_mixture_keeps_its_versions(tmp_path):
    roots = write_three(tmp_path)
    dataset = mixed(roots)
    first, state = take(dataset, 2)
    dataset.load_state_dict(state)
    dataset.close()
    write_set(roots[1], 33, exist_ok=True)
    rest, _ = take(dataset)
    assert [manifest.version for manifest in dataset.manifests] == [1, 1, 1]
    assert by_stream(flat(first) + flat(rest)) == [40, 20, 20]
    assert mixed(roots).size == 88


def test_a_mixture_can_be_pickled(roots):
    dataset = mixed(roots, epoch_size=64, batching_method="stratified")
    first, state = take(dataset, 3)
    dataset.load_state_dict(state)
    copy = pickle.loads(pickle.dumps(dataset))
    assert take(copy) == take(dataset)
    assert len(first) == 3


def test_streams_with_different_columns_can_share_an_epoch_but_no_batch(tmp_path, roots):
    with MDSWriter(out=str(tmp_path / "other"), columns={"id": "int", "label": "str"}) as writer:
        for number in range(16):
            writer.write({"id": number, "label": "x"})
    both = [roots[1], str(tmp_path / "other")]
    with pytest.raises(SchemaError, match="different columns"):
        take(mixed(both, "choose", (16, 16)))
    apart = mixed(both, "choose", (16, 16), batching_method="per_stream")
    columns = Counter(tuple(sorted(set(batch) - {"id"})) for batch in apart.batches())
    marks = ("_position", "_sample_id", "_stream")
    assert columns == {(*marks, "text", "vector"): 2, (*marks, "label"): 2}


def test_a_stream_without_samples_gives_nothing(roots, tmp_path):
    empty = write_set(tmp_path / "empty", 0)
    options = {"num_canonical_nodes": 1}
    for values in ((None, None), (None, 2), (None, 0)):
        dataset = mixed([roots[2], str(empty)], "repeat", values, **options)
        assert sorted(flat(take(dataset)[0])) == list(range(15))
    refused = mixed([roots[2], str(empty)], "proportion", (1, 1), **options)
    with pytest.raises(ValueError, match=r"stream 1 has no samples, and .* are to be taken of it: leave it out"):
        take(refused)


def test_validate_hash_is_each_streams_own_or_the_datasets(roots):
    md5 = CacheOptions(validate_hash="md5")
    for streams, cache in (
        (streams_of(roots[:1]) + streams_of(roots[1:2], cache=md5), None),
        (streams_of(roots[:2]), md5),
    ):
        dataset = StreamingDataset(streams=streams, batch_size=4, cache=cache)
        with pytest.raises(SchemaError, match=r"`validate_hash` is 'md5', and the index of .* has hashes xxh3_64"):
            _ = dataset.stream
    assert StreamingDataset(streams=streams_of(roots, cache=CacheOptions(validate_hash="xxh3_64"))).size == 80


def test_samples_of_streams_are_transformed_and_marked(roots):
    dataset = mixed(roots, transform=lambda each: {"id": each["id"]}, batch_size=80)
    samples = list(dataset)
    assert sorted(each["_stream"] for each in samples) == [0] * 40 + [1] * 20 + [2] * 20
    assert all(each["id"] == each["_sample_id"] - (0, 40, 65)[each["_stream"]] for each in samples)
    assert sample(3)["id"] == 3
