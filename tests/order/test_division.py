"""The division of an epoch's order over hosts and ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.order import Division
from smalti.world import World


def world(rank, hosts, ranks_on_host):
    """Return the world of `rank` of hosts * ranks_on_host, hosts numbered by their first rank."""
    return World(
        rank=rank,
        num_ranks=hosts * ranks_on_host,
        host=rank // ranks_on_host,
        num_hosts=hosts,
        host_rank=rank % ranks_on_host,
        ranks_on_host=ranks_on_host,
    )


def read_by(rank, *, hosts=1, ranks=1, size, start=0, batch, tail="pad"):
    division = Division(size, start, batch, world(rank, hosts, ranks), tail)
    return [(step.lookup.tolist(), step.positions.tolist()) for step in division.steps(0, division.num_steps)]


def test_two_hosts_of_two_ranks_take_positions_as_the_table_says():
    """The table in the module's docstring: one sample per rank and step."""
    taken = [[positions for _, positions in read_by(r, hosts=2, ranks=2, size=8, batch=1)] for r in range(4)]
    assert taken == [[[0], [4]], [[2], [6]], [[1], [5]], [[3], [7]]]


def test_pad_fills_the_last_step_from_the_epochs_start_and_marks_it():
    assert read_by(0, size=5, batch=3) == [([0, 1, 2], [0, 1, 2]), ([3, 4, 0], [3, 4, -1])]


def test_short_leaves_the_last_step_short():
    assert read_by(0, size=5, batch=3, tail="short") == [([0, 1, 2], [0, 1, 2]), ([3, 4], [3, 4])]


def test_short_gives_a_rank_with_nothing_one_marked_repeat():
    assert read_by(1, ranks=2, size=5, batch=2, tail="short") == [([1, 3], [1, 3]), ([0], [-1])]


def test_drop_leaves_an_incomplete_step_out():
    assert read_by(0, size=5, batch=3, tail="drop") == [([0, 1, 2], [0, 1, 2])]


def test_a_set_smaller_than_a_step_is_repeated_as_often_as_needed():
    assert read_by(0, size=2, batch=5) == [([0, 1, 0, 1, 0], [0, 1, -1, -1, -1])]


def test_repeats_are_counted():
    assert Division(10, 0, 4, World()).num_repeats == 2
    assert Division(10, 0, 4, World(), "short").num_repeats == 0
    assert Division(12, 0, 4, World()).num_repeats == 0


def test_a_worker_takes_every_third_step():
    division = Division(100, 0, 10, World())
    assert [step.step for step in division.steps(1, 10, 3)] == [1, 4, 7]


@pytest.mark.parametrize(("name", "value"), [("tail", "wrap"), ("batch_size", 0), ("start", 11)])
def test_an_argument_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must"):
        Division(**({"epoch_size": 10, "start": 0, "batch_size": 2, "world": World()} | {name: value}))


worlds = st.tuples(st.integers(1, 5), st.integers(1, 4))


@given(worlds, st.integers(1, 200), st.integers(1, 9), st.data())
def test_i1_every_position_is_read_once_and_only_padding_repeats(shape, size, batch, data):
    hosts, ranks = shape
    start = data.draw(st.integers(0, size))
    divisions = [Division(size, start, batch, world(r, hosts, ranks)) for r in range(hosts * ranks)]
    read = [p for d in divisions for s in d.steps(0, d.num_steps) for p in s.positions.tolist()]
    assert sorted(p for p in read if p >= 0) == list(range(start, size))
    assert read.count(-1) == divisions[0].num_repeats < divisions[0].global_batch


@given(worlds, st.integers(1, 200), st.integers(1, 9), st.sampled_from(["pad", "short", "drop"]), st.data())
def test_i4_ranks_take_equally_many_steps_and_share_no_position(shape, size, batch, tail, data):
    hosts, ranks = shape
    start = data.draw(st.integers(0, size))
    divisions = [Division(size, start, batch, world(r, hosts, ranks), tail) for r in range(hosts * ranks)]
    taken = [d.steps(0, d.num_steps) for d in divisions]
    assert len({len(steps) for steps in taken}) == 1
    for step in zip(*taken, strict=True):
        real = [p for part in step for p in part.positions.tolist() if p >= 0]
        assert len(real) == len(set(real))
        assert all(part.lookup.size > 0 for part in step)


@given(worlds, worlds, st.integers(1, 300), st.integers(1, 6), st.integers(1, 6), st.data())
def test_i3_the_rest_after_a_restart_on_another_world_is_the_rest(shape, other, size, batch, other_batch, data):
    """k steps on one world, the rest on another with another batch size: global batches are spans of one order."""
    first = [Division(size, 0, batch, world(r, *shape)) for r in range(shape[0] * shape[1])]
    stop = data.draw(st.integers(0, first[0].num_steps))
    before = {p for d in first for s in d.steps(0, stop) for p in s.positions.tolist()} - {-1}
    cursor = min(size, stop * first[0].global_batch)
    assert before == set(range(cursor))
    second = [Division(size, cursor, other_batch, world(r, *other)) for r in range(other[0] * other[1])]
    for step in range(second[0].num_steps):
        span = {p for d in second for p in d.steps(step, step + 1)[0].positions.tolist()} - {-1}
        begin = cursor + step * second[0].global_batch
        assert span == set(range(begin, min(size, begin + second[0].global_batch)))


@given(worlds, st.integers(1, 5), st.integers(1, 200), st.integers(1, 6))
def test_i3_workers_share_a_ranks_batches_without_changing_them(shape, workers, size, batch):
    for rank in range(shape[0] * shape[1]):
        division = Division(size, 0, batch, world(rank, *shape))
        alone = division.steps(0, division.num_steps)
        dealt = [division.steps(w, division.num_steps, workers) for w in range(workers)]
        for step in alone:
            again = dealt[step.step % workers][step.step // workers]
            assert np.array_equal(step.positions, again.positions)


@pytest.mark.parametrize(("hosts", "nodes"), [(2, 8), (4, 8), (8, 8)])
def test_a_host_reads_only_its_own_runs_when_hosts_divide_canonical_nodes(hosts, nodes):
    for rank in range(hosts * 2):
        steps = Division(nodes * 30, 0, 3, world(rank, hosts, 2))
        places = {p % nodes for s in steps.steps(0, steps.num_steps) for p in s.positions.tolist()}
        assert places <= {place for place in range(nodes) if place % hosts == rank // 2}
