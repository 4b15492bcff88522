"""Batches by column out of many shards: the values of single samples, or an error, whatever the files contain."""

import os
import threading
import time
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from smalti.errors import FormatError, SchemaError
from smalti.format import (
    Encoding,
    FileInfo,
    Schema,
    Shard,
    ShardInfo,
    decode_gathered,
    open_shard,
    register_encoding,
)
from smalti.format.reading.batch import read_batch
from smalti.format.reading.files import MappedRows, Ragged, _AddressRange, gather
from smalti.format.reading.joining import batch_of
from tests.format.columns import COLUMNS, NAMES, image_bytes, same
from tests.format.shards import build, write
from tests.format.text_sets import one_shard, paths
from tests.text_writers import TextBuilder

MIXED = {"id": "int", "text": "str", "small": "int8", "raw": "bytes", "vec": "ndarray:float32:2"}
PICTURE = Image.new("RGB", (3, 2), (1, 2, 3))
EVERY_ENCODING = {
    **dict.fromkeys(("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), 3),
    **dict.fromkeys(("float16", "float32", "float64"), 0.5),
    "bytes": b"abc", "str": "hé", "json": {"a": [1]}, "str_int": 5, "str_float": 0.25, "str_decimal": Decimal("1.50"),
    "ndarray": np.array([[1, 2]], np.int16), "ndarray:uint8": np.array([1, 2], np.uint8),
    "ndarray:float32:2": np.array([1, 2], np.float32), "pil": PICTURE, "jpeg": image_bytes("JPEG"),
    "png": image_bytes("PNG"), "list[pil]": [PICTURE, PICTURE], "list[jpeg]": [PICTURE], "list[png]": [PICTURE],
    "jpeg_array": [image_bytes("JPEG")],
}  # fmt: skip


def mixed_samples(count):
    return [
        {"id": i, "text": "x" * (i % 7), "small": -i % 100, "raw": bytes([i % 256]) * (i % 3), "vec": [i, i / 2]}
        for i in range(count)
    ]


def write_many(folder, columns, samples, per_shard):
    """Write shards of so many samples each, each in its own folder, and return them open."""
    shards = []
    for begin in range(0, len(samples), per_shard):
        below = folder / str(begin)
        below.mkdir(exist_ok=True)
        shards.append(write(below, columns, samples[begin : begin + per_shard], size_limit=None)[1])
    return shards


def is_equal(a, b):
    """Return whether two values are equal, images by their pixels."""
    if isinstance(a, Image.Image):
        return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes())
    if isinstance(a, list) and a and isinstance(a[0], Image.Image):
        return len(a) == len(b) and all(map(is_equal, a, b))
    return same(a, b)


@st.composite
def tables(draw):
    encodings = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    columns = {f"c{i}": encoding for i, encoding in enumerate(encodings)}
    row = st.fixed_dictionaries({name: COLUMNS[encoding][0] for name, encoding in columns.items()})
    samples = draw(st.lists(row, min_size=1, max_size=12))
    picks = draw(st.lists(st.integers(0, len(samples) - 1), max_size=20))
    return columns, samples, picks, draw(st.integers(1, 6))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
@pytest.mark.slow
def test_a_batch_equals_its_samples_whatever_shards_they_lie_in(tmp_path, table):
    columns, samples, picks, per_shard = table
    shards = write_many(tmp_path, columns, samples, per_shard)
    which, rows = np.array(picks, np.int64) // per_shard, np.array(picks, np.int64) % per_shard
    batch = batch_of(shards, which, rows)
    assert list(batch) == sorted(columns)
    for name, encoding in columns.items():
        assert len(batch[name]) == len(picks)
        for place, pick in enumerate(picks):
            single = shards[pick // per_shard][pick % per_shard][name]
            expected = samples[pick][name] if encoding in {"jpeg", "png"} else single
            assert same(batch[name][place], expected)
    for number, shard in enumerate(shards):
        own = np.flatnonzero(which == number)
        gathered = shard.gather(rows[own])
        decoded = decode_gathered(shard.info.schema, gathered)
        assert list(gathered) == sorted(columns)
        for name in columns:
            assert len(decoded[name]) == len(own)
            assert type(batch[name]) is type(decoded[name])
            assert all(same(decoded[name][i], batch[name][place]) for i, place in enumerate(own))


def test_every_encoding_gives_equal_values_as_sample_in_a_batch_and_gathered(tmp_path):
    columns = {f"c{i}": encoding for i, encoding in enumerate(EVERY_ENCODING)}
    sample = {f"c{i}": value for i, value in enumerate(EVERY_ENCODING.values())}
    shards = write_many(tmp_path, columns, [sample] * 5, 2)
    which, rows = np.array([2, 0, 1, 0]), np.array([0, 1, 1, 1])
    batch, single = batch_of(shards, which, rows), shards[1][0]
    decoded = decode_gathered(shards[0].info.schema, shards[0].gather(np.array([1, 0, 1, 1])))
    for name, encoding in columns.items():
        for place in range(4):
            expected = sample[name] if encoding in {"jpeg", "png"} else single[name]
            assert is_equal(batch[name][place], expected), encoding
            assert is_equal(decoded[name][place], expected), encoding


def test_arrays_are_native_owned_and_writable(tmp_path):
    shards = write_many(tmp_path, MIXED, mixed_samples(9), 4)
    which, rows = np.array([0, 2, 1]), np.array([3, 0, 2])
    for columns in (batch_of(shards, which, rows), shards[0].gather(rows)):
        for name in ("id", "small", "vec"):
            columns[name][...] = 0
            assert columns[name].dtype.isnative
    raw = shards[2].gather(rows[1:2])["raw"]
    raw.data[...] = 0
    assert batch_of(shards, which, rows)["raw"] == [b"", b"\x08\x08", b""]


@pytest.mark.parametrize("per_shard", [3, 10])
def test_out_is_filled_and_returned(tmp_path, per_shard):
    shards = write_many(tmp_path, MIXED, mixed_samples(10), per_shard)
    picks = np.array([9, 0, 4, 4])
    out = {"id": np.zeros(4, np.int64), "vec": np.zeros((4, 4), np.float32)[:, ::2]}
    batch = batch_of(shards, picks // per_shard, picks % per_shard, out)
    assert batch["id"] is out["id"]
    assert batch["vec"] is out["vec"]
    assert out["id"].tolist() == [9, 0, 4, 4]
    assert out["vec"].tolist() == [[9, 4.5], [0, 0], [4, 2], [4, 2]]
    assert batch["small"].tolist() == [91, 0, 96, 96]


def test_a_long_batch_fills_out_in_steps(tmp_path):
    tokens = np.arange(300 * 512, dtype=np.int32).reshape(300, 512)
    _, shard = write(tmp_path, {"tokens": "ndarray:int32:512"}, [{"tokens": row} for row in tokens])
    picks = np.random.default_rng(3).integers(0, 300, 700)
    out = {"tokens": np.zeros((700, 512), np.int32)}
    assert (batch_of([shard], np.zeros(len(picks), np.int64), picks, out)["tokens"] == tokens[picks]).all()
    assert out["tokens"].sum() == tokens[picks].sum()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, np.int32),
        np.zeros(4, np.int64),
        np.zeros((3, 1), np.int64),
        np.zeros(3, ">i8"),
        np.broadcast_to(np.zeros(1, np.int64), 3),
    ],
)
def test_an_array_that_does_not_fit_is_refused(tmp_path, array):
    _, shard = write(tmp_path, MIXED, mixed_samples(5))
    with pytest.raises(SchemaError, match="`out` for column 'id': expected a writable array of int64"):
        batch_of([shard], np.zeros(3, np.int64), np.array([0, 1, 2]), {"id": array})


