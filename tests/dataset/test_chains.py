"""Runs that are resumed several times, each time on another world, as plans: every sample is read once, in one order.

A chain is a data set, an order, and segments of a run. A segment has its own hosts, ranks, replicas and batch size,
begins at the state of the one before, in JSON, and ends after some steps; the last one ends with the epoch.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti.cursor import Cursor, MixedStream
from smalti.dataset.order import Pass, Reading, RunOrder
from smalti.dataset.resume import first_cursor
from smalti.world import World
from tests.seeds import sized


@dataclass(frozen=True)
class Segment:
    hosts: int
    ranks_on_host: int
    replication: int
    batch_size: int
    part: float
    """Part of the remaining steps that it reads."""

    def worlds(self):
        num_ranks = self.hosts * self.ranks_on_host
        return [World.of_blocks(rank, num_ranks, self.hosts) for rank in range(num_ranks)]


@dataclass(frozen=True)
class Chain:
    sizes: list[int]
    options: RunOrder
    segments: list[Segment]
    epoch: int = 0


@st.composite
def chains(draw):
    options = RunOrder(
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 1 << 40)),
        num_canonical_nodes=draw(st.integers(1, 9)),
        shuffle_block_size=draw(st.sampled_from([7, 50, 1 << 18])),
        tail=draw(st.sampled_from(["pad", "short"])),
        affinity=draw(st.sampled_from([None, None, 0.0, 0.8])),
    )
    sizes = draw(st.lists(st.integers(0, 30), min_size=4, max_size=15))
    sizes[0] += 1
    return Chain(sizes, options, draw(st.lists(segments(), min_size=1, max_size=5)), draw(st.integers(0, 9)))


@st.composite
def segments(draw):
    replication = draw(st.sampled_from([1, 1, 2, 3]))
    hosts, ranks = draw(st.integers(1, 5)), draw(st.integers(1, 3)) * replication
    return Segment(hosts, ranks, replication, draw(st.integers(1, 8)), draw(st.floats(0, 1)))


def readings(chain, segment, cursor):
    options = replace(chain.options, replication=segment.replication)
    return [Reading(Pass(cursor, world), [chain.sizes], segment.batch_size, options) for world in segment.worlds()]


def read_segment(chain, segment, cursor, steps_of, consumed):
    """Read some steps of a segment into `consumed`, position by position, and return the cursor after them."""
    ranks = readings(chain, segment, cursor)
    num_steps = {reading.division.num_steps for reading in ranks}
    assert len(num_steps) == 1, "I4: all ranks take equally many steps"
    steps = steps_of(num_steps.pop())
    taken = [reading.steps(0, steps) for reading in ranks]
    for first in range(0, len(ranks), segment.replication):
        for other in taken[first + 1 : first + segment.replication]:
            assert_same(taken[first], other)
    groups = taken[:: segment.replication]
    for step in range(steps):
        held = np.concatenate([group[step][0].positions for group in groups])
        ids = np.concatenate([group[step][1] for group in groups])
        assert all(group[step][1].size for group in groups), "I4: every rank has something to read"
        for position, sample_id in zip(held.tolist(), ids.tolist(), strict=True):
            if position >= 0:
                assert position not in consumed, "I1, I4: a position is read once"
                consumed[position] = sample_id
    states = {json.dumps(reading.cursor_after(steps).to_state()) for reading in ranks}
    assert len(states) == 1, "I5: states are equal on all ranks"
    return Cursor.from_state(json.loads(states.pop()))


def assert_same(steps, other_steps):
    for (step, ids), (other, other_ids) in zip(steps, other_steps, strict=True):
        assert ids.tolist() == other_ids.tolist()
        assert step.positions.tolist() == other.positions.tolist()


def first_cursor_of(chain):
    world = chain.segments[0].worlds()[0].replicated(chain.options.replication)
    first = first_cursor(chain.options, world, [MixedStream("d", None, sum(chain.sizes))], [chain.sizes])
    return replace(first, epoch=chain.epoch)


def check(chain):
    cursor = begin = first_cursor_of(chain)
    consumed = {}
    for segment in chain.segments[:-1]:
        if cursor.epoch == begin.epoch:
            cursor = read_segment(chain, segment, cursor, lambda steps, part=segment.part: int(steps * part), consumed)
    if cursor.epoch == begin.epoch:
        cursor = read_segment(chain, chain.segments[-1], cursor, lambda steps: steps, consumed)
    assert (cursor.epoch, cursor.samples) == (chain.epoch + 1, 0)
    assert sorted(consumed.values()) == list(range(sum(chain.sizes))), "I1: every sample once"
    alone = Reading(Pass(begin, World()), [chain.sizes], 1, chain.options).plan
    expected = alone.sample_ids(0, len(alone)).tolist()
    assert consumed == {place: expected[place] for place in consumed}, "I2, I3: the order of a run that was never ended"


@settings(max_examples=100)
@given(chains())
def test_runs_resumed_many_times_read_every_sample_once_in_one_order(chain):
    check(chain)


@pytest.mark.slow
@settings(max_examples=sized(1000), suppress_health_check=list(HealthCheck))
@given(chains())
def test_many_chains(chain):
    check(chain)


SMALL = [
    (Segment(1, 1, 1, 7, 0.0), "pad"),
    (Segment(2, 2, 1, 3, 0.0), "short"),
    (Segment(3, 2, 2, 4, 0.0), "drop"),
]


@pytest.mark.parametrize(("segment", "tail"), SMALL)
def test_resuming_after_any_step_reads_the_uninterrupted_order(segment, tail):
    options = RunOrder(shuffle=True, num_canonical_nodes=4, shuffle_block_size=64, tail=tail)
    chain = Chain([30, 41, 7, 55], options, [segment])
    begin = first_cursor_of(chain)
    whole = readings(chain, segment, begin)
    num_steps = whole[0].division.num_steps
    uninterrupted = [[ids.tolist() for _, ids in rank.steps(0, num_steps)] for rank in whole]
    for step in range(num_steps):
        state = json.loads(json.dumps(whole[-1].cursor_after(step).to_state()))
        rest = readings(chain, segment, Cursor.from_state(state))
        assert [[ids.tolist() for _, ids in rank.steps(0, num_steps)] for rank in rest] == [
            rank[step:] for rank in uninterrupted
        ]


def test_a_run_continues_when_three_of_four_hosts_come_back():
    """16 canonical nodes, 4 hosts of 2 ranks; after 5 steps one host is lost, and the others read the rest."""
    options = RunOrder(shuffle=True, num_canonical_nodes=16)
    whole, lost = Segment(4, 2, 1, 3, 0.0), Segment(3, 2, 1, 3, 0.0)
    chain = Chain([40] * 10, options, [whole, lost])
    consumed = {}
    cursor = read_segment(chain, whole, first_cursor_of(chain), lambda steps: 5, consumed)
    assert (cursor.samples, len(consumed)) == (5 * 24, 5 * 24)
    cursor = read_segment(chain, lost, cursor, lambda steps: steps, consumed)
    assert cursor.epoch == 1
    assert sorted(consumed.values()) == list(range(400))
