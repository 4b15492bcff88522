"""StreamingDataLoader over several streams: batches have the promised composition with every kind of worker.

Streams of 40, 25 and 15 samples; 160 of them in an epoch, 80, 40 and 40, or as the test says.
"""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from smalti import MDSWriter, Stream
from smalti.errors import CursorError, SchemaError
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.combinations import each_value_once, nightly
from tests.dataset.mixture_sets import by_stream, flat, streams_of, write_three
from tests.reading_options import grouped

pytestmark = pytest.mark.torch

FORK = {"num_workers": 2, "multiprocessing_context": "fork"}
WAYS = [
    pytest.param({}, id="alone"),
    pytest.param({"num_workers": 2, "worker_kind": "thread"}, id="threads"),
    pytest.param(FORK, id="fork", marks=[pytest.mark.process, pytest.mark.slow]),
    pytest.param(
        {**FORK, "persistent_workers": True}, id="fork-persistent", marks=[pytest.mark.process, pytest.mark.slow]
    ),
]
SPAWN = pytest.param(
    {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    id="spawn",
    marks=[pytest.mark.process, pytest.mark.slow, pytest.mark.nightly],
)
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return write_three(tmp_path_factory.mktemp("three"))


def loader_of(roots, *, batch=8, values=(2, 1, 1), way=None, **options):
    chosen = {"shuffle": True, "include_ids": True, "tail": "short", "epoch_size": 160} | options
    return StreamingDataLoader(
        StreamingDataset(streams=streams_of(roots, values=values), **grouped(**chosen)), batch, **way or {}
    )


def ids(batches):
    return [batch["_sample_id"].tolist() for batch in batches]


def composed(batches):
    """Return the number of samples of each stream, for each batch."""
    return [sorted(Counter(batch["_stream"].tolist()).items()) for batch in batches]


def state_of(loader):
    return json.loads(json.dumps(loader.state_dict()))


PROMISES = {
    "stratified": {((0, 4), (1, 2), (2, 2))},
    "per_stream": {((0, 8),), ((1, 8),), ((2, 8),)},
    "device_per_stream": {((0, 8),), ((1, 8),), ((2, 8),)},
}


@pytest.mark.parametrize(("batching", "way"), each_value_once(list(PROMISES), WAYS))
def test_batches_are_composed_as_promised_over_epochs_and_after_a_resume(roots, batching, way):
    loader = loader_of(roots, batching_method=batching, way=way)
    first = composed(islice(loader, 7))
    state = state_of(loader)
    loader.load_state_dict(state)
    rest = composed(loader)
    assert {tuple(each) for each in first + rest} == PROMISES[batching]
    assert len(first + rest) == 20
    again = loader_of(roots, batching_method=batching, way=way)
    again.load_state_dict(state)
    assert composed(again) == rest
    assert composed(again) == composed(loader), "and the next epoch"


@pytest.mark.parametrize(("batching", "way"), each_value_once(BATCHINGS, WAYS))
def test_workers_do_not_change_the_order_of_a_mixture(roots, batching, way):
    alone = loader_of(roots, batching_method=batching)
    loader = loader_of(roots, batching_method=batching, way=way)
    for _ in range(2):
        batches = ids(loader)
        assert batches == ids(alone)
        assert by_stream(flat(batches)) == [80, 40, 40]


@pytest.mark.parametrize("way", [*WAYS[:2], *nightly(WAYS[2:3]), WAYS[3], SPAWN])
def test_weights_change_in_a_loader_with_persistent_workers(roots, way):
    """A state with weights 2:1:1 is loaded with 0:1:1: 56 samples were read, and two streams share the other 104."""
    state_after = loader_of(roots)
    list(islice(state_after, 7))
    state = state_of(state_after)
    loader = loader_of(roots, values=(0, 1, 1), change_weights=True, way=way)
    assert by_stream(flat(ids(loader))) == [0, 80, 80]
    loader.load_state_dict(state)
    assert by_stream(flat(ids(islice(loader, 5))))[0] == 0
    changed = state_of(loader)
    assert [each["samples"] for each in changed["smalti"]["mixture"]["history"]] == [0, 56]
    loader.load_state_dict(changed)
    fresh = loader_of(roots, values=(0, 1, 1), way=way)
    fresh.load_state_dict(changed)
    assert ids(loader) == ids(fresh)
    assert by_stream(flat(ids(loader))) == [0, 80, 80]
    loader.load_state_dict(state)
    whole = ids(loader)
    assert by_stream(flat(whole)) == [0, 52, 52], "the state can be loaded as often as one likes"


def test_ranks_together_read_what_one_reads_and_save_one_state(roots):
    alone = [*flat(ids(loader_of(roots, batch=16, batching_method="stratified")))]
    read, states = {}, set()
    for rank in range(4):
        loader = loader_of(roots, batch=4, world=World.of_blocks(rank, 4, 2), batching_method="stratified")
        for batch in islice(loader, 6):
            read |= dict(zip(batch["_position"].tolist(), batch["_sample_id"].tolist(), strict=True))
        states.add(json.dumps(loader.state_dict()))
    assert [read[position] for position in sorted(read)] == alone[: 6 * 16]
    assert len(states) == 1


def test_replicas_read_the_same_of_a_mixture(roots):
    read = [
        ids(loader_of(roots, batch=4, world=World.of_blocks(rank, 4, 1), replication=2, batching_method="per_stream"))
        for rank in range(4)
    ]
    assert read[0] == read[1]
    assert read[2] == read[3]
    assert not set(read[0][0]) & set(read[2][0]) or read[0] != read[2]


def test_an_epoch_keeps_its_batch_size_and_the_next_one_has_the_new(roots):
    begun = loader_of(roots, batch=8, batching_method="per_stream")
    list(islice(begun, 4))
    loader = loader_of(roots, batch=10, batching_method="per_stream")
    loader.load_state_dict(state_of(begun))
    assert flat(ids(loader)) == flat(ids(begun_again(roots, begun)))
    assert {tuple(each) for each in composed(loader)} == {((0, 10),), ((1, 10),), ((2, 10),)}


def begun_again(roots, begun):
    loader = loader_of(roots, batch=8, batching_method="per_stream")
    loader.load_state_dict(state_of(begun))
    return loader


def test_a_loaders_length_is_the_mixtures_in_steps(roots):
    assert len(loader_of(roots)) == 20
    assert len(loader_of(roots, epoch_size=1)) == 1
    assert len(loader_of(roots, epoch_size="1k", batch=10)) == 100
    assert len(loader_of(roots, epoch_size=155)) == 20
    assert len(loader_of(roots, epoch_size=155, way={"drop_last": True})) == 19


@pytest.mark.parametrize("way", WAYS)
def test_streams_with_different_columns_have_batches_of_their_own(roots, tmp_path, way):
    with MDSWriter(out=str(tmp_path / "other"), columns={"label": "str", "image": "bytes"}) as writer:
        for number in range(16):
            writer.write({"label": str(number), "image": b"x" * number})
    streams = [Stream(remote=roots[1], choose=16), Stream(remote=str(tmp_path / "other"), choose=16)]
    options = {"shuffle": True, "include_ids": True, "tail": "short"}
    apart = StreamingDataset(streams=streams, **grouped(batching_method="per_stream", **options))
    batches = list(StreamingDataLoader(apart, 8, **way))
    assert sorted("label" in batch for batch in batches) == [False, False, True, True]
    assert sorted(flat([batch["label"] for batch in batches if "label" in batch]), key=int) == list(map(str, range(16)))
    together = StreamingDataLoader(StreamingDataset(streams=streams, **grouped(**options)), 8, **way)
    with pytest.raises(SchemaError, match="different columns"):
        list(together)


def test_a_refused_state_leaves_the_loader_where_it_was(roots):
    begun = loader_of(roots)
    list(islice(begun, 3))
    loader = loader_of(roots, values=(1, 1, 1))
    before = state_of(loader)
    with pytest.raises(CursorError, match=r"OrderOptions\(change_weights=True\)"):
        loader.load_state_dict(state_of(begun))
    assert state_of(loader) == before
    assert by_stream(flat(ids(loader))) in ([54, 53, 53], [53, 54, 53], [53, 53, 54])


@pytest.mark.slow
def test_a_history_of_any_length_reaches_persistent_workers_that_are_running(roots):
    begun = loader_of(roots)
    state = state_of(begun)
    weights = state["smalti"]["mixture"]["history"][0]
    state["smalti"]["mixture"]["history"] = [weights | {"epoch": epoch} for epoch in range(500)]
    state |= {"epoch": 600}
    loader = loader_of(roots, way={**FORK, "persistent_workers": True})
    list(loader)
    loader.load_state_dict(state)
    fresh = loader_of(roots, way=FORK)
    fresh.load_state_dict(state)
    resumed = ids(loader)
    assert resumed == ids(fresh)
    assert by_stream(flat(resumed)) == [80, 40, 40]


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({}, "step [01] of"),
        ({"batching_method": "per_stream", "tail": "short"}, "step 2 of 3"),
        ({"batching_method": "per_stream", "tail": "pad"}, "step 2 of 3"),
    ],
)
def test_batches_that_would_mix_different_columns_are_refused_before_the_first_step(roots, tmp_path, options, step):
    """12 samples of each stream in steps of 8: one step of each, and a last step of both, 4 and 4."""
    with MDSWriter(out=str(tmp_path / "other"), columns={"label": "str"}) as writer:
        for number in range(12):
            writer.write({"label": str(number)})
    streams = [Stream(remote=roots[1], choose=12), Stream(remote=str(tmp_path / "other"))]
    dataset = StreamingDataset(streams=streams, shuffle=True, **grouped(**options))
    with pytest.raises(SchemaError, match=rf"streams 0 .* and 1 .* different columns.*{step}.*epoch_size.*collate_fn"):
        next(iter(StreamingDataLoader(dataset, 8)))
    by_sample = StreamingDataLoader(dataset, 8, collate_fn=lambda samples: [min(sample) for sample in samples])
    assert {name for batch in by_sample for name in batch} == {"id", "label"}


def test_weights_may_be_numpys_numbers_and_states_hold_pythons(roots):
    dataset = StreamingDataset(
        streams=[Stream(remote=roots[0], proportion=np.float32(0.5)), Stream(remote=roots[1], proportion=np.int64(2))]
    )
    weights = dataset.state_dict()["smalti"]["mixture"]["history"][0]["weights"]
    assert weights == [{"proportion": 0.5}, {"proportion": 2.0}]
    assert [type(each["proportion"]) for each in weights] == [float, float]