def test_gather_returns_only_the_requested_columns(tmp_path):
    _, shard = write(tmp_path, MIXED, mixed_samples(5))
    found = shard.gather(np.array([4, 1]), ["text", "id"])
    assert list(found) == ["text", "id"]
    assert found["text"].tolist() == [b"xxxx", b"x"]
    assert found["text"].offsets.tolist() == [0, 4, 5]
    with pytest.raises(SchemaError, match="no column 'other'; the columns are id, raw"):
        shard.gather(np.array([0]), ["other"])


@pytest.mark.parametrize(("size", "rows"), [(8192, 5), (40_000, 20), (40_001, 20), (1 << 20, 2), (1_100_001, 3)])
def test_large_values_are_read_completely(tmp_path, size, rows):
    """Large values are cut into pieces if their size allows it, and very large ones are copied one by one."""
    values = np.random.default_rng(size).integers(0, 256, (rows, size), dtype=np.uint8)
    samples = [{"fixed": value, "free": value.tobytes()} for value in values]
    shards = write_many(tmp_path, {"fixed": f"ndarray:uint8:{size}", "free": "bytes"}, samples, 2)
    picks = np.arange(rows)[::-1]
    batch = batch_of(shards, picks // 2, picks % 2)
    assert (batch["fixed"] == values[picks]).all()
    assert batch["free"] == [value.tobytes() for value in values[picks]]


@pytest.mark.nightly  # takes 2 GiB of memory
@pytest.mark.slow
def test_values_beyond_two_gigabytes_are_read_completely(tmp_path):
    """numpy has no element type of 2 GiB; most of the file is a hole."""
    size = (1 << 31) + 5
    info = ShardInfo(Schema.from_columns({"a": f"ndarray:uint8:{size}"}), 1, FileInfo("s", 12 + size))
    with (tmp_path / "s").open("wb") as file:
        file.write(b"".join(n.to_bytes(4, "little") for n in (1, 12, 12 + size)))
        file.seek(11 + size)
        file.write(b"!")
    shard = Shard.open(tmp_path / "s", info)
    values = shard.batch(np.array([0]))["a"]
    assert (values.shape, values[0, -1], values[0, :-1:4093].any()) == ((1, size), ord("!"), False)


def test_values_wider_than_numpy_can_count_over_a_huge_span_are_copied_too():
    data = np.arange(1 << 18, dtype=np.uint8)
    memory = _AddressRange(data.__array_interface__["data"][0], 1 << 46, ())
    found = gather(np.asarray(memory), np.array([5, 0]), 1 << 17)
    assert found.reshape(2, -1)[:, 0].tolist() == [5, 0]


def test_numbers_are_converted_to_native_byte_order(tmp_path):
    """As on big-endian machines, with the roles exchanged: the stored 1 is read as 1 << 24."""
    _, shard = write(tmp_path, {"n": "int32", "v": "ndarray:int16:2"}, [{"n": 1, "v": np.array([1, 2], np.int16)}])
    n, v = shard.plan.columns
    plan = replace(shard.plan, columns=(replace(n, dtype=np.dtype(">i4")), replace(v, dtype=np.dtype(">i2"))))
    zero = np.zeros(1, np.int64)
    out = {"v": np.zeros((1, 2), np.int16)}
    for filled in (None, out):
        batch = read_batch(MappedRows([shard.mapped()], zero, zero), plan, filled)
        assert batch["n"].tolist() == [1 << 24]
        assert batch["v"].tolist() == [[256, 512]]
        assert batch["n"].dtype.isnative
    assert out["v"].tolist() == [[256, 512]]


# ---------------------------------------------------------------- shards that differ


def test_shards_with_other_columns_are_named(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    shards = [write(first, {"n": "int"}, [{"n": 1}])[1], write(second, {"n": "int32"}, [{"n": 2}])[1]]
    shards[1].info = replace(shards[1].info, raw=replace(shards[1].info.raw, basename="other.mds"))
    with pytest.raises(SchemaError, match=r"shards shard.00000.mds and other.mds have different columns"):
        batch_of(shards, np.array([0, 1]), np.array([0, 0]))
    assert [shard[0]["n"] for shard in shards] == [1, 2]


def test_the_same_columns_in_another_order_or_format_read_as_one(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
    samples = [{"n": 1, "t": "one"}, {"n": 2, "t": "two"}]
    _, sorted_shard = write(tmp_path / "a", {"n": "int", "t": "str"}, samples)
    # The same columns in reverse order, as other writers may store them.
    row = b"\x03\0\0\0" + b"six" + (6).to_bytes(8, "little")
    data = b"".join(n.to_bytes(4, "little") for n in (1, 12, 12 + len(row))) + row
    (tmp_path / "b" / "s").write_bytes(data)
    schema = Schema(("t", "n"), ("str", "int"), (None, 8))
    info = replace(sorted_shard.info, schema=schema, samples=1, raw=replace(sorted_shard.info.raw, num_bytes=len(data)))
    swapped = Shard.open(tmp_path / "b" / "s", info)
    shards = [sorted_shard, swapped, text_shard(tmp_path / "c")]
    which, rows = np.array([2, 0, 1, 0, 2]), np.array([1, 1, 0, 0, 0])
    out = {"n": np.zeros(5, np.int64), "t": np.zeros(5)}  # "t" has no array: it stays a list
    batch = batch_of(shards, which, rows, out)
    assert batch["n"] is out["n"]
    assert batch["n"].tolist() == [8, 2, 6, 1, 7]
    assert batch["t"] == ["eight", "two", "six", "one", "seven"]
    gathered = shards[2].gather(np.array([1, 0]))
    assert gathered["t"].tolist() == [b"eight", b"seven"]
    assert decode_gathered(schema, gathered)["t"] == ["eight", "seven"]


def test_text_that_utf8_cannot_hold_does_not_change_its_neighbours(tmp_path):
    """If one shard returns text as a list, the text of another must not become bytes."""
    shards = []
    for name, texts in (("a", ["halves"]), ("b", ["hé", "x"])):
        folder = tmp_path / name
        folder.mkdir()
        info = one_shard(folder, "json", [{"t": text} for text in texts], {"t": "str"})
        if name == "a":
            path = folder / info.raw.basename
            path.write_bytes(path.read_bytes().replace(b"halves", b"\\ud800"))
        shards.append(open_shard(paths(folder, info), info))
    which, rows = np.array([1, 0, 1]), np.array([1, 0, 0])
    assert batch_of(shards, which, rows)["t"] == ["x", "\ud800", "hé"]
    gathered = shards[0].gather(np.array([0]))
    assert decode_gathered(shards[0].info.schema, gathered)["t"] == ["\ud800"]
    assert shards[1].gather(np.array([1, 0]))["t"].tolist() == [b"x", "hé".encode()]


def text_shard(folder):
    """Return two samples as a shard of JSON lines."""
    from smalti.format import ShardOptions, text_schema
    from smalti.format.text import layout_of

    layout = layout_of("json", text_schema({"n": "int", "t": "str"}), "\n", None)
    builder = TextBuilder(layout, ShardOptions())
    for sample in ({"n": 7, "t": "seven"}, {"n": 8, "t": "eight"}):
        builder.add(sample)
    built = builder.finish()[0].seal()
    paths = [folder / file.basename for file in built.info.stored_files]
    for path, payload in zip(paths, built.payloads, strict=True):
        path.write_bytes(payload)
    return open_shard(paths, built.info)


# ---------------------------------------------------------------- damage


def damage(path, place, data):
    """Change bytes of a mapped file; the map shows the change."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


@pytest.mark.parametrize("entry", [0, 1, 2, 3])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1])
def test_offsets_changed_under_an_open_map_are_an_error_or_values_never_a_crash(tmp_path, entry, value):
    """The table was checked when the shard was opened; another process writes into the file afterwards."""
    shards = write_many(tmp_path, MIXED, mixed_samples(9), 3)
    damage(tmp_path / "3" / "shard.00000.mds", 4 + 4 * entry, value.to_bytes(4, "little"))
    messages = []
    for row in range(3):
        messages += refusal(lambda row=row: batch_of(shards, np.array([0, 1, 2]), np.array([0, row, 0])))
        messages += refusal(lambda row=row: shards[1].gather(np.array([row])))
        messages += refusal(lambda row=row: shards[1][row])
    # Only a first sample that begins too early may pass: what it reads lies in the same file.
    assert len(messages) >= (3 if entry or value >= 2**31 else 0)
    assert all("shard.00000.mds, sample" in message for message in messages)


def refusal(read):
    """Return the message of the error that `read` raises, or an empty text."""
    try:
        read()
    except FormatError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("value", [2**32 - 1, 2**31, 1000])
def test_a_length_beyond_the_sample_names_shard_and_sample(tmp_path, value):
    shards = write_many(tmp_path, {"a": "bytes", "b": "str"}, [{"a": b"xy", "b": "z"}] * 6, 2)
    path = tmp_path / "2" / "shard.00000.mds"
    begin = int.from_bytes(path.read_bytes()[8:12], "little")
    for place in (begin, begin + 4):
        before = path.read_bytes()[place : place + 4]
        damage(path, place, value.to_bytes(4, "little"))
        reads = (
            lambda: batch_of(shards, np.array([0, 2, 1]), np.array([0, 0, 1])),
            lambda: shards[1].gather(np.array([0, 1])),
        )
        for read in reads:
            with pytest.raises(FormatError, match=r"shard.00000.mds, sample 1: its columns need more") as caught:
                read()
            assert caught.value.sample == 1
        with pytest.raises(FormatError, match="sample 1"):
            shards[1][1]
        assert batch_of(shards, np.array([1, 0]), np.array([0, 1]))["a"] == [b"xy", b"xy"]
        damage(path, place, before)


def test_a_damaged_value_in_a_batch_names_shard_sample_column_and_row(tmp_path):
    shards = write_many(tmp_path, {"t": "str"}, [{"t": "abc"}] * 6, 2)
    path = tmp_path / "4" / "shard.00000.mds"
    damage(path, len(path.read_bytes()) - 1, b"\xff")
    with pytest.raises(FormatError, match=r"shard.00000.mds, sample 1, column 't'") as caught:
        batch_of(shards, np.array([0, 1, 2, 2]), np.array([0, 0, 0, 1]))
    assert (caught.value.sample, caught.value.column, caught.value.row) == (1, "t", 3)
    gathered = shards[2].gather(np.array([0, 1]))
    with pytest.raises(FormatError, match="row 1 of the batch, column 't'"):
        decode_gathered(shards[0].info.schema, gathered)


class Terse(Encoding):
    """One byte; `decode_many` does not report which value was bad, as a user's encoding may not."""

    def encode(self, value):
        return bytes([value])

    def decode(self, data):
        if data == b"\xff":
            raise ValueError("no such thing")
        return data[0]

    def decode_many(self, data, offsets):
        if (data > 100).any():
            raise ValueError("some are too large")
        return data.tolist()


def test_values_are_decoded_one_by_one_if_an_encoding_does_not_report_the_bad_one(tmp_path):
    register_encoding("test-terse", lambda name, parameters: Terse(name, 1))
    values = [1, 2, 255, 3, 200, 4]
    shards = write_many(tmp_path, {"x": "test-terse", "y": "str"}, [{"x": x, "y": "a"} for x in values], 2)
    assert batch_of(shards, np.array([2, 0]), np.array([1, 0]))["x"] == [4, 1]
    with pytest.raises(
        FormatError, match=r"sample 0, column 'x': not a value of test-terse \(no such thing\)"
    ) as caught:
        batch_of(shards, np.array([0, 1]), np.array([0, 0]))
    assert caught.value.row == 1
    with pytest.raises(FormatError, match="some are too large"):
        batch_of(shards, np.array([0, 2]), np.array([0, 0]))


# ---------------------------------------------------------------- life


def test_batches_read_while_shards_are_closed_and_unlinked_are_right_or_refused(tmp_path):
    samples = [{"id": i, "raw": bytes([i]) * 40_000} for i in range(12)]
    infos = [shard.info for shard in write_many(tmp_path, {"id": "int", "raw": "bytes"}, samples, 2)]
    paths = [tmp_path / str(2 * place) / "shard.00000.mds" for place in range(6)]
    shards = [Shard.open(path, info) for path, info in zip(paths, infos, strict=True)]
    picks = np.arange(12)[::-1]
    right, wrong, refused, done = [], [], [], threading.Event()

    def read():
        deadline = time.monotonic() + 120
        while len(right) < 300 and time.monotonic() < deadline:
            try:
                batch = batch_of(list(shards), picks // 2, picks % 2)
            except ValueError as error:
                refused.append(str(error))
                continue
            whole = batch["id"].tolist() == picks.tolist() and batch["raw"] == [samples[i]["raw"] for i in picks]
            (right if whole else wrong).append(batch["id"])

    def reopen():
        while not done.is_set():
            for place, info in enumerate(infos):
                old, shards[place] = shards[place], Shard.open(paths[place], info)
                old.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    other = threading.Thread(target=reopen)
    for thread in [other, *readers]:
        thread.start()
    for thread in readers:
        thread.join(timeout=500)
    done.set()
    other.join(timeout=500)
    assert not any(thread.is_alive() for thread in [other, *readers])
    assert wrong == []
    assert len(right) >= 300
    assert all("is closed" in message for message in refused)
    for path in paths:
        os.unlink(path)
    assert batch_of(shards, picks // 2, picks % 2)["id"].tolist() == picks.tolist()


def test_a_batch_does_not_keep_a_file_mapped(tmp_path):
    shards = write_many(tmp_path, MIXED, mixed_samples(6), 2)
    where = np.array([2, 0, 1]), np.array([0, 1, 1])
    results = [batch_of(shards, *where), shards[0].gather(np.array([1])), shards[0][0]]
    for shard in shards:
        shard.close()
    del shard, shards
    if os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps") as maps:
            assert str(tmp_path) not in maps.read()
    assert results[0]["id"].tolist() == [4, 1, 3]


# ---------------------------------------------------------------- Ragged


def test_ragged_returns_views_and_copies_of_each_value():
    ragged = Ragged.from_values([b"ab", b"", b"cde"])
    assert len(ragged) == 3
    assert ragged.offsets.tolist() == [0, 2, 2, 5]
    assert ragged.tolist() == [b"ab", b"", b"cde"]
    assert [bytes(ragged[i]) for i in range(3)] == [b"ab", b"", b"cde"]
    assert bytes(ragged[-1]) == b"cde"
    for index in (3, -4):
        with pytest.raises(IndexError, match="of 3"):
            ragged[index]
    assert Ragged.from_values([]).tolist() == []
    assert Ragged.from_values([bytes(10_000), b"x"]).tolist() == [bytes(10_000), b"x"]


def test_one_built_shard_reads_back_in_any_order(tmp_path):
    (built,) = build({"x": "bytes"}, [{"x": bytes([i])} for i in range(256)], size_limit=None)
    (tmp_path / "s").write_bytes(built.payloads[0])
    order = np.random.default_rng(0).permutation(256)
    assert Shard.open(tmp_path / "s", built.info).batch(order)["x"] == [bytes([i]) for i in order.tolist()]
