"""Lossless: any number or text in a line of a JSONL, CSV, TSV or XSV shard is read as it was, alone and in a batch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.format import ShardOptions
from smalti.format.reading.joining import open_shard
from smalti.format.text import TextLayout, text_schema
from tests.format.reading_back import refusal_of
from tests.hostile.files import scratch_files
from tests.text_writers import TextBuilder

LAYOUTS = {
    "json": ("json", "\n", None),
    "json without line ends": ("json", "", None),
    "csv": ("csv", "\n", ","),
    "tsv": ("tsv", "\r\n", "\t"),
    "xsv": ("xsv", "\n", "::"),
    "xsv of words": ("xsv", "END", "aba"),
}
VALUES = {
    "int": st.integers(-(2**70), 2**70),
    "float": st.one_of(st.floats(), st.sampled_from([-0.0, 1e308, 5e-324, 0.10000000149011612])),
    "str": st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.sampled_from(["", ",", "\n", "\r", "\t", ":", "::", ":::", '"', "a,b", "nan", "1", " 1", "\x00", "\x85",
        "\u2028", "END", "ab", "a"]),
    ),
}  # fmt: skip


def is_same(given_value, read):
    if isinstance(given_value, float) and math.isnan(given_value):
        return type(read) is float and math.isnan(read)
    return type(read) is type(given_value) and repr(read) == repr(given_value)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=150)
@given(encoding=st.sampled_from(["int", "float", "str"]), data=st.data())
def test_any_value_of_its_type_comes_back_as_it_was(layout, encoding, data):
    kind, newline, separator = LAYOUTS[layout]
    schema = text_schema({"n": "int", "x": encoding, "y": "str"})
    builder = TextBuilder(TextLayout(kind, schema, newline, separator), ShardOptions(hashes=(), size_limit=None))
    taken = []
    for value in data.draw(st.lists(VALUES[encoding], min_size=1, max_size=4)):
        refusal = refusal_of(builder.add, {"n": len(taken), "x": value, "y": "b"})
        if refusal is None:
            taken.append(value)
        else:  # a helper of the tests refuses what would be another line
            assert encoding == "str"
            assert separator is not None
    for filled in builder.finish():
        built = filled.seal()
        with scratch_files([bytes(data) for data in built.payloads]) as paths:
            shard = open_shard(paths, built.info)
            rows = [shard[number] for number in range(len(shard))]
            batch = shard.batch(np.arange(len(shard)))
            shard.close()
        assert [row["n"] for row in rows] == list(range(len(taken)))
        assert {row["y"] for row in rows} == {"b"}
        for number, value in enumerate(taken):
            assert is_same(value, rows[number]["x"])
            assert batch["x"][number] == rows[number]["x"] or value != value
        taken = []
    assert taken == []
