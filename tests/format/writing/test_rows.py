"""Single samples: the fast path gives the bytes of the checked encoder, refuses at once, and copies its input."""

from collections import OrderedDict, defaultdict
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import SchemaError
from smalti.format import Encoding, Schema, ShardBuilder, ShardOptions, parse_encoding
from smalti.format.writing.rows import FastPath, make_checked_encoder, make_fast_encoder
from tests.format.columns import COLUMNS, NAMES, image_bytes, json_values

NO_HASH = ShardOptions(hashes=(), size_limit=None)
GOOD = {
    "int": 1,
    "int8": 1,
    "float32": 0.5,
    "str": "a",
    "bytes": b"a",
    "jpeg": image_bytes("JPEG"),
    "ndarray:int32:2": np.ones(2, np.int32),
}
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(),
    st.sampled_from([np.float16(0.1), np.float32(0.1), np.float64(0.1), np.float32("nan"), np.float16(np.inf)]),
    st.sampled_from([np.int8(-3), np.uint64(2**64 - 1), np.int64(-(2**63)), np.bool_(True), np.array(5)]),
    st.decimals(allow_nan=False),
)
ARRAYS = st.builds(
    lambda dtype, shape, kind: np.ones(shape, dtype)[..., ::-1] if kind else np.asfortranarray(np.ones(shape, dtype)),
    st.sampled_from(["<i4", ">i4", "i2", "u1", "f8", ">f8", "?", "c8", "M8[s]", "S2"]),
    st.sampled_from([(3,), (2, 2), (1, 3, 2), (0,), (2, 0)]),
    st.booleans(),
) | st.just(np.ma.masked_array(np.arange(3, dtype=np.int32), [0, 1, 0]))
ANYTHING = st.one_of(
    NUMBERS,
    ARRAYS,
    st.none(),
    st.text(max_size=5) | st.just("\ud800") | st.just(np.str_("é")),
    st.binary(max_size=9) | st.binary(max_size=9).map(bytearray) | st.binary(max_size=9).map(memoryview),
    st.sampled_from([image_bytes("JPEG"), image_bytes("JPEG")[:-2], image_bytes("PNG"), b"\xff\xd8\xff\xd9"]),
    json_values,
)


def both_encoders(columns):
    """Return the fast path, which returns None for samples that it declines, and the checked encoder."""
    schema = Schema.from_columns(columns)
    long_way = make_checked_encoder(schema, schema.codecs())
    return make_fast_encoder(schema, schema.codecs(), lambda _: None), lambda sample: long_way(sample, 7)


@settings(max_examples=400)
@given(st.data(), st.lists(st.sampled_from([*NAMES, "float16", "ndarray", "pil"]), min_size=1, max_size=4))
def test_fast_path_gives_the_bytes_of_the_checked_encoder_or_declines(data, encodings):
    columns = {f"c{i}": encoding for i, encoding in enumerate(encodings)}
    short, long = both_encoders(columns)
    sample = {
        name: data.draw(COLUMNS[encoding][0] | ANYTHING if encoding in COLUMNS else ANYTHING)
        for name, encoding in columns.items()
    }
    found = short(sample)
    if found is not None:
        assert found == long(sample)


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("int", -5), ("int", True), ("int", np.int64(7)), ("uint8", 255), ("float64", 0.1), ("float32", 0.5),
        ("float32", np.float32(0.1)), ("float16", 1.5), ("bytes", b"ab"), ("str", "é"), ("jpeg", image_bytes("JPEG")),
        ("ndarray", np.ones((2, 3), np.int8)), ("ndarray:float32", np.ones(300, np.float32)),
        ("ndarray:int16:2,2", np.ones((2, 2), np.int16)), ("ndarray:int16:2,2", np.ones((4, 4), np.int16)[::2, ::2]),
        ("json", {"a": [1]}), ("str_decimal", Decimal("1.50")),
    ],
)  # fmt: skip
def test_plain_values_take_the_fast_path(encoding, value):
    short, long = both_encoders({"a": "bytes", "b": encoding, "c": "int8"})
    sample = {"a": b"xyz", "b": value, "c": 1}
    assert short(sample) == long(sample) is not None
    short, long = both_encoders({"b": encoding})
    assert short({"b": value}) == long({"b": value})


def test_bytes_of_a_sample_by_hand():
    short, long = both_encoders({"b": "str", "a": "int16", "d": "bytes", "c": "uint8", "e": "float64"})
    sample = {"e": 1.0, "d": b"\x09", "c": 255, "b": "é", "a": -2}
    # Lengths of b and d, then a, b, c, d, e.
    expected = bytes.fromhex("02000000 01000000 feff c3a9 ff 09 000000000000f03f")
    assert short(sample) == long(sample) == expected


