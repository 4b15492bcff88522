"""Lossless or refused, for text shards: any value given to a column of JSONL, CSV, TSV or XSV is read back unchanged,
or raises `SchemaError` with column and row, and is not stored.
"""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.format import ShardOptions
from smalti.format.reading.joining import open_shard
from smalti.format.text import TextLayout, text_schema
from smalti.format.writing.builder import TextShardBuilder
from tests.format.reading_back import refusal_of
from tests.hostile.files import scratch_files

LAYOUTS = {
    "json": ("json", "\n", None),
    "json without line ends": ("json", "", None),
    "csv": ("csv", "\n", ","),
    "tsv": ("tsv", "\r\n", "\t"),
    "xsv": ("xsv", "\n", "::"),
    "xsv of words": ("xsv", "END", "aba"),
}
values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.binary(max_size=4),
    st.sampled_from(["", ",", "\n", "\r", "\t", ":", "::", ":::", '"', "a,b", "nan", "1", " 1", "\ud800", "\x00",
    "\x85", "\u2028", "END", "ab", "a"]),
    st.sampled_from([np.int8(-3), np.uint64(2**64 - 1), np.float32(0.1), np.float16(2), np.float64(-0.0),
    np.bool_(True), np.str_("é")]),
    st.sampled_from([Decimal("1.0"), 10**5000, [1], {"a": 1}, np.array([1]), np.array(1), object(), -0.0, 1e308,
    5e-324]),
)  # fmt: skip


def is_same(given_value, read):
    given_value = given_value.item() if isinstance(given_value, np.generic) else given_value
    if isinstance(given_value, float) and math.isnan(given_value):
        return type(read) is float and math.isnan(read)
    return type(read) is type(given_value) and repr(read) == repr(given_value)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=150)
@given(st.sampled_from(["int", "float", "str"]), st.lists(values, min_size=1, max_size=4))
def test_any_value_comes_back_as_it_was_or_is_refused_with_its_column_and_row(layout, encoding, given_values):
    kind, newline, separator = LAYOUTS[layout]
    schema = text_schema({"n": "int", "x": encoding, "y": "str"})
    builder = TextShardBuilder(TextLayout(kind, schema, newline, separator), ShardOptions(hashes=(), size_limit=None))
    taken = []
    for value in given_values:
        refusal = refusal_of(builder.add, {"n": len(taken), "x": value, "y": "b"})
        if refusal is None:
            taken.append(value)
        else:
            assert refusal.row == len(taken)
            assert refusal.column in {"x", "y", "n"}
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
