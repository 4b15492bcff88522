"""Lossless or refused, row by row of the catalogue of faults (B1-B17), by `add` and by `add_batch`."""

import io
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions
from tests.format.columns import image_bytes
from tests.format.reading_back import new_builder, read_back, read_column
from tests.hostile.shard_kinds import plain_read

NULLS = {
    "float64": [1.5, None], "float32": [None, 1.5], "int": [2**53 + 1, None], "int8": [1, None], "str": ["a", None],
    "bytes": [b"a", None],
    "str_int": [1, None], "str_float": [1.0, None], "ndarray:int32": [[1], None], "jpeg": [image_bytes("JPEG"), None],
}  # fmt: skip


@pytest.mark.parametrize("encoding", NULLS)
def test_a_null_is_refused_and_becomes_neither_nan_nor_zero(encoding):
    given_values = NULLS[encoding]
    row = given_values.index(None)
    builder = new_builder({"x": encoding})
    with pytest.raises(SchemaError, match="null") as refusal:
        builder.add_batch(pa.record_batch([pa.array(given_values)], ["x"]))
    assert (refusal.value.column, refusal.value.row) == ("x", row)
    with pytest.raises(SchemaError, match="null"):
        builder.add({"x": None})
    assert builder.finish() == []


def test_integers_beside_nulls_elsewhere_keep_every_bit():
    table = {"a": [2**53 + 1, -(2**63), 2**63 - 1], "b": ["x", "y", "z"]}
    columns = {"a": "int", "b": "str"}
    builder = new_builder(columns)
    builder.add_batch(pa.record_batch([pa.array(table["a"]), pa.array(table["b"])], ["a", "b"]))
    assert [row["a"] for row, _ in read_back(builder, columns)] == table["a"]


@pytest.mark.parametrize(
    ("encoding", "bits", "kind"), [("int8", 8, pa.int8()), ("int16", 16, pa.int16()), ("uint8", 8, pa.uint8())]
)
def test_every_byte_and_short_comes_back_by_add_and_add_batch(encoding, bits, kind):
    low = 0 if encoding.startswith("u") else -(2 ** (bits - 1))
    everything = list(range(low, low + 2**bits))
    columns = {"x": encoding}
    by_rows, by_batch = new_builder(columns), new_builder(columns)
    for value in everything:
        by_rows.add({"x": value})
    by_batch.add_batch(pa.record_batch([pa.array(everything, kind)], ["x"]))
    for builder in (by_rows, by_batch):
        assert read_column(builder, "x") == everything
    for outside in (low - 1, low + 2**bits):
        with pytest.raises(SchemaError):
            new_builder(columns).add({"x": outside})


LAYOUTS = {
    "as it is": lambda a: a,
    "backwards": lambda a: a[::-1],
    "every second row": lambda a: a[::2],
    "transposed": lambda a: a.T,
    "Fortran": np.asfortranarray,
    "inner": lambda a: a[:, 1:],
}


