"""How many fetches are under way at once: found by trying."""

from smalti.cache.prefetch import FEWEST, GAIN, HOLD_SLICES, MOST, SLICE_SECONDS, Pace


class Link:
    """A link, and a clock that goes on as long as each stretch of fetching takes."""

    def __init__(self, rate_at):
        self.now, self.rate_at = 0.0, rate_at
        self.pace = Pace(lambda: self.now)

    def fetch(self, slices, *, is_full=True):
        seen = []
        for _ in range(slices):
            self.now += SLICE_SECONDS
            self.pace.arrived(int(self.rate_at(self.pace.at_once) * SLICE_SECONDS))
            self.pace.judge(is_full=is_full)
            seen.append(self.pace.at_once)
        return seen


def test_a_link_that_gains_by_more_fetches_gets_them_up_to_a_bound():
    assert Link(lambda at_once: at_once * 10e6).fetch(8) == [6, 9, 13, 19, 28, 32, 32, 32]


def test_a_link_that_is_full_keeps_the_fewest():
    seen = Link(lambda at_once: 200e6).fetch(2 + HOLD_SLICES)
    assert seen[:2] == [6, 4], "tried once, and taken back"
    assert set(seen[2:]) == {4}, "and left alone for a while"


def test_a_number_that_was_good_is_tried_again_later():
    link = Link(lambda at_once: 200e6)
    link.fetch(2 + HOLD_SLICES)
    link.rate_at = lambda at_once: at_once * 50e6
    assert link.fetch(3) == [6, 9, 13]


def test_growth_ends_where_the_link_is_full():
    assert Link(lambda at_once: min(at_once * 10e6, 95e6)).fetch(6) == [6, 9, 13, 9, 9, 9]


def test_a_stretch_in_which_less_was_wanted_says_nothing():
    link = Link(lambda at_once: at_once * 10e6)
    assert set(link.fetch(9, is_full=False)) == {4}


def test_the_first_fetches_come_in_parts_and_later_ones_whole():
    pace = Pace()
    with pace.fetch() as first, pace.fetch() as second, pace.fetch() as third:
        assert (first, second, third) == (4, 2, 1)
    with pace.fetch() as again:
        assert again == 1


def test_the_numbers_that_these_tests_are_written_for():
    assert (FEWEST, MOST, GAIN) == (4, 32, 1.1)
