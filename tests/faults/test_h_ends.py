"""H6, H8: sets whose size has no useful divisors, and resuming at the edges of an epoch."""

from itertools import islice

import pytest

from smalti.dataset import StreamingDataset
from smalti.world import World
from tests.faults.world_sets import FIRST_EPOCH, SECOND_EPOCH, loaders_of, take, write_known_set
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
EDGES = [("pad", 3, 22), ("short", 3, 22), ("drop", 2, 16)]
"""Tail, steps of 8 samples, and how many of 22 samples they read."""
BESIDE = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_known_set(tmp_path_factory.mktemp("known") / "root")


# ---------------------------------------------------------------------- H6: any number of samples


def delivered(root, tail, hosts=2, ranks_on_host=1, batch_size=3, **options):
    """Return the positions and ids that all ranks read in an epoch, and the number of marked repeats."""
    counted, repeats, steps = {}, 0, set()
    options = {"shuffle": True, "num_canonical_nodes": 64, "tail": tail, **options}
    for rank in range(hosts * ranks_on_host):
        world = World.of_blocks(rank, hosts * ranks_on_host, hosts)
        dataset = StreamingDataset(
            remote=root, batch_size=batch_size, include_ids=True, world=world, **grouped(**options)
        )
        batches = list(dataset.batches())
        dataset.close()
        steps.add(len(batches))
        for batch in batches:
            for position, sample_id in zip(batch["_position"].tolist(), batch["_sample_id"].tolist(), strict=True):
                if position < 0:
                    repeats += 1
                else:
                    assert position not in counted
                    counted[position] = sample_id
    assert len(steps) == 1, "all ranks take equally many steps"
    return counted, repeats


LAST_STEP = {0: (0, 0), 1: (5, 1), 2: (4, 0), 3: (3, 0), 4: (2, 0), 5: (1, 0)}
"""Samples in the last step of 6 of two ranks: repeats that pad it, and ranks that would have none."""


def check_tails(root, count):
    filling, idle = LAST_STEP[count % 6]
    for tail, read, repeats in (("pad", count, filling), ("short", count, idle), ("drop", count - count % 6, 0)):
        counted, marked = delivered(root, tail)
        assert marked == repeats, (count, tail)
        assert sorted(counted) == list(range(read)), (count, tail)
        assert len(set(counted.values())) == read, (count, tail)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 37, 64, 65])
def test_h6_only_marked_padding_of_the_last_step_is_read_again(tmp_path, count):
    check_tails(write_set(tmp_path / "set", count), count)


@pytest.mark.slow
@pytest.mark.nightly
def test_h6_the_same_for_every_number_of_samples_from_1_to_200(tmp_path):
    for count in range(1, 201):
        check_tails(write_set(tmp_path / str(count), count, size_limit=None), count)


def test_h6_37_samples_of_64_canonical_nodes_need_no_repeat(tmp_path):
    root = write_set(tmp_path / "set", 37)
    counted, repeats = delivered(root, "pad", 1, 1, 1)
    assert (sorted(counted.values()), repeats) == (list(range(37)), 0)


# ---------------------------------------------------------------------- H8: the edges of an epoch


@pytest.mark.parametrize(
    ("tail", "steps", "read", "how"),
    [
        *(pytest.param(*tail, {}, id=f"{tail[0]}-alone") for tail in EDGES),
        *(pytest.param(*tail, PROCESSES, id=f"{tail[0]}-processes", marks=BESIDE) for tail in EDGES[:2]),
        pytest.param(*EDGES[2], PROCESSES, id="drop-processes", marks=BESIDE[:2]),
    ],
)
def test_h8_two_ranks_resume_at_every_edge_of_an_epoch(root, how, tail, steps, read):
    """Steps of 8: states before the first, before and after the last, and after the end was reached."""
    order = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 8, "tail": tail}
    for taken in (0, steps - 1, steps, None):
        first, rest, second = {}, {}, {}
        state = take(loaders_of(root, 1, 2, 4, order=order, **how), taken, first)
        ended = taken in (steps, None)
        assert (state["epoch"], state["sample_in_epoch"]) == ((1, 0) if ended else (0, taken * 8))
        if not ended:
            state = take(loaders_of(root, 1, 2, 4, order=order, **how), None, rest, state)
        assert {**first, **rest} == dict(enumerate(FIRST_EPOCH[:read]))
        state = take(loaders_of(root, 1, 2, 4, order=order, **how), None, second, state)
        assert second == dict(enumerate(SECOND_EPOCH[:read]))
        assert (state["epoch"], state["sample_in_epoch"]) == (2, 0)


def test_h8_a_state_at_or_after_the_end_of_an_epoch_begins_the_next(root):
    """As MosaicML writes it: every sample is counted, but the epoch's number is not yet increased."""
    loader = loaders_of(root, 1, 1, 22)[0]
    loader.load_state_dict(loader.state_dict() | {"sample_in_epoch": 22})
    assert next(iter(loader))["id"].tolist() == SECOND_EPOCH


def test_h8_a_resumed_loader_keeps_its_place_until_it_is_used(root):
    """Saved again before its first step, twice."""
    loader = loaders_of(root, 1, 1, 5)[0]
    batches = iter(loader)
    first = [number for batch in islice(batches, 2) for number in batch["id"].tolist()]
    state = loader.state_dict()
    for _ in range(2):
        loader = loaders_of(root, 1, 1, 5)[0]
        loader.load_state_dict(state)
        iter(loader)
        assert loader.state_dict() == state
    assert first + [number for batch in loader for number in batch["id"].tolist()] == [*FIRST_EPOCH, 4, 21, 1]


def test_h8_the_only_step_of_an_epoch_is_its_last(root):
    """22 samples in one step of 40, of 2 ranks: after it comes the next epoch."""
    first, second = {}, {}
    state = take(loaders_of(root, 1, 2, 20), 1, first)
    assert (state["epoch"], state["sample_in_epoch"], first) == (1, 0, dict(enumerate(FIRST_EPOCH)))
    take(loaders_of(root, 1, 2, 20), 1, second, state)
    assert second == dict(enumerate(SECOND_EPOCH))
