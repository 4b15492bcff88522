"""The next use of a shard."""

import numpy as np

from smalti.cache.leases import NEVER, Outline, UpcomingUses, Uses


def plan(*sections, **options):
    """Return the uses of sections of (step, shard), and the list of the sections that were looked up."""
    seen = []

    def future():
        for section in sections:
            seen.append(section)
            steps, shards = np.array(section).T
            yield Uses(shards, steps, int(steps.max()) + 1)

    upcoming = UpcomingUses(**options)
    upcoming.plan(future())
    return upcoming, seen


def next_uses(upcoming, *shards):
    return upcoming.next_use(np.array(shards)).tolist()


def test_the_next_use_is_the_first_from_the_current_step_on():
    upcoming, _ = plan([(0, 5), (1, 7), (2, 5), (4, 7)])
    assert next_uses(upcoming, 5, 7, 9) == [0, 1, NEVER]
    upcoming.current_step = 1
    assert next_uses(upcoming, 5, 7) == [2, 1]
    upcoming.current_step = 3
    assert next_uses(upcoming, 5, 7) == [NEVER, 4]


def test_within_a_step_shards_have_turns_by_number():
    upcoming, _ = plan([(0, 1), (0, 2), (0, 3), (1, 1), (1, 3)])
    assert upcoming.next_use_after(np.array([1, 2, 3]), 0, 2).tolist() == [1, NEVER, 0]


def test_no_more_is_looked_up_than_is_requested():
    upcoming, seen = plan([(0, 1)], [(1, 2)], [(2, 3)])
    assert next_uses(upcoming, 2) == [1]
    assert len(seen) == 2


def test_a_new_plan_begins_at_step_0_and_replaces_the_old_one():
    upcoming, _ = plan([(0, 1), (9, 2)])
    upcoming.current_step = 5
    assert next_uses(upcoming, 2) == [9]
    upcoming.plan(iter([Uses(np.array([2]), np.array([3]), 4)]))
    assert next_uses(upcoming, 1, 2) == [NEVER, 3]


def test_lookahead_is_bounded_and_later_uses_count_as_never():
    upcoming, seen = plan(*[[(step, step % 2)] for step in range(9)], [(9, 7)], max_lookahead=3)
    assert next_uses(upcoming, 7) == [NEVER]
    assert len(seen) == 4
    upcoming.current_step = 9
    assert next_uses(upcoming, 7) == [9], "past uses make space for later ones"


def outline(*pieces, end):
    """Return the outline of an epoch from (shard, first step, step after the last)."""
    shards, begins, ends = np.array(pieces).T
    return Outline(shards, begins, ends, end)


def test_beyond_the_lookahead_the_outline_of_this_and_the_next_epoch_is_used():
    """Epochs of 10 steps; 4 are looked up. Shard 7 is needed from step 8, shard 2 again from 12, shard 5 never."""
    steps = iter([Uses(np.array([step % 2]), np.array([step]), step + 1) for step in range(20)])
    epochs = [outline((0, 0, 6), (1, 0, 4), (2, 0, 3), (7, 8, 10), end=10), outline((2, 12, 14), (7, 11, 13), end=20)]
    upcoming = UpcomingUses(max_lookahead=3)
    upcoming.plan(steps, outline=iter([*epochs, outline((5, 25, 26), end=30)]))
    assert next_uses(upcoming, 5, 7, 2) == [NEVER, 8, 12]
    assert next_uses(upcoming, 0, 1) == [0, 1], "as looked up"
    upcoming.current_step = 3
    assert next_uses(upcoming, 0, 1) == [4, 3]
    upcoming.current_step = 4
    assert next_uses(upcoming, 1) == [5], "looked up, although its outline ended: it only counts for later steps"


def test_a_use_after_a_turn_beyond_the_lookahead_is_not_before_that_turn():
    """4 steps are looked up. Shard 7 is needed from step 5 to 6, and again from 11; shard 8 from 7 to 10."""
    steps = iter([Uses(np.array([0]), np.array([step]), step + 1) for step in range(20)])
    upcoming = UpcomingUses(max_lookahead=3)
    upcoming.plan(steps, outline=iter([outline((7, 5, 7), (8, 7, 11), (7, 11, 13), end=20)]))
    assert next_uses(upcoming, 7, 8) == [5, 7]
    assert upcoming.next_use_after(np.array([7, 8]), 8, -1).tolist() == [11, 8]
    assert upcoming.next_use_after(np.array([7, 8]), 8, 8).tolist() == [11, 9], "after the turn of 8 at step 8"


def test_without_a_plan_no_use_is_known():
    assert not UpcomingUses().is_known
    assert next_uses(UpcomingUses(), 1) == [NEVER]
