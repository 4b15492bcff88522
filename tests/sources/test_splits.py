"""Held-out files: the exact share, the same ones everywhere, and stable when files are added."""

import pytest

from smalti.sources.image_folder import held_out

PATHS = [f"roses/{n}.jpg" for n in range(100)]


@pytest.mark.parametrize(
    ("files", "fraction", "expected"),
    [(100, 0.1, 10), (100, 0.0, 0), (7, 0.1, 1), (1, 0.5, 0), (2, 0.9, 1), (0, 0.5, 0), (15, 0.1, 2), (3, 0.99, 2)],
)
def test_the_share_is_exact_and_leaves_something_on_both_sides(files, fraction, expected):
    assert len(held_out(PATHS[:files], fraction=fraction, seed=0)) == expected


def test_the_choice_depends_only_on_path_and_seed():
    chosen = held_out(PATHS, fraction=0.2, seed=4)
    assert held_out(reversed(PATHS), fraction=0.2, seed=4) == chosen
    assert held_out(PATHS, fraction=0.2, seed=5) != chosen


def test_adding_files_moves_few_others():
    before = held_out(PATHS, fraction=0.1, seed=0)
    after = held_out([*PATHS, *(f"roses/new{n}.jpg" for n in range(10))], fraction=0.1, seed=0)
    assert len(after) == 11
    moved_in = {path for path in after - before if not path.startswith("roses/new")}
    assert len(moved_in) + len(before - after) <= 3
    assert not (moved_in and before - after), "none goes in while another goes out"


def test_a_larger_share_contains_the_smaller_one():
    assert held_out(PATHS, fraction=0.1, seed=0) < held_out(PATHS, fraction=0.3, seed=0)