@pytest.mark.parametrize(
    ("columns", "bad", "column"),
    [
        ({"x": "int", "y": "bytes"}, {"x": 2**63, "y": b""}, "x"),
        ({"x": "int", "y": "bytes"}, {"x": 1.5, "y": b""}, "x"),
        ({"x": "int", "y": "bytes"}, {"x": 1, "y": "text"}, "y"),
        ({"x": "int", "y": "bytes"}, {"x": 1, "y": np.ones(3)}, "y"),
        ({"x": "int8", "y": "str"}, {"x": 128, "y": ""}, "x"),
        ({"x": "float32", "y": "str"}, {"x": 0.1, "y": ""}, "x"),
        ({"x": "int8", "y": "str"}, {"x": 1, "y": "\ud800"}, "y"),
        ({"x": "int8", "y": "str"}, {"x": 1, "y": None}, "y"),
        ({"x": "ndarray:int32:2", "y": "jpeg"}, {"x": np.ones(2, np.int32), "y": image_bytes("JPEG")[:-2]}, "y"),
        ({"x": "ndarray:int32:2", "y": "jpeg"}, {"x": np.ones(2, np.int64), "y": image_bytes("JPEG")}, "x"),
        ({"x": "ndarray:int32:2", "y": "jpeg"}, {"x": np.ones(3, np.int32), "y": image_bytes("JPEG")}, "x"),
        ({"x": "int", "y": "int"}, {"x": 1}, "y"),
        ({"x": "int", "y": "int"}, {"x": 1, "y": 2, "z": 3}, "z"),
    ],
)
def test_refused_sample_is_named_at_its_own_call_and_the_builder_continues(columns, bad, column):
    good = {name: GOOD[encoding] for name, encoding in columns.items()}
    builder = ShardBuilder(Schema.from_columns(columns), NO_HASH)
    for row in (0, 1):
        builder.add(good)
        with pytest.raises(SchemaError) as caught:
            builder.add(bad)
        assert (caught.value.column, caught.value.row) == (column, row + 1)
    (shard,) = builder.finish()
    expected = ShardBuilder(Schema.from_columns(columns), NO_HASH)
    for _ in (0, 1):
        expected.add(good)
    (other,) = expected.finish()
    assert bytes(shard.seal().payloads[0]) == bytes(other.seal().payloads[0])


def test_buffers_may_be_reused_after_the_call():
    columns = {"a": "bytes", "b": "ndarray:int32:3", "c": "ndarray", "d": "json", "e": "bytes"}
    image, fixed, free, obj = bytearray(b"abc"), np.arange(3, dtype=np.int32), np.ones(2), {"k": [1]}
    sample = {"a": image, "b": fixed, "c": free, "d": obj, "e": memoryview(image)}
    builder = ShardBuilder(Schema.from_columns(columns), NO_HASH)
    builder.add(sample)
    expected = bytes(builder.finish()[0].seal().payloads[0])
    builder = ShardBuilder(Schema.from_columns(columns), NO_HASH)
    builder.add(sample)
    image[:], fixed[:], free[:] = b"xyz", 9, 9
    obj["k"].append(2)
    sample["a"] = b""
    assert bytes(builder.finish()[0].seal().payloads[0]) == expected


class Shouting(str):
    def encode(self, *_):
        return b"LOUD"


def test_subclass_of_str_is_stored_as_its_text_in_any_schema():
    schema = Schema.from_columns({"text": "str", "number": "float64"})
    codecs = schema.codecs()
    by_hand = (5).to_bytes(4, "little") + np.float64(1).tobytes() + b"quiet"
    for number in (1.0, 1):  # the fast path declines the second, which is not a float
        encode = make_fast_encoder(schema, codecs, lambda sample: make_checked_encoder(schema, codecs)(sample, 0))
        assert encode({"text": Shouting("quiet"), "number": number}) == by_hand


def test_dict_that_invents_columns_is_refused_and_unchanged():
    builder = ShardBuilder(Schema.from_columns({"x": "int", "y": "int"}), NO_HASH)
    for sample in (defaultdict(int, y=1), defaultdict(int, y=1, z=2)):
        before = dict(sample)
        with pytest.raises(SchemaError, match="exactly the columns"):
            builder.add(sample)
        assert sample == before
    builder.add(OrderedDict(y=1, x=2))
    with pytest.raises(SchemaError, match="expected a dict of columns, found list"):
        builder.add([1, 2])
    assert builder.finish()[0].seal().info.samples == 1


def test_bytes_do_not_depend_on_blocks():
    rows = [{"x": bytes([i]) * size} for i, size in enumerate([600_000, 600_000, 3_000_000, 0, 10, 1_100_000, 5])]
    schema, shards = Schema.from_columns({"x": "bytes"}), []
    for limit in (None, 1_300_000):
        builder, built = ShardBuilder(schema, ShardOptions(hashes=(), size_limit=limit)), []
        for row in rows:
            built += builder.add(row)
        shards.append([bytes(shard.seal().payloads[0]) for shard in built + builder.finish()])
    samples = b"".join(len(row["x"]).to_bytes(4, "little") + row["x"] for row in rows)
    ((alone,), several) = shards
    assert alone.endswith(samples)
    # Each shard takes as many as fit 1,300,000 bytes; the third sample alone exceeds that.
    assert [int.from_bytes(shard[:4], "little") for shard in several] == [2, 1, 4]


