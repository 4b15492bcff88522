"""The number of transfers at once: found by measuring."""

from smalti.cache.transfer import (
    MAX_TRANSFERS,
    MIN_GAIN,
    MIN_TRANSFERS,
    TRIAL_SECONDS,
    TRIALS_ON_HOLD,
    ConcurrencyTuner,
)


class Link:
    """A simulated link, and a clock that advances with each measurement."""

    def __init__(self, rate_at):
        self.now, self.rate_at = 0.0, rate_at
        self.tuner = ConcurrencyTuner(lambda: self.now)

    def fetch(self, slices, *, is_full=True):
        seen = []
        for _ in range(slices):
            self.now += TRIAL_SECONDS
            self.tuner.add_bytes(int(self.rate_at(self.tuner.max_transfers) * TRIAL_SECONDS))
            self.tuner.adjust(is_saturated=is_full)
            seen.append(self.tuner.max_transfers)
        return seen


def test_transfers_grow_to_the_maximum_while_the_link_gains():
    assert Link(lambda num: num * 10e6).fetch(8) == [6, 9, 13, 19, 28, 32, 32, 32]


def test_a_saturated_link_keeps_the_minimum():
    seen = Link(lambda num: 200e6).fetch(2 + TRIALS_ON_HOLD)
    assert seen[:2] == [6, 4], "raised once, and reset"
    assert set(seen[2:]) == {4}, "and not changed during the hold"


def test_a_larger_number_is_tried_again_after_the_hold():
    link = Link(lambda num: 200e6)
    link.fetch(2 + TRIALS_ON_HOLD)
    link.rate_at = lambda num: num * 50e6
    assert link.fetch(3) == [6, 9, 13]


def test_growth_ends_where_the_link_is_saturated():
    assert Link(lambda num: min(num * 10e6, 95e6)).fetch(6) == [6, 9, 13, 9, 9, 9]


def test_times_without_queued_transfers_do_not_count():
    link = Link(lambda num: num * 10e6)
    assert set(link.fetch(9, is_full=False)) == {4}


def test_only_the_first_transfers_come_in_parts():
    tuner = ConcurrencyTuner()
    with tuner.transfer() as first, tuner.transfer() as second, tuner.transfer() as third:
        assert (first, second, third) == (4, 2, 1)
    with tuner.transfer() as again:
        assert again == 1


def test_the_constants_are_those_that_these_tests_assume():
    assert (MIN_TRANSFERS, MAX_TRANSFERS, MIN_GAIN) == (4, 32, 1.1)
