"""Held-out files: the exact share, the same ones everywhere, and stable when files are added; and fixed splits."""

import pytest

from smalti.sources.image_folder import TEST, TRAIN, VALIDATION, ImageFile, ImageFolder, fixed_split, held_out
from smalti.spark.prepare import PrepareOptions, splits_of

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


def folder_of(paths):
    """One class with these files."""
    return ImageFolder("photos", tuple(ImageFile(path, 0, 1, "") for path in paths), ("roses",), "digest")


MANY = [f"roses/{n}.jpg" for n in range(2_000)]


@pytest.mark.parametrize("options", [{"test_fraction": 0.2}, {"fixed_splits": True}])
def test_a_file_in_a_fixed_split_never_changes_it_whatever_comes_or_goes(options):
    chosen = PrepareOptions(validation_fraction=0.1, **options)
    whole = splits_of(folder_of(MANY), chosen)
    assert splits_of(folder_of(MANY[::7]), chosen) == {path: whole[path] for path in MANY[::7]}
    assert splits_of(folder_of([*MANY, "roses/new.jpg"]), chosen).items() >= whole.items()


def test_fixed_splits_have_their_shares_on_average_and_another_seed_gives_others():
    chosen = PrepareOptions(validation_fraction=0.1, test_fraction=0.2)
    found = list(splits_of(folder_of(MANY), chosen).values())
    assert {name: round(found.count(name) / len(found), 1) for name in found} == {
        TRAIN: 0.7,
        TEST: 0.2,
        VALIDATION: 0.1,
    }
    assert fixed_split("roses/1.jpg", validation=1.0, test=0.0, seed=0) == VALIDATION
    other = PrepareOptions(validation_fraction=0.1, test_fraction=0.2, seed=1)
    assert splits_of(folder_of(MANY), other) != splits_of(folder_of(MANY), chosen)


def test_shares_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(ValueError, match="test_fraction"):
        PrepareOptions(validation_fraction=0.5, test_fraction=0.5)
