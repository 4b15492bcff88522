"""Lossless or refused: any value given to any column, as a sample or as Arrow, is read back unchanged, or raises
`SchemaError` with column and row, and is not stored.
"""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import hypothesis.extra.numpy as npst
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.format.columns import image_bytes
from tests.format.reading_back import NUMBERS, is_same, new_builder, read_back, refusal_of

ENCODINGS = [
    *NUMBERS, "bytes", "str", "json", "str_int", "str_float", "str_decimal", "ndarray", "ndarray:int32",
    "ndarray:float64",
    "ndarray:uint8:3", "ndarray:float32:2,2", "jpeg", "png", "pil", "list[jpeg]", "list[png]", "list[pil]",
    "jpeg_array",
]  # fmt: skip
DTYPES = [
    "b1",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    ">i2",
    ">i4",
    ">i8",
    ">f4",
    ">f8",
    "c8",
    "M8[s]",
]


texts = st.text(st.characters(), max_size=8)  # lone surrogates, NUL, astral planes and right-to-left among them
numbers = st.one_of(
    st.booleans(), st.integers(-(2**65), 2**65), st.integers(-300, 300), st.floats(), st.floats(width=16), st.just(-0.0)
)
numpy_numbers = st.one_of(*(npst.from_dtype(np.dtype(name)) for name in DTYPES))
arrays = st.sampled_from(DTYPES).flatmap(
    lambda name: npst.arrays(name, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
shaped = st.sampled_from(DTYPES).flatmap(lambda name: npst.arrays(name, st.sampled_from([(3,), (2, 2)])))
images = st.sampled_from(["L", "RGB", "RGBA", "1", "P", "I", "F", "CMYK", "LA"]).map(
    lambda mode: Image.new(mode, (3, 2))
)
files = st.sampled_from([image_bytes("PNG"), image_bytes("JPEG"), image_bytes("GIF"), b"", b"\xff\xd8\xff"])
leaves = st.one_of(st.none(), numbers, texts, st.binary(max_size=9))
nested = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(0, 9), inner, max_size=2)
)
others = st.sampled_from(
    [date(2020, 1, 2), datetime(2020, 1, 2, tzinfo=timezone.utc), timedelta(1), {1, 2}, object, Ellipsis, 1j, range(3)]
)
values = st.one_of(
    leaves, numpy_numbers, arrays, shaped, shaped.map(lambda a: a[::-1]), shaped.map(np.asfortranarray),
    shaped.map(lambda a: a.T),
    shaped.map(lambda a: a.tolist()), images, files, st.lists(images | files, max_size=3), nested, others,
    st.decimals(allow_nan=True), st.fractions(), st.binary(max_size=9).map(bytearray),
    st.binary(max_size=9).map(memoryview),
)  # fmt: skip


@settings(max_examples=300)
@given(st.sampled_from(ENCODINGS), st.lists(values, min_size=1, max_size=3))
def test_any_value_comes_back_as_it_was_or_is_refused_with_its_column_and_row(encoding, given_values):
    columns = {"n": "int", "x": encoding}
    builder, taken = new_builder(columns), []
    for value in given_values:
        refusal = refusal_of(builder.add, {"n": len(taken), "x": value})
        if refusal is None:
            taken.append(value)
        else:
            assert (refusal.column, refusal.row) == ("x", len(taken))
    rows = read_back(builder, columns)
    assert [row["n"] for row, _ in rows] == list(range(len(taken)))
    for value, (row, stored) in zip(taken, rows, strict=True):
        assert is_same(encoding, value, row["x"], stored["x"])


# ---------------------------------------------------------------- as Arrow

_small = st.integers(-130, 130)
_floats = st.one_of(st.floats(), st.integers(-5, 5).map(float), st.floats(width=32))
ARROW = {
    **{f"int{n}": (getattr(pa, f"int{n}")(), st.integers(-(2 ** (n - 1)),
    2 ** (n - 1) - 1) | _small.filter(lambda i: abs(i) < 128))
       for n in (8, 16, 32, 64)},
    **{f"uint{n}": (getattr(pa, f"uint{n}")(), st.integers(0, 2**n - 1)) for n in (8, 16, 32, 64)},
    "float16": (pa.float16(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), _floats),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "large_string": (pa.large_string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "binary": (pa.binary(), files | st.binary(max_size=9)),
    "large_binary": (pa.large_binary(), files | st.binary(max_size=9)),
    "binary(3)": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "decimal": (pa.decimal128(20, 3), st.decimals(-(10**15), 10**15, places=3)),
    "decimal256": (pa.decimal256(60, 0), st.integers(-(10**50), 10**50).map(Decimal)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.just(datetime(2020, 1, 2, tzinfo=timezone.utc))),
    "duration": (pa.duration("s"), st.just(timedelta(1))),
    "null": (pa.null(), st.none()),
    "list<int32>": (pa.list_(pa.int32()), st.lists(_small, max_size=4)),
    "list<int64?>": (pa.list_(pa.int64()), st.lists(_small | st.none(), max_size=4)),
    "list<double>": (pa.large_list(pa.float64()), st.lists(_floats, min_size=1, max_size=4)),
    "list<uint8>[3]": (pa.list_(pa.uint8(), 3), st.lists(st.integers(0, 255), min_size=3, max_size=3)),
    "list<list<float>>": (pa.list_(pa.list_(pa.float32())), st.lists(st.lists(st.floats(width=32), max_size=2),
    max_size=3)),
    "list<float>[2][2]": (pa.list_(pa.list_(pa.float32(), 2), 2),
                          st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=2, max_size=2)),
    "list<string>": (pa.list_(pa.string()), st.lists(st.sampled_from(["a", "é", "\x00"]), max_size=3)),
    "struct": (pa.struct({"a": pa.int64(), "b": pa.string()}),
               st.fixed_dictionaries({"a": _small | st.none(), "b": st.sampled_from(["x", None])})),
}  # fmt: skip


@st.composite
def arrow_arrays(draw):
    kind, one = ARROW[draw(st.sampled_from(sorted(ARROW)))]
    present = draw(st.lists(one, min_size=1, max_size=4))
    if draw(st.integers(0, 3)) == 0:
        present.insert(draw(st.integers(0, len(present))), None)
    array = pa.array(present, kind)
    if draw(st.booleans()):  # a slice: everything lies behind an offset into the buffers
        array = pa.concat_arrays([array, array]).slice(draw(st.integers(1, len(array))), len(array))
    if draw(st.booleans()) and pa.types.is_string(kind):
        array = array.dictionary_encode()
    return array


@settings(max_examples=300)
@given(st.sampled_from(ENCODINGS), arrow_arrays())
def test_any_arrow_column_comes_back_as_it_was_or_is_refused_with_its_column_and_row(encoding, array):
    columns = {"n": "int", "x": encoding}
    builder = new_builder(columns)
    batch = pa.record_batch([pa.array(range(len(array))), array], ["n", "x"])
    refusal = refusal_of(builder.add_batch, batch)
    if refusal is not None:
        assert refusal.column == "x"
        assert 0 <= refusal.row < len(array)
        assert builder.finish() == []
        return
    rows = read_back(builder, columns)
    expected = array.to_pylist()
    assert None not in expected, "a null was stored"
    assert [row["n"] for row, _ in rows] == list(range(len(expected)))
    for value, (row, stored) in zip(expected, rows, strict=True):
        assert is_same(encoding, value, row["x"], stored["x"])
        if encoding == "ndarray":
            leaf = array.type
            while hasattr(leaf, "value_type"):
                leaf = leaf.value_type
            assert row["x"].dtype == leaf.to_pandas_dtype()
