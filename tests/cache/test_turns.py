"""What readers of one order, some steps apart, need first: worked out by hand."""

import random

import numpy as np
import pytest

from smalti.cache.agenda import NEVER, Agenda, Uses
from smalti.cache.bound import least_bytes
from smalti.cache.leases import Lease, Needs, needed_by_others
from smalti.cache.turns import Seat, Side, Turns

NEEDED = [  # by step, by rank
    [[1, 3], [2]],
    [[1], [2, 3]],
    [[4], [1]],
    [[5], [5]],
    [[2], [6]],
]


def turns_of(seat, needed=NEEDED):
    """The turns of one reader, and its agenda, which knows what all ranks need."""
    pairs = sorted({(step, shard) for step, ranks in enumerate(needed) for each in ranks for shard in each})
    steps, shards = np.array(pairs).T
    agenda = Agenda()
    agenda.plan(iter([Uses(shards, steps, len(needed))]))
    return Turns(Side(seat, lambda first, stop: [list(map(np.array, each)) for each in needed[first:stop]]), agenda)


def test_what_a_slower_reader_needs_still_is_needed_though_our_own_step_is_later():
    turns = turns_of(Seat(0))
    standing = turns.standing([(Seat(1), (1, 3))], own=(3, 0))
    # rank 1 is over with shard 2 of step 1, and needs 3 of it and 1 of step 2
    assert standing.uses([1, 2, 3, 4, 5, 6]) == [2, 4, 1, NEVER, 3, 4]
    assert standing.needed_before((3, 5)) == [3, 1]
    assert standing.needed_before((4, 3)) == [3, 1, 5, 2]


def test_behind_a_place_the_next_use_is_told():
    standing = turns_of(Seat(0)).standing([(Seat(1), (0, 0))], own=(1, 0))
    assert standing.uses([1, 2, 3]) == [1, 0, 1]
    assert standing.uses([1, 2, 3], after=(1, 2)) == [2, 4, 1]


def test_a_worker_has_its_own_steps_alone():
    turns = turns_of(Seat(0, 0, 2))
    others = [(Seat(0, 1, 2), (3, 0)), (Seat(1, 0, 2), (2, 0)), (Seat(1, 1, 2), (1, 3))]
    standing = turns.standing(others, own=(2, 0))
    # rank 0: steps 0 and 1 are over; rank 1: worker 1 is in step 1, worker 0 has read step 0
    assert standing.uses([1, 2, 3]) == [2, 4, 1]


def test_nobody_near_is_nobody_to_wait_for():
    turns = turns_of(Seat(0))
    assert turns.standing([], own=(1, 0)) is None
    assert turns.standing([(Seat(1), (900, 0))], own=(1, 0)) is None


def test_two_readers_of_one_seat_are_two_jobs_and_what_the_slower_one_needs_counts():
    standing = turns_of(Seat(0)).standing([(Seat(1), (3, 0)), (Seat(1), (1, 0))], own=(3, 0))
    assert not standing.is_one_job
    assert standing.uses([3, 1]) == [1, 2]


def test_who_does_not_tell_its_place_within_a_step_makes_it_rough():
    turns = turns_of(Seat(0))
    assert turns.standing([(Seat(1), (1, 0))], own=(1, 0)).is_exact
    assert not turns.standing([(Seat(1), (1, -1))], own=(1, 0)).is_exact


def test_a_lease_tells_seat_and_place(tmp_path):
    tmp_path.chmod(0o700)
    lease = Lease(tmp_path)
    lease.renew(Needs("order", 7, {"a.mds": 7}, (7, 3), Seat(1, 0, 2)))
    lease.reached(8, (9, 0))
    assert needed_by_others(tmp_path) == [Needs("order", 8, {"a.mds": 7}, (9, 0), Seat(1, 0, 2))]
    lease.reached(8)
    assert needed_by_others(tmp_path)[0].place is None
    lease.close()


def read_in_any_order(needed, room, seed):
    """Fetches of all ranks, one thread each, in an order of chance, each asking `Standing` as the cache does."""
    chance, ranks = random.Random(seed), len(needed[0])
    seats = [Seat(rank) for rank in range(ranks)]
    turns = [turns_of(seat, needed) for seat in seats]
    work = [[(step, shard) for step, each in enumerate(needed) for shard in each[rank]] for rank in range(ranks)]
    here, fetched, idle = set(), 0, 0
    while any(work):
        rank = chance.choice([rank for rank in range(ranks) if work[rank]])
        place, shard = work[rank][0], work[rank][0][1]
        others = [(seats[each], work[each][0]) for each in range(ranks) if each != rank and work[each]]
        standing = turns[rank].standing(others, own=place)
        if shard not in here and len(here) == room and standing is not None:
            turn = standing.uses([shard])[0], shard
            victim = max(here, key=lambda each: (standing.uses([each], turn)[0], -each))
            is_needed = standing.uses([victim]) != standing.uses([victim], turn)
            if is_needed or not here.issuperset(standing.needed_before(turn)):
                idle += 1
                assert idle < 10_000, "nobody goes on"
                continue
            here.remove(victim)
        elif shard not in here and len(here) == room:
            here.remove(max(here, key=lambda each: turns[rank]._agenda.use_from(np.array([each]), *place)[0]))
        fetched += shard not in here
        here.add(shard)
        work[rank].pop(0)
        idle = 0
    return fetched


@pytest.mark.parametrize("room", [10, 25])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_eight_readers_at_any_speeds_fetch_at_most_a_tenth_more_than_the_least(room, seed):
    """100 shards; windows of eight are mixed, and each of eight readers needs two of the window at a step."""
    chance = random.Random(seed)
    needed = [
        [sorted(chance.sample(range(8 * window, 8 * window + 8), 2)) for _ in range(8)]
        for window in range(12)
        for _ in range(4)
    ]
    order = [shard for each in needed for shard in sorted(set().union(*each))]
    least = least_bytes(order, [1] * 100, [1] * 100, room)
    assert read_in_any_order(needed, room, seed) <= 1.1 * least
