"""Chunks of LitData as a source: samples that litdata wrote, and damaged or foreign chunks."""

import json
import shutil
import struct

import pyarrow as pa
import pytest
import zstandard

from smalti.conversion import convert
from smalti.conversion.sources import litdata
from smalti.errors import FormatError, SchemaError, SmaltiError, StoreNotFound
from smalti.torch import LocalDataset
from tests.conversion.source_rows import DATA, read

FOLDER = DATA / "litdata"


def expected(number):
    """Return the values of a sample of the fixture, apart from its image."""
    return {
        "label": number, "text": f"t{number}", "score": number / 4, "data": bytes([0, number]),
        "grid": [[number] * number] * 2, "line": [float(each) for each in range(number)], "vec": [float(number)] * 2,
        "mat": [[number] * 2], "ok": number % 2 == 0, "nest.p": number, "nest.q": [number, "x", None],
        "nest.r": [{"a": 1, "b": 2.5, "c": "y", "d": None, "e": True}], "nest.s": ["u", "v"], "nest.i": [1, 2],
        "nest.f": [0.5], "nest.z": [True, False],
    }  # fmt: skip


def test_chunks_of_litdata_have_the_same_samples(tmp_path):
    convert(FOLDER, tmp_path / "set", processes=1)
    dataset = LocalDataset(tmp_path / "set")
    assert len(dataset) == 4
    for number, sample in enumerate(dataset):
        assert sample.pop("image").size == (8, 8)
        plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}
        assert plain == expected(number)
    columns = dict(dataset.shards[0].schema.columns())
    assert {name: columns[name] for name in ("image", "label", "grid", "line", "vec", "mat", "ok", "nest.q")} == {
        "image": "jpeg", "label": "int64", "grid": "ndarray:int16", "line": "ndarray:float64",
        "vec": "ndarray:float32", "mat": "ndarray:int64", "ok": "uint8", "nest.q": "json",
    }  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    """A copy of the chunks, and a function that changes the configuration in its index."""
    folder = tmp_path / "chunks"
    shutil.copytree(FOLDER, folder)

    def change(**config):
        index = json.loads((folder / "index.json").read_text())
        index["config"] |= config
        (folder / "index.json").write_text(json.dumps(index))

    return folder, change


def test_chunks_that_are_compressed_as_a_whole_are_read(copy):
    folder, change = copy
    for path in folder.glob("*.bin"):
        path.write_bytes(zstandard.compress(path.read_bytes()))
    change(compression="zstd")
    assert [row["label"] for row in read(folder, columns=("label",))] == [0, 1, 2, 3]
    (folder / "chunk-0-0.bin").write_bytes(b"no frame")
    with pytest.raises(FormatError, match=r"chunk-0-0\.bin: the chunk is damaged, .*: it cannot be unpacked"):
        read(folder)


def test_a_chunk_may_not_unpack_to_more_than_the_limit(copy, monkeypatch):
    folder, change = copy
    change(compression="zstd")
    size = max(path.stat().st_size for path in folder.glob("*.bin"))
    for path in folder.glob("*.bin"):
        path.write_bytes(zstandard.compress(path.read_bytes()))
    monkeypatch.setattr(litdata, "_MAX_UNPACKED", size)
    assert len(read(folder)) == 4
    monkeypatch.setattr(litdata, "_MAX_UNPACKED", size - 1)
    with pytest.raises(
        FormatError, match=rf"it unpacks to more than {size - 1:,} bytes; write the set again with smaller"
    ):
        read(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"item_loader": "TokensLoader"}, "made for TokensLoader"),
        ({"compression": "zstd", "compression_batch_size": 8}, "in frames is not read"),
        ({"data_spec": "[1]"}, "`data_spec` of the index cannot be read"),
        ({"data_format": ["int"]}, "do not fit each other"),
        ({"data_format": ["pickle"] + ["int"] * 16}, "column 'image' is pickled.*runs code"),
        ({"data_format": ["graph"] + ["int"] * 16}, "serializer 'graph'"),
    ],
)
def test_chunks_of_another_form_are_refused_with_advice(copy, config, message):
    folder, change = copy
    change(**config)
    with pytest.raises(SmaltiError, match=message):
        read(folder)


