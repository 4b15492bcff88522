"""H1, H2, H3, H7: real loaders resume in another world, with other workers, with another batch size."""

import itertools

import pytest

from tests.faults.world_sets import FIRST_EPOCH, SECOND_EPOCH, loaders_of, take, write_known_set

pytestmark = pytest.mark.torch

FIRST, SECOND = dict(enumerate(FIRST_EPOCH)), dict(enumerate(SECOND_EPOCH))
PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
THREADS = {"num_workers": 2, "worker_kind": "thread"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_known_set(tmp_path_factory.mktemp("known") / "root")


def read_segments(root, segments):
    """Read segments, each (hosts, ranks per host, batch size, steps, loader options), and return ids and last state."""
    order, state = {}, None
    for hosts, ranks, batch_size, steps, loader in segments:
        state = take(loaders_of(root, hosts, ranks, batch_size, **loader), steps, order, state)
    return order, state


WORLDS = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (5, 1)]


@pytest.mark.parametrize("tail", ["pad", "short"])
def test_h1_every_world_resumes_from_every_other_in_one_order_and_reads_each_sample_once(root, tail):
    """Two steps of one sample per rank in the first world, the rest in the other: the golden order once."""
    order = {"order": {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 8, "tail": tail}}
    for before, after in itertools.permutations(WORLDS, 2):
        found, state = read_segments(root, [(*before, 1, 2, order), (*after, 2, None, order)])
        assert found == FIRST, (before, after)
        assert (state["epoch"], state["sample_in_epoch"]) == (1, 0)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.nightly  # beside `test_h2_threads_resume_from_processes...` and worlds without workers
def test_h1_worlds_with_worker_processes_resume_from_each_other(root):
    segments = [(2, 2, 2, 1, PROCESSES), (1, 1, 3, 2, PROCESSES), (3, 1, 1, 2, PROCESSES), (1, 2, 4, None, PROCESSES)]
    assert read_segments(root, segments)[0] == FIRST


def test_h2_worker_counts_may_change_at_every_resume(root):
    """0, 1, 3 and 2 threads; one rank, so that a worker too many or too few would show at once."""
    segments = [(1, 1, 3, 2, {"num_workers": workers, "worker_kind": "thread"}) for workers in (0, 1, 3)]
    found, state = read_segments(root, [*segments, (1, 1, 3, None, THREADS)])
    assert found == FIRST
    assert state["epoch"] == 1


@pytest.mark.process
def test_h2_threads_resume_from_processes_and_no_workers_from_threads(root):
    assert read_segments(root, [(1, 1, 3, 2, PROCESSES), (1, 1, 3, 3, THREADS), (1, 1, 3, None, {})])[0] == FIRST


def test_h3_batch_sizes_change_in_the_middle_of_an_epoch_and_of_the_next(root):
    """1 and 4 on 2 ranks, 7 on one, then 5: each batch is the next part of the order, whatever came before."""
    found, state = read_segments(root, [(1, 2, 1, 3, {}), (1, 2, 4, 1, {}), (1, 1, 7, 1, {}), (1, 2, 5, None, {})])
    assert found == FIRST
    later = {}
    state = take(loaders_of(root, 1, 1, 5), 3, later, state)
    assert later == dict(list(SECOND.items())[:15])
    take(loaders_of(root, 1, 3, 2), None, later, state)
    assert later == SECOND


def test_h3_a_batch_after_the_change_is_the_next_of_the_order(root):
    order, state = read_segments(root, [(1, 1, 4, 2, {})])
    loader = loaders_of(root, 1, 1, 6)[0]
    loader.load_state_dict(state)
    assert next(iter(loader))["id"].tolist() == FIRST_EPOCH[8:14]
    assert list(order.values()) == FIRST_EPOCH[:8]


@pytest.mark.parametrize(
    ("ranks_on_host", "tail", "read"),
    [(1, "pad", 22), (1, "short", 22), (1, "drop", 22), (2, "pad", 22), (2, "short", 22), (2, "drop", 14)],
)
def test_h7_four_hosts_become_three_and_then_five(root, ranks_on_host, tail, read):
    """22 samples: 4 hosts take a step, 3 take a step, 5 the rest. With 2 ranks each, `drop` leaves out 8 of 22."""
    order = {"order": {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 8, "tail": tail}}
    segments = [(4, ranks_on_host, 1, 1, order), (3, ranks_on_host, 1, 1, order), (5, ranks_on_host, 1, None, order)]
    assert read_segments(root, segments)[0] == dict(enumerate(FIRST_EPOCH[:read]))


@pytest.mark.parametrize("hosts", [(4, 3, 5), (4, 5, 3), (3, 7, 2)])
def test_h7_the_default_canonical_nodes_of_a_run_stay_when_hosts_change(root, hosts):
    """With default options, the first segment's number of hosts has no effect on the order."""
    order = {"order": {"shuffle": True}}
    found, state = read_segments(
        root, [(count, 1, 1, 1, order) for count in hosts[:2]] + [(hosts[2], 1, 1, None, order)]
    )
    alone, _ = read_segments(root, [(1, 1, 22, None, order)])
    assert found == alone
    assert sorted(found.values()) == list(range(22))
    assert state["num_canonical_nodes"] == 1
