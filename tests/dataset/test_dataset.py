"""StreamingDataset without torch: epochs, cursors, order."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti.dataset import OrderOptions, StreamingDataset, open_dataset
from smalti.dataset.streaming import reads_columns
from smalti.errors import CursorError, SchemaError, StoreNotFound
from smalti.order import plan_epoch
from smalti.writer import MDSWriter
from tests.dataset.every_rank import global_order, ranks_of
from tests.reading_options import grouped
from tests.shard_sets import sample, write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set") / "root", 137)


def read_ids(dataset):
    return [s["id"] for s in dataset]


def test_construction_opens_nothing():
    StreamingDataset(remote="/nowhere/at/all", batch_size=4)


def test_samples_are_read_by_id(root):
    dataset = open_dataset(str(root))
    assert dataset.size == 137
    assert dataset[136]["text"] == "sample 136 xxx"
    assert dataset[-1]["id"] == 136
    assert dataset[5]["vector"].tolist() == [5.0, 0.5, -5.0]


def test_samples_are_indexed_in_all_forms_that_mosaicml_supports(root):
    dataset = open_dataset(str(root))

    def found(at):
        return [sample["id"] for sample in dataset[at]]

    assert found(slice(3, 6)) == [3, 4, 5]
    assert found(slice(-2, None)) == [135, 136]
    assert found(slice(5, 0, -2)) == [5, 3, 1]
    assert found([1, -1]) == [1, 136]
    assert found(np.array([4, 2])) == [4, 2]
    assert [[sample["id"] for sample in row] for row in dataset[[[1, 2], [3]]]] == [[1, 2], [3]]
    assert dataset[np.int64(7)]["id"] == 7


@pytest.mark.parametrize("at", [1.0, "1", None, (1, 2)])
def test_indexes_of_other_forms_are_refused(root, at):
    with pytest.raises(ValueError, match="takes an integer, a slice"):
        open_dataset(str(root))[at]


def test_an_overridden_get_item_is_honoured(root):
    class Doubled(StreamingDataset):
        def get_item(self, sample_id):
            return super().get_item(sample_id)["id"] * 2

    dataset = Doubled(remote=str(root), batch_size=5, order=OrderOptions(tail="short"))
    assert not reads_columns(dataset)
    assert list(dataset)[:3] == [0, 2, 4]
    assert dataset[[1, -1]] == [2, 272]


@pytest.mark.parametrize("number", [-1, 137])
def test_get_item_takes_plain_ids_only(root, number):
    with pytest.raises(IndexError, match=f"sample {number} of .*: it has samples 0 to 136"):
        open_dataset(str(root)).get_item(number)


def test_an_id_out_of_range_is_refused_with_the_range(root):
    with pytest.raises(IndexError, match="it has samples 0 to 136"):
        open_dataset(str(root))[137]


def test_without_shuffle_samples_come_as_stored(root):
    assert read_ids(StreamingDataset(remote=str(root), batch_size=10, order=OrderOptions(tail="short"))) == list(
        range(137)
    )


def test_batches_of_columns_hold_the_written_values(root):
    dataset = StreamingDataset(remote=str(root), batch_size=10, shuffle=True, order=OrderOptions(tail="short"))
    for batch in dataset.batches():
        for place, number in enumerate(batch["id"].tolist()):
            assert batch["text"][place] == sample(number)["text"]
            assert batch["vector"][place].tolist() == sample(number)["vector"].tolist()


def test_batches_of_columns_and_of_samples_agree(root):
    by_batch = StreamingDataset(remote=str(root), batch_size=8, shuffle=True)
    one_by_one = StreamingDataset(remote=str(root), batch_size=8, shuffle=True)
    assert [n for batch in by_batch.batches() for n in batch["id"].tolist()] == read_ids(one_by_one)


def test_every_iteration_is_the_next_epoch(root):
    dataset = StreamingDataset(remote=str(root), batch_size=137, shuffle=True)
    first, second = read_ids(dataset), read_ids(dataset)
    assert dataset.next_epoch == 2
    assert sorted(first) == sorted(second) == list(range(137))
    assert first != second


def test_an_epoch_can_be_chosen(root):
    dataset = StreamingDataset(remote=str(root), batch_size=137, shuffle=True)
    read_ids(dataset)
    second = read_ids(dataset)
    dataset.set_epoch(1)
    assert read_ids(dataset) == second


def test_the_order_is_that_of_the_plan(root):
    dataset = StreamingDataset(remote=str(root), batch_size=137, shuffle=True, shuffle_seed=5)
    plan = plan_epoch(dataset.stream.shard_sizes, seed=5, epoch=0, canonical_nodes=1)
    assert read_ids(dataset) == plan.sample_ids(0, 137).tolist()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 20))
def test_i2_the_order_does_not_depend_on_the_world_or_batch_size(root, hosts, ranks, batch):
    alone = global_order(ranks_of(root, 1, 1, shuffle=True, batch_size=137))
    assert global_order(ranks_of(root, hosts, ranks, shuffle=True, batch_size=batch)) == alone


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(1, 3), st.integers(1, 3)), st.data())
@pytest.mark.slow
def test_i3_prefix_and_rest_on_another_world_are_the_uninterrupted_order(root, before, after, data):
    batch, other = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    whole = global_order(ranks_of(root, 1, 1, shuffle=True, batch_size=137))
    first = ranks_of(root, *before, shuffle=True, batch_size=batch)
    steps = data.draw(st.integers(0, 137 // (batch * len(first))))
    prefix = global_order(first, steps)
    fresh = StreamingDataset(remote=str(root), shuffle=True, batch_size=batch)
    state = fresh.state_dict(num_samples=steps * batch * len(first))
    rest_ranks = ranks_of(root, *after, shuffle=True, batch_size=other)
    for dataset in rest_ranks:
        dataset.load_state_dict(state)
    rest = global_order(rest_ranks)
    if len(prefix) < 137:
        assert not set(prefix) & set(rest)
        assert prefix | rest == whole


def test_padding_is_marked_and_everything_else_read_once(root):
    datasets = ranks_of(root, 2, 2, batch_size=8)
    marks = [p for d in datasets for batch in d.batches() for p in batch["_position"].tolist()]
    assert sorted(p for p in marks if p >= 0) == list(range(137))
    assert marks.count(-1) == 5 * 32 - 137


def test_per_sample_transforms_are_applied(root):
    dataset = StreamingDataset(
        remote=str(root), batch_size=5, transform=lambda s: s["id"] * 2, order=OrderOptions(tail="short")
    )
    assert list(dataset)[:3] == [0, 2, 4]


def test_a_transform_on_batches_sees_columns_and_ids(root):
    def double(columns):
        return {"twice": columns["id"] * 2, "position": columns["_position"]}

    double.on_batches = True
    dataset = StreamingDataset(remote=str(root), batch_size=5, transform=double, include_ids=True)
    first = next(iter(dataset.batches()))
    assert first["twice"].tolist() == [0, 2, 4, 6, 8]
    assert first["position"].tolist() == [0, 1, 2, 3, 4]


def test_an_overridden_getitem_is_honoured(root):
    class Doubled(StreamingDataset):
        def __getitem__(self, sample_id):
            return super().__getitem__(sample_id)["id"] * 2

    assert list(Doubled(remote=str(root), batch_size=5, order=OrderOptions(tail="short")))[:3] == [0, 2, 4]


def test_iterating_without_a_batch_size_says_what_to_give(root):
    with pytest.raises(ValueError, match="`batch_size` is needed"):
        next(iter(StreamingDataset(remote=str(root))))


def test_an_address_without_a_data_set_is_named(tmp_path):
    with pytest.raises(StoreNotFound, match=f"{tmp_path} holds no shard set"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.0),
        ("shuffle_seed", -1),
        ("tail", "wrap"),
        ("tail", ""),
        ("num_canonical_nodes", 0),
        ("num_canonical_nodes", (1 << 20) + 1),
        ("shuffle_block_size", (1 << 62) + 1),
        ("shuffle_seed", 1 << 63),
        ("replication", 0),
    ],
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=f"`{option}` must be"):
        StreamingDataset(remote="/x", **grouped(**{option: value}))


def test_a_dataset_without_remote_is_refused():
    with pytest.raises(ValueError, match="`remote` is needed"):
        StreamingDataset(batch_size=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shuffle": False}, "with shuffle True, and this dataset has False. .* give `shuffle=True`"),
        ({"shuffle_seed": 4}, "with shuffle_seed 8, and this dataset has 4. .* give `shuffle_seed=8`, or leave it out"),
        (
            {"num_canonical_nodes": 3},
            "with num_canonical_nodes 1, .* has 3. .* give `OrderOptions.num_canonical_nodes=1.`",
        ),
        (
            {"shuffle_block_size": 3},
            "with shuffle_block_size 1048576, .* give `OrderOptions.shuffle_block_size=1048576.`",
        ),
    ],
)
def test_a_state_of_another_order_is_refused_with_both_values_and_the_remedy(root, options, says):
    state = StreamingDataset(remote=str(root), shuffle=True, shuffle_seed=8, batch_size=4).state_dict()
    with pytest.raises(CursorError, match=f"was saved {says}.* call `set_epoch`"):
        StreamingDataset(remote=str(root), batch_size=4, **grouped(**{"shuffle": True, **options})).load_state_dict(
            state
        )


def test_a_state_of_another_version_of_the_order_is_refused(root):
    state = StreamingDataset(remote=str(root), batch_size=4).state_dict()
    state["smalti"]["algorithm_version"] = 1
    with pytest.raises(CursorError, match="order algorithm version 1, and this dataset has 2") as caught:
        StreamingDataset(remote=str(root), batch_size=4).load_state_dict(state)
    assert (caught.value.saved, caught.value.found) == (1, 2)


def test_a_state_can_hold_every_allowed_option(root):
    options = {"shuffle": True, "batch_size": 137}
    most = OrderOptions(num_canonical_nodes=3, shuffle_block_size=1 << 62)
    resumed = StreamingDataset(remote=str(root), **options)
    resumed.load_state_dict(
        StreamingDataset(remote=str(root), **options, shuffle_seed=(1 << 63) - 1, order=most).state_dict()
    )
    assert set(read_ids(resumed)) == set(range(137))
    resumed.load_state_dict(
        StreamingDataset(
            remote=str(root),
            **grouped(num_canonical_nodes=1 << 20, **options),
        ).state_dict()
    )
    assert resumed.cursor().canonical_nodes == 1 << 20


def test_after_a_refused_state_a_new_epoch_can_be_begun(root):
    dataset = StreamingDataset(remote=str(root), shuffle=True, batch_size=137)
    with pytest.raises(CursorError):
        dataset.load_state_dict(StreamingDataset(remote=str(root), batch_size=4).state_dict())
    dataset.set_epoch(3)
    assert sorted(read_ids(dataset)) == list(range(137))
    assert dataset.next_epoch == 4


def test_state_dict_takes_mosaicmls_arguments_during_an_iteration(root):
    dataset = StreamingDataset(remote=str(root), batch_size=4)
    samples = iter(dataset)
    for _ in range(12):
        next(samples)
    state = dataset.state_dict(12)
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 12)
    resumed = StreamingDataset(remote=str(root), batch_size=4)
    resumed.load_state_dict(state)
    rest = iter(resumed)
    assert [next(rest)["id"] for _ in range(4)] == [12, 13, 14, 15]
    assert resumed.state_dict(4) == dataset.state_dict(16) == resumed.state_dict(16, from_beginning=True)


def test_a_state_of_another_data_set_is_refused(root, tmp_path):
    other = write_set(tmp_path / "other", 138)
    state = StreamingDataset(remote=str(root), batch_size=4).state_dict()
    with pytest.raises(CursorError, match="data set digest"):
        StreamingDataset(remote=str(other), batch_size=4).load_state_dict(state)


def test_seed_and_canonical_nodes_are_restored_from_the_state(root):
    saved = StreamingDataset(
        remote=str(root), shuffle=True, shuffle_seed=8, order=OrderOptions(num_canonical_nodes=5), batch_size=137
    )
    resumed = StreamingDataset(remote=str(root), shuffle=True, batch_size=137)
    resumed.load_state_dict(saved.state_dict())
    assert read_ids(resumed) == read_ids(saved)
    assert read_ids(resumed) == read_ids(saved), "the epochs after the resumed one are the saved run's too"


def test_a_golden_set_of_mosaicml_is_read_in_place(shared):
    """comp_zstd_3 was written by MosaicML Streaming with shards on disk both raw and compressed."""

    expected = json.loads((shared / "golden/comp_zstd_3/expected.json").read_text())["samples"]
    dataset = open_dataset(str(shared / "golden/comp_zstd_3"))
    assert [dataset[i] for i in range(dataset.size)] == expected


def test_columns_that_run_code_are_refused_at_open_without_allow_unsafe_types(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"x": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"x": [1, 2]})
    with pytest.raises(SchemaError, match="pkl"):
        open_dataset(str(tmp_path))
    with pytest.raises(SchemaError, match="pkl"):
        next(iter(StreamingDataset(remote=str(tmp_path), batch_size=4)))
    assert open_dataset(str(tmp_path), allow_unsafe_types=True)[0] == {"x": [1, 2]}