def test_a_pickled_column_can_be_left_out(copy):
    folder, change = copy
    formats = json.loads((FOLDER / "index.json").read_text())["config"]["data_format"]
    change(data_format=["pickle", *formats[1:]])
    assert read(folder, columns=("label",))[3] == {"label": 3}
    with pytest.raises(SchemaError, match="there is no column 'x'"):
        read(folder, columns=("x",))


def test_damaged_chunks_are_errors(copy):
    folder, _ = copy
    chunk = folder / "chunk-0-0.bin"
    whole = chunk.read_bytes()
    for data in (
        whole[:2], whole[:-400], struct.pack("<I", 1 << 31) + whole[4:], whole[:4] + b"\xff" * 16 + whole[20:],
        whole[:20] + b"\xff" * 8 + whole[28:],
    ):  # fmt: skip
        chunk.write_bytes(data)
        with pytest.raises(FormatError, match=r"chunk-0-0\.bin"):
            read(folder)
    chunk.write_bytes(whole + b"x")
    with pytest.raises(FormatError, match=r"chunk-0-0\.bin: the chunk is damaged.*1 bytes follow its last item"):
        read(folder)
    chunk.unlink()
    with pytest.raises(StoreNotFound, match=r"index\.json names this file, which is missing"):
        read(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x01\xff\xff\xff\x7f", b"\x02\x10\0\0\0",
     b"\x05\x01\0\0\0\x01\0\0\0a" + b"\x05\x01\0\0\0\x01\0\0\0a" * 5000,
     b"\x05\x02\0\0\0\x01\0\0\0a\x0b\x01\0\0\0a\x0b", b"\x06\x01\0\0\0\x02\0\0\0\x01\0\0\0a\x01\0\0\0a\x10\x10",
     b"\x07\xff\0\0\0a", b"\x1f\x01\0\0\0", b"\x0a", b"\x0b\x0b", b"\x06\x01\0\0\0\xff\xff\xff\x7f"],
)  # fmt: skip
def test_a_damaged_nested_value_is_an_error(content):
    from smalti.conversion.sources.litdata import LeafColumn, _leaf_column

    column: LeafColumn = _leaf_column("chunks", "x", 0, "json", None)
    with pytest.raises((ValueError, IndexError, struct.error, RecursionError)):
        column.array([content])


def write_rows(folder, chunks, types, *, stream=False, counts=None, **config):
    """Write a set as LitData 0.2.76 writes dicts of numbers and texts: Arrow tables behind chunks without items."""
    folder.mkdir()
    entries = []
    for number, rows in enumerate(chunks):
        table = pa.Table.from_pylist(rows)
        sink = pa.BufferOutputStream()
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        data = sink.getvalue().to_pybytes()
        count = len(rows) if counts is None else counts[number]
        head = struct.pack(f"<{count + 2}I", count, *[4 * (count + 2)] * (count + 1))
        (folder / f"chunk-0-{number}.bin").write_bytes(head + data + struct.pack("<I", len(data)) + b"LDARW01\0")
        entries.append({"filename": f"chunk-0-{number}.bin", "chunk_size": len(rows)})
    config = {"item_loader": "PyTreeLoader", "data_format": ["int", "pickle"], "types": types, **config}
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": config}))
    return folder


def optional(kind):
    return {"type": kind, "optional": True}


FLAT = {"b": "bool", "f": "float", "i": "int", "t": "str", "y": "bytes"}