def test_shard_is_returned_by_the_sample_that_no_longer_fits_it():
    builder = ShardBuilder(Schema.from_columns({"x": "bytes"}), ShardOptions(hashes=(), size_limit=1000))
    counts = [len(builder.add({"x": bytes(400)})) for _ in range(7)]
    assert counts == [0, 0, 1, 0, 1, 0, 1]


class WrongSizeForOddValues(Encoding):
    """A user's encoding whose values do not all have the declared size."""

    def __init__(self):
        super().__init__("halves", 4)

    def encode(self, value):
        return bytes(4 if value % 2 == 0 else 3)

    def decode(self, data):
        return len(data)


def test_value_of_another_size_than_its_encoding_declares_is_refused():
    schema = Schema(("x", "y"), ("halves", "int"), (4, 8))
    codecs = (WrongSizeForOddValues(), parse_encoding("int"))
    long_way = make_checked_encoder(schema, codecs)
    short = make_fast_encoder(schema, codecs, lambda _: None)
    assert short({"x": 2, "y": 1}) == bytes(4) + b"\x01" + bytes(7)
    assert short({"x": 1, "y": 1}) is None
    with pytest.raises(SchemaError, match="declares 4 bytes for every value, but returned 3"):
        long_way({"x": 1, "y": 1}, 0)


class Huge(bytes):
    """Bytes that report a length of 4 GiB without holding them."""

    def __len__(self):
        return 2**32


class HugeEncoding(Encoding):
    """An encoding that returns values of 4 GiB."""

    def __init__(self):
        super().__init__("huge")

    def encode(self, value):
        return Huge() if value else b""

    def decode(self, data):
        return bool(data)


def test_value_of_four_gigabytes_is_refused_with_its_column():
    schema, codecs = Schema(("x", "y"), ("huge", "int"), (None, 8)), (HugeEncoding(), parse_encoding("int"))
    assert make_fast_encoder(schema, codecs, lambda _: None)({"x": True, "y": 1}) is None
    with pytest.raises(SchemaError, match="4 GiB") as caught:
        make_checked_encoder(schema, codecs)({"x": True, "y": 1}, 3)
    assert (caught.value.column, caught.value.row) == ("x", 3)


def test_arrow_value_of_four_gigabytes_is_refused_with_its_row():
    ends = pa.py_buffer(np.array([0, 5, 5 + 2**32], np.int64))
    untouched = pa.py_buffer(np.empty(5 + 2**32, np.uint8))  # address space without memory
    claims = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2, [None, ends, untouched])
    builder = ShardBuilder(Schema.from_columns({"x": "bytes"}), NO_HASH)
    with pytest.raises(SchemaError, match="4 GiB") as caught:
        builder.add_batch(pa.record_batch([claims], ["x"]))
    assert (caught.value.column, caught.value.row) == ("x", 1)
    assert builder.finish() == []


def test_only_shard_that_would_exceed_four_gigabytes_is_refused_at_the_sample_that_does_it():
    builder = ShardBuilder(Schema.from_columns({"x": "bytes"}), NO_HASH)
    builder._packer._cutter.push(np.array([2**32 - 5_000], np.int64))  # as if so much had been written
    for _ in range(4):  # header and config take some 200 of the 5,000 bytes, each sample 1,008
        builder.add({"x": bytes(1000)})
    with pytest.raises(SchemaError, match="size_limit") as caught:
        builder.add({"x": bytes(1000)})
    assert caught.value.row == 4
    batch = pa.record_batch([pa.array([bytes(1000)])], ["x"])
    with pytest.raises(SchemaError, match="size_limit"):
        builder.add_batch(batch)
    assert builder.add({"x": b"still fits"}) == []
    assert builder.finish()[0].seal().info.samples == 5


def test_a_fast_path_that_takes_more_ignores_further_columns_alone():
    schema = Schema.from_columns({"a": "uint8", "b": "uint8"})
    declined = []
    encode = make_fast_encoder(schema, schema.codecs(), declined.append, takes_more=True)
    assert encode({"b": 2, "c": 3, "a": 1}) == b"\x01\x02"
    for sample in ({"a": 1}, {"a": 1, "c": 2, "d": 3}, {"a": 1, "b": 256}):
        assert encode(sample) is None
        assert declined.pop() is sample


class Half(type(parse_encoding("uint8"))):
    """A number that is stored halved, with a fast path of its own."""

    def encode(self, value):
        return super().encode(value // 2)

    def fast_path(self):
        return FastPath(encode=lambda value: value // 2, code="B")


def test_an_encoding_may_have_its_own_fast_path():
    codec = Half("half", "uint8")
    encode = make_fast_encoder(Schema(("a",), ("half",), (1,)), (codec,), lambda _: b"declined")
    assert encode({"a": 9}) == codec.encode(9) == b"\x04"
    assert encode({"a": "text"}) == b"declined"
