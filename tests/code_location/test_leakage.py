"""Held-out rows that are trained on as well, found in the shards."""

from smalti.catalog.verify import find_leaked_rows
from tests.code_location.shard_sets import publish_rows, row
from tests.stores import MemoryStore


def test_rows_of_a_split_that_are_trained_on_too_are_counted_and_shown() -> None:
    store = MemoryStore()
    splits = {"train": [row(n) for n in range(10)], "validation": [row(11), row(3), row(4)], "test": [row(3), row(12)]}
    found = find_leaked_rows(store, publish_rows(store, splits))
    assert (found.trained_on, found.held_out, found.leaked) == ("train", 5, 3)
    assert sorted((each.split, each.sample, each.row["path"]) for each in found.examples) == [
        ("test", 0, "roses/3.jpg"),
        ("validation", 1, "roses/3.jpg"),
        ("validation", 2, "daisy/4.jpg"),
    ]


def test_the_largest_split_is_trained_on_where_none_is_called_train() -> None:
    store = MemoryStore()
    found = find_leaked_rows(store, publish_rows(store, {"odd": [row(1)], "even": [row(0), row(1)]}))
    assert (found.trained_on, found.held_out, found.leaked) == ("even", 1, 1)


def test_a_set_of_one_split_has_no_held_out_rows() -> None:
    store = MemoryStore()
    found = find_leaked_rows(store, publish_rows(store, {"train": [row(1), row(1)]}))
    assert (found.held_out, found.leaked, found.examples) == (0, 0, ())
