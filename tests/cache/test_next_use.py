"""The next use of a shard."""

import numpy as np

from smalti.cache.next_use import NEVER, UpcomingUses, Uses


def plan(*sections):
    """Return the uses of sections of (step, shard), and the list of the sections that were looked up."""
    seen = []

    def future():
        for section in sections:
            seen.append(section)
            steps, shards = np.array(section).T
            yield Uses(shards, steps, int(steps.max()) + 1)

    upcoming = UpcomingUses()
    upcoming.plan(future())
    return upcoming, seen


def next_uses(upcoming, *shards):
    return upcoming.next_use(np.array(shards)).tolist()


def test_the_next_use_is_the_first_from_the_current_step_on():
    upcoming, _ = plan([(0, 5), (1, 7), (2, 5), (4, 7)])
    assert next_uses(upcoming, 5, 7, 9) == [0, 1, NEVER]
    upcoming.advance(1)
    assert next_uses(upcoming, 5, 7) == [2, 1]
    upcoming.advance(3)
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
    upcoming.advance(5)
    assert next_uses(upcoming, 2) == [9]
    upcoming.plan(iter([Uses(np.array([2]), np.array([3]), 4)]))
    assert next_uses(upcoming, 1, 2) == [NEVER, 3]


def test_lookahead_is_bounded_and_later_uses_count_as_never(monkeypatch):
    monkeypatch.setattr("smalti.cache.next_use.MAX_LOOKAHEAD", 3)
    upcoming, seen = plan(*[[(step, step % 2)] for step in range(9)], [(9, 7)])
    assert next_uses(upcoming, 7) == [NEVER]
    assert len(seen) == 4
    upcoming.advance(9)
    assert next_uses(upcoming, 7) == [9], "past uses make space for later ones"


def test_without_a_plan_no_use_is_known():
    assert not UpcomingUses().is_known
    assert next_uses(UpcomingUses(), 1) == [NEVER]