@pytest.mark.parametrize("stream", [False, True])
def test_rows_that_are_stored_as_arrow_tables_are_read(tmp_path, stream):
    rows = [{"i": n, "t": f"t{n}", "f": n / 2, "b": n % 2 == 0, "y": bytes([n])} for n in range(5)]
    write_rows(tmp_path / "in", [rows[:3], rows[3:]], FLAT, stream=stream)
    manifest = convert(tmp_path / "in", tmp_path / "set", processes=1)
    assert manifest.schema.columns() == {"b": "uint8", "f": "float64", "i": "int64", "t": "str", "y": "bytes"}
    assert [dict(row) for row in LocalDataset(tmp_path / "set")] == rows


def test_a_column_that_some_rows_lack_has_nulls_there(tmp_path):
    chunks = [[{"i": 1}, {"i": 2}], [{"i": None, "t": "a", "n": None}]]
    types = {"i": optional("int"), "t": optional("str"), "n": optional("null")}
    write_rows(tmp_path / "in", chunks, types)
    with pytest.raises(SchemaError, match="column 'n' has type null, which cannot be stored; a column of nothing"):
        convert(tmp_path / "in", tmp_path / "set", processes=1)
    convert(tmp_path / "in", tmp_path / "set", processes=1, columns={"i": None, "t": None}, nulls="mask")
    found = [(row["i"], row["t"]) for row in LocalDataset(tmp_path / "set")]
    assert found == [(1, None), (2, None), (None, "a")]


def test_nested_values_of_all_chunks_have_one_type(tmp_path):
    chunks = [[{"x": [1, 2], "d": {"a": 1}}], [{"x": [], "d": {"a": 2, "c": ["p"]}}]]
    fields = {"a": "int", "c": {"type": "list", "value": "str", "optional": True}}
    types = {"x": {"type": "list", "value": "int"}, "d": {"type": "struct", "fields": fields}}
    write_rows(tmp_path / "in", chunks, types)
    convert(tmp_path / "in", tmp_path / "set", processes=1)
    found = [(row["x"].tolist(), row["d"]) for row in LocalDataset(tmp_path / "set")]
    assert found == [([1, 2], {"a": 1, "c": None}), ([], {"a": 2, "c": ["p"]})]


@pytest.mark.parametrize(
    ("types", "options", "message"),
    [
        (None, {}, "`types` of the index names no columns"),
        ({"i": "json"}, {}, "column 'i' has values of several types"),
        ({"i": {"type": "list"}}, {}, "column 'i' has values of several types"),
        ({"i": "bytes"}, {}, "column 'i' is int64 there, and the index describes it as binary"),
        ({"i": "int"}, {"counts": [2]}, "it has 2 samples, and the index says 1"),
    ],
)
def test_rows_of_another_form_are_refused(tmp_path, types, options, message):
    write_rows(tmp_path / "in", [[{"i": 1}]], types, **options)
    with pytest.raises(SmaltiError, match=message):
        read(tmp_path / "in")


def test_a_chunk_whose_table_is_cut_short_or_damaged_is_an_error(tmp_path):
    folder = write_rows(tmp_path / "in", [[{"t": "text"}] * 4], {"t": "str"})
    chunk = folder / "chunk-0-0.bin"
    whole = chunk.read_bytes()
    for data in (
        whole[:30] + whole[40:], whole[:-12] + b"\xff\xff\xff\x7f" + whole[-8:],
        whole[:-12] + b"\x04\0\0\0" + whole[-8:], whole.replace(b"texttext", b"\xff\xfftetext"),
    ):  # fmt: skip
        chunk.write_bytes(data)
        with pytest.raises(FormatError, match=r"chunk-0-0\.bin: the chunk is damaged"):
            read(folder)


def test_chunks_and_index_name_the_same_samples(copy):
    folder, _ = copy
    index = json.loads((folder / "index.json").read_text())
    index["chunks"][0]["chunk_size"] += 1
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match=r"chunk-0-0\.bin: .*it has \d samples, and the index says \d"):
        read(folder)
    index["chunks"].append(index["chunks"][0])
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match=r"names chunk-0-0\.bin twice"):
        read(folder)