@pytest.mark.parametrize("order", [">", "<", "="])
@pytest.mark.parametrize("code", ["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_arrays_in_any_byte_order_and_layout_keep_their_numbers(order, code, layout):
    array = layout(np.arange(1, 13).reshape(4, 3).astype(f"{order}{code}"))
    name = np.dtype(code).name
    columns = {"a": "ndarray", "b": f"ndarray:{name}", "c": f"ndarray:{name}:{','.join(map(str, array.shape))}"}
    builder = new_builder(columns)
    builder.add(dict.fromkeys(columns, array))
    ((row, _),) = read_back(builder, columns)
    for name in columns:
        assert row[name].tolist() == array.tolist()
        assert row[name].dtype == np.dtype(code)


def test_a_type_or_shape_that_changes_between_rows_is_refused_at_its_row():
    first = np.zeros((2, 2), np.float32)
    changed = {
        "ndarray:float32": [first.astype(np.float64), first.astype(np.int32), "text"],
        "ndarray:float32:2,2": [np.zeros((2, 3), np.float32), np.zeros(4, np.float32), first.astype(np.float16)],
    }
    for encoding, bad_values in changed.items():
        for bad in bad_values:
            builder = new_builder({"x": encoding})
            for _ in range(7):
                builder.add({"x": first})
            with pytest.raises(SchemaError) as refusal:
                builder.add({"x": bad})
            assert (refusal.value.column, refusal.value.row) == ("x", 7)
            builder.add({"x": first})
            assert len(read_back(builder, {"x": encoding})) == 8


def test_a_missing_and_an_unknown_column_are_refused_by_add_and_add_batch():
    columns = {"a": "int", "b": "int"}
    for bad in ({"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "B": 2}, {}, {"a": 1, "b": 2, 3: 4}):
        builder = new_builder(columns)
        with pytest.raises(SchemaError):
            builder.add(bad)
        assert builder.finish() == []
    for names in (["a"], ["a", "b", "c"], ["a", "B"], ["a", "a"], ["a", "b", "b"]):
        builder = new_builder(columns)
        with pytest.raises(SchemaError):
            builder.add_batch(pa.record_batch([pa.array([1])] * len(names), names))
        assert builder.finish() == []


@pytest.mark.parametrize("names", [["a", "A"], ["straße", "STRASSE"], ["é", "É"], ["I", "i"], [""]])
def test_columns_that_differ_only_in_case_and_empty_names_are_refused(names):
    with pytest.raises(SchemaError):
        Schema.from_columns(dict.fromkeys(names, "int"))


UNICODE = [
    "", "\x00", "a\x00b", "é", "e\u0301", "𝄞", "👩‍👩‍👧", "שלום", "مرحبا\u202e", "\ufeff", "\u2028", "\uffff",
    "\U0010ffff", "ﬁ", "İ", "\r\n", "�",
]  # fmt: skip


def test_unicode_comes_back_in_values_and_names_by_add_and_add_batch():
    names = [text for text in UNICODE if text]
    columns = dict.fromkeys(names, "str")
    by_rows, by_batch = new_builder(columns), new_builder(columns)
    for value in UNICODE:
        by_rows.add(dict.fromkeys(names, value))
    by_batch.add_batch(pa.record_batch([pa.array(UNICODE)] * len(names), names))
    for builder in (by_rows, by_batch):
        assert [row for row, _ in read_back(builder, columns)] == [dict.fromkeys(names, value) for value in UNICODE]


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf", b"ab\x80", b"\xf4\x90\x80\x80"]
)
def test_bytes_that_are_not_utf8_are_refused_as_text_by_add_and_add_batch(bad):
    builder = new_builder({"x": "str"})
    with pytest.raises(SchemaError):
        builder.add({"x": bad})
    for kind in (pa.binary(), pa.large_binary()):
        with pytest.raises(SchemaError) as refusal:
            builder.add_batch(pa.record_batch([pa.array([b"good", bad], kind)], ["x"]))
        assert refusal.value.row == 1
    for text in ("\ud800", "a\udfff", "\udcff"):
        with pytest.raises(SchemaError):
            builder.add({"x": text})
        with pytest.raises(SchemaError):
            Schema.from_columns({text: "int"})
    assert builder.finish() == []


def test_a_sample_larger_than_the_limit_stands_alone_and_no_shard_is_empty():
    builder = ShardBuilder(Schema.from_columns({"x": "bytes"}), ShardOptions(hashes=(), size_limit=64))
    given_values = [b"a" * 10_000, b"b", b"c" * 10_000, b"d"]
    built = [filled.seal() for value in given_values for filled in builder.add({"x": value})]
    built += [filled.seal() for filled in builder.finish()]
    assert [shard.info.samples for shard in built] == [1, 1, 1, 1]
    assert [plain_read(bytes(shard.payloads[0]), shard.info, 0) for shard in built] == [
        [value] for value in given_values
    ]


def _save(kind, mode="RGB", size=(8, 6), **options):
    out = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(out, kind, **options)
    return out.getvalue()


JPEG, PNG = _save("JPEG"), _save("PNG")
BAD_IMAGES = {
    "jpeg": {
        "empty": b"", "one byte": b"\xff", "start mark": b"\xff\xd8", "marks alone": b"\xff\xd8\xff\xd9",
        "half": JPEG[: len(JPEG) // 2],
        "without end mark": JPEG[:-2], "last byte missing": JPEG[:-1], "header alone": JPEG[:180], "png": PNG,
        "gif": _save("GIF", "P"),
        "bmp": _save("BMP"), "webp": b"RIFF\x1a\x00\x00\x00WEBPVP8 \x0e\x00\x00\x00", "tiff": _save("TIFF"),
        "html": b"<html></html>",
        "json": b'{"error": 404}', "zeros": bytes(500), "text": b"not an image", "pdf": b"%PDF-1.4\n%%EOF",
        "first byte missing": JPEG[1:],
        "start mark twice missing": JPEG[2:], "width 0": JPEG.replace(b"\x00\x06\x00\x08\x03", b"\x00\x06\x00\x00\x03",
        1),
        "end mark first": b"\xff\xd9" + JPEG, "base64": b"/9j/4AAQSkZJRgABAQ==",
    },
    "png": {
        "empty": b"", "signature": PNG[:8], "half": PNG[: len(PNG) // 2], "end missing": PNG[:-12],
        "last byte missing": PNG[:-1],
        "jpeg": JPEG, "gif": _save("GIF", "P"), "line ends changed": PNG.replace(b"\r\n", b"\n", 1),
        "width 0": PNG[:16] + bytes(4) + PNG[20:],
        "height 0": PNG[:20] + bytes(4) + PNG[24:], "zeros": bytes(100), "header missing": PNG[:8] + PNG[33:],
        "text": b"\x89PNG",
    },
}  # fmt: skip


def test_there_are_thirty_bad_images():
    assert sum(map(len, BAD_IMAGES.values())) >= 30
    assert JPEG not in BAD_IMAGES["jpeg"].values()
    assert PNG not in BAD_IMAGES["png"].values()


@pytest.mark.parametrize(
    ("encoding", "name"), [(encoding, name) for encoding, bad in BAD_IMAGES.items() for name in bad]
)
def test_a_bad_image_is_refused_at_its_row_by_add_and_add_batch(encoding, name):
    good, bad = {"jpeg": JPEG, "png": PNG}[encoding], BAD_IMAGES[encoding][name]
    builder = new_builder({"x": encoding})
    builder.add({"x": good})
    with pytest.raises(SchemaError) as refusal:
        builder.add({"x": bad})
    assert (refusal.value.column, refusal.value.row) == ("x", 1)
    with pytest.raises(SchemaError) as refusal:
        builder.add_batch(pa.record_batch([pa.array([good, good, bad, good])], ["x"]))
    assert (refusal.value.column, refusal.value.row) == ("x", 3)
    assert [stored["x"] for _, stored in read_back(builder, {"x": encoding})] == [good]


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_no_truncation_of_an_image_is_accepted_by_add_or_add_batch(encoding):
    good = {"jpeg": JPEG, "png": PNG}[encoding]
    builder = new_builder({"x": encoding})
    for end in range(len(good)):
        with pytest.raises(SchemaError):
            builder.add_batch(pa.record_batch([pa.array([good[:end]])], ["x"]))
        with pytest.raises(SchemaError):
            builder.add({"x": good[:end]})
    assert builder.finish() == []


def test_refused_samples_leave_no_trace_between_accepted_ones():
    columns = {"n": "int", "x": "str"}
    builder = new_builder(columns)
    for n in range(20):
        builder.add({"n": n, "x": "a" * n})
        with suppress(SchemaError):
            builder.add({"n": n, "x": None})
        with suppress(SchemaError):
            builder.add_batch(pa.record_batch([pa.array([1, 2]), pa.array(["a", None])], ["n", "x"]))
    assert [row for row, _ in read_back(builder, columns)] == [{"n": n, "x": "a" * n} for n in range(20)]
