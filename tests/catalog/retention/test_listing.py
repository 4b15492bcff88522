"""A listing in compressed form has all that the store reported."""

import tracemalloc

from smalti.catalog.retention.sweep import CompressedRows, Names, listed_objects
from smalti.storage import ObjectInfo


def test_every_object_is_listed_again_in_order_with_size_and_time():
    odd = ["a b", "ä/ö", "line\nbreak", "not utf-8 \udcff", '"quoted"', "a" * 300]
    found = [ObjectInfo(key, number, "etag", 1.1 * number) for number, key in enumerate(odd)]
    found += [ObjectInfo(f"w/{number:07}", 1 << 50, "", None) for number in range(9000)]
    listing = listed_objects(iter(found))
    expected = [(each.key, each.num_bytes, each.changed) for each in found]
    for _ in range(2):
        assert [(each.key, each.num_bytes, each.changed) for each in listing] == expected
    assert list(listed_objects([])) == []


def test_a_hundred_thousand_objects_take_eight_megabytes_during_iteration():
    def found():
        for number in range(100_000):
            yield ObjectInfo(
                f"20261122t000000-0123456789abcdef/{number:05}-0a1b2c3d/shard.mds", 60_000 + number, "", 1e9
            )

    tracemalloc.start()
    try:
        listing = listed_objects(found())
        kept = tracemalloc.get_traced_memory()[0]
        in_all = sum(1 for _ in listing)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert in_all == 100_000
    assert kept < 3_000_000
    assert peak < 8_000_000


def test_a_set_of_names_contains_exactly_the_names_given():
    names = Names([["a", "b"], [], (f"n{number}" for number in range(3000)), ["b", "\udcff"]])
    assert all(name in names for name in ("a", "b", "n0", "n2999", "\udcff"))
    assert not any(name in names for name in ("c", "n3000", "", "A"))
    assert "a" not in Names([])


def test_joined_values_are_those_of_all_parts_in_order():
    rows = CompressedRows(lambda number: (number,), lambda number: number)
    for number in range(2, 9000):
        rows.add(number)
    assert rows == range(2, 9000)
    found = rows
    found.first += [0, 1]
    found.last.append(9000)
    assert found == range(9001)
    assert found != range(9000)
    assert (len(found), found[0], found[8999], found[-1]) == (9001, 0, 8999, 9000)
    assert found[8997:] == (8997, 8998, 8999, 9000)
    assert CompressedRows(tuple, tuple) == ()
