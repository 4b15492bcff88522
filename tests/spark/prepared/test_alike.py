"""Rows of a prepared table that are alike, from the digests and hashes that are kept beside them."""

from typing import Any, cast

import pyarrow as pa

from smalti.spark.prepared.alike import AlikePair, find_alike
from smalti.spark.prepared.table import FILES, PreparedTable

CLASSES = ("daisy", "roses")
FAR = {name: bytes([number * 37 % 256] * 8 + [number * 91 % 256] * 8) for number, name in enumerate("abcdef", 1)}


def near(look: bytes, bits: int) -> bytes:
    """A hash that differs from this one in so many bits."""
    return (int.from_bytes(look, "big") ^ ((1 << bits) - 1)).to_bytes(16, "big")


def table(*rows: tuple[str, int, str, str, bytes | None]) -> PreparedTable:
    """Rows of split, label, path, digest and hash."""
    files = [
        {
            "path": path, "label": label, "class_name": CLASSES[label], "split": split, "digest": digest,
            "part": "part", "perceptual_hash": look,
        }
        for split, label, path, digest, look in rows
    ]  # fmt: skip
    return PreparedTable(cast(Any, None), cast(Any, None), pa.Table.from_pylist(files, FILES))


def test_rows_with_nothing_in_common_are_not_alike():
    found = find_alike(table(*(("train", 0, name, name, look) for name, look in FAR.items())), max_bits=8)
    assert (found.rows, found.alike, found.equal, found.leaked, found.pairs) == (6, 0, 0, 0, ())
    assert found.is_complete


def test_near_duplicates_copies_leaks_and_wrong_labels_are_counted_and_shown():
    found = find_alike(
        table(
            ("train", 0, "daisy/1", "one", FAR["a"]),
            ("train", 0, "daisy/1 again", "one", FAR["a"]),
            ("validation", 0, "daisy/1 smaller", "one smaller", near(FAR["a"], 3)),
            ("validation", 1, "roses/2", "two", FAR["b"]),
            ("train", 0, "daisy/2", "two", FAR["b"]),
            ("train", 1, "roses/3", "three", FAR["c"]),
            ("train", 1, "roses/3 larger", "three larger", near(FAR["c"], 9)),
            ("validation", 1, "roses/4", "four", FAR["d"]),
            ("validation", 1, "roses/4 again", "four", FAR["d"]),
        ),
        max_bits=8,
    )
    assert (found.rows, found.alike, found.equal, found.of_other_class) == (9, 7, 6, 2)
    assert (found.held_out, found.leaked) == (4, 2)
    mixed = AlikePair(("roses/2", "daisy/2"), ("validation", "train"), ("roses", "daisy"), 0)
    assert found.pairs[0] == mixed
    assert [(pair.paths, pair.bits) for pair in found.leaks] == [
        (("daisy/1 smaller", "daisy/1"), 3),
        (("roses/2", "daisy/2"), 0),
    ]


def test_rows_without_a_hash_are_alike_if_they_are_equal():
    found = find_alike(
        table(
            ("train", 0, "daisy/1", "white", None),
            ("validation", 0, "daisy/2", "white", None),
            ("train", 0, "daisy/3", "grey", None),
            ("train", 0, "daisy/4", "photo", FAR["a"]),
        ),
        max_bits=8,
    )
    assert (found.unknown, found.alike, found.leaked) == (3, 2, 1)
    assert find_alike(table(("train", 0, "daisy/1", "white", None)), max_bits=8).alike == 0


def test_a_thousand_copies_of_one_image_are_one_look():
    found = find_alike(table(*(("train", 0, f"daisy/{number}", "one", FAR["a"]) for number in range(1000))), max_bits=8)
    assert (found.alike, found.equal, len(found.pairs)) == (1000, 1000, 30)
    assert found.is_complete
