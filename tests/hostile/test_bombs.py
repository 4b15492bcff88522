"""Small files that expand into something huge: refused within the memory of a normal file (D10, E14, S4, S5, S13).

They are read in a child process that may take little more memory than it has after its imports, by the readers that
users call; files too large for the repository are made here.
"""

import bz2
import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import brotli
import cramjam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from smalti.catalog.table.arrow import emit_table
from smalti.catalog.table.content import read_arrow_file
from smalti.errors import IndexFileError
from smalti.format import parse_index
from tests.golden.malformed.make import index, mds, one_value, packed
from tests.hostile.seeds import MDS_INDEXES
from tests.sources.archives import tar_bytes

ROOT = Path(__file__).resolve().parents[2]
SPARE = 96 << 20
ZEROS = 32 << 20
TIMES = 8  # members of 32 MiB: 256 MiB, where the child has 96

READ = """
import sys
from smalti.cache import CacheOptions
from smalti.dataset import StreamingDataset
from smalti.dataset.local import LocalDataset
from smalti.catalog import load_manifest, verify
from smalti.errors import SmaltiError
from tests.hostile.harness import limit_memory
from tests.golden.malformed.make import SETS

import PIL.Image, PIL.PngImagePlugin, PIL.JpegImagePlugin, brotli, bz2, cramjam, gzip, pyarrow, zstandard

print("limited" if limit_memory(int(sys.argv[1])) else "unlimited")
for folder in sys.argv[2:]:
    cache = CacheOptions(local=folder + "-cache", download_retry=1)
    for open_set in (lambda: StreamingDataset(remote=folder, cache=cache),
                     lambda: LocalDataset(folder)):
        try:
            dataset = open_set()
            dataset[0]
            print("value")
        except SmaltiError as error:
            print(type(error).__name__, str(error)[-400:].replace("\\n", " "))
"""


def read_in_little_memory(tmp_path, *folders):
    """Return what each reader reports about each set, in a process with little memory."""
    lines = run_in_little_memory(READ, tmp_path, *folders)
    assert len(lines) == 2 * len(folders)
    return lines


def run_in_little_memory(script, tmp_path, *folders):
    """Return the lines that a script prints about each argument, in a process with little memory."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path / "users-cache")}
    command = [sys.executable, "-c", script, str(SPARE), *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, *lines = done.stdout.splitlines()
    assert first == "limited" or sys.platform != "linux"
    return lines


CONVERT = """
import sys
from pathlib import Path
from smalti import convert
from smalti.errors import SmaltiError
from tests.hostile.harness import limit_memory

small, *folders = map(Path, sys.argv[2:])
for folder in small.iterdir():  # imports what they need
    convert(folder, folder.with_suffix(".set"), processes=1)
print("limited" if limit_memory(int(sys.argv[1])) else "unlimited")
for folder in folders:
    try:
        print("rows", convert(folder, folder.with_suffix(".set"), processes=1).rows)
    except SmaltiError as error:
        print(type(error).__name__, str(error)[-600:].replace("\\n", " "))
"""


def write(folder, files):
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def largest_below(folder):
    return max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)


BOMBS = {
    "br": lambda: brotli.compress(bytes(ZEROS * TIMES), quality=1),
    "bz2": lambda: bz2.compress(bytes(ZEROS), 9) * TIMES,
    "gz": lambda: gzip.compress(bytes(ZEROS), 6) * TIMES,
    "snappy": lambda: bytes(cramjam.snappy.compress_raw(bytes(ZEROS * TIMES))),
    "zstd": lambda: zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(ZEROS * TIMES)),
}


@pytest.mark.process
def test_decompression_stops_at_the_declared_size(tmp_path):
    folders = [write(tmp_path / name, packed(name, name, 1000, bomb())) for name, bomb in BOMBS.items()]
    for line in read_in_little_memory(tmp_path, *folders):
        assert line.startswith("FormatError")
        # A zstd frame shows by its blocks alone that more would come out than the index declares.
        assert "longer than the 1000 bytes" in line or "more blocks than its content needs" in line
    assert largest_below(tmp_path / "users-cache") <= 1000
    assert max(largest_below(tmp_path / f"{name}-cache") for name in BOMBS) <= 1000


def sources(folder, size):
    """Write a source of one value of this size in each format that compresses, and return their folders."""
    value = bytes(size)
    table = pa.table({"a": pa.array([value], pa.binary())})
    leaf = struct.pack("<3I", 1, 12, 16 + size) + struct.pack("<I", size) + value
    spec = [1, {"type": None, "context": None, "children_spec": []}]
    config = {"compression": "zstd", "data_format": ["bytes"], "data_spec": json.dumps(spec)}
    folder.mkdir()
    parquet, arrow = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet, compression="zstd", use_dictionary=False)
    with pa.ipc.new_stream(arrow, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return [
        write(folder / "parquet", {"a.parquet": parquet.getvalue()}),
        write(
            folder / "huggingface",
            {
                "a.arrow": arrow.getvalue(),
                "state.json": b'{"_data_files": [{"filename": "a.arrow"}]}',
                "dataset_info.json": b"{}",
            },
        ),
        write(
            folder / "litdata",
            {
                "chunk-0-0.bin": zstandard.compress(leaf),
                "index.json": json.dumps({"chunks": [{"filename": "chunk-0-0.bin"}], "config": config}).encode(),
            },
        ),
        write(folder / "tar", {"a.tar.zst": zstandard.compress(tar_bytes({"a.bin": value}, "w"))}),
    ]


@pytest.mark.nightly
@pytest.mark.process
def test_a_source_that_unpacks_to_more_than_the_memory_is_an_error_that_says_so(tmp_path):
    sources(tmp_path / "small", 1000)
    folders = sources(tmp_path / "large", SPARE)
    lines = run_in_little_memory(CONVERT, tmp_path, tmp_path / "small", *folders)
    assert [
        (folder.name, "takes more memory than this process may use" in line)
        for folder, line in zip(folders, lines, strict=True)
    ] == [(folder.name, True) for folder in folders], lines


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(*extra, width=8, height=8, pixels=b""):
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + _chunk(b"IDAT", zlib.compress(pixels)) + _chunk(b"IEND", b"")
    )


@pytest.mark.process
def test_images_take_no_more_memory_than_their_header_may_declare(tmp_path):
    bomb = zlib.compress(bytes(ZEROS * TIMES), 1)
    images = {
        "text": _png(_chunk(b"zTXt", b"Comment\0\0" + bomb)),
        "international text": _png(_chunk(b"iTXt", b"Comment\0\1\0\0\0" + bomb)),
        "profile": _png(_chunk(b"iCCP", b"icc\0\0" + bomb)),
        "pixels": _png(width=20_000, height=20_000, pixels=bytes(ZEROS)),
        "canvas": b"RIFF" + bytes(4) + b"WEBPVP8X" + struct.pack("<II", 10, 0) + b"\xff\x3f\0" * 2,
        "screen": b"GIF89a" + b"\xff" * 4 + bytes(20),
    }
    folders = [write(tmp_path / name, one_value("png", data)) for name, data in images.items()]
    lines = read_in_little_memory(tmp_path, *folders)
    # A picture with a bomb in a comment may be read without it; nothing else may happen.
    assert {line.split()[0] for line in lines} <= {"value", "UnreadableImage"}
    assert [line.split()[0] for line in lines[-4:]] == ["UnreadableImage"] * 4


DEEP = 100_000
JSON_BOMBS = {
    "lists": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "both": b'[{"a":' * DEEP + b"1" + b"}]" * DEEP,
    "unfinished": b'{"shards": ' + b"[" * DEEP,
    "in an honest index": index(mds())[:-1] + b', "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "below the recursion limit": index(mds())[:-1] + b', "x": ' + b"[" * 500 + b"]" * 500 + b"}",
    "many empty shards": b'{"version": 2, "shards": [' + b"{}," * 300_000 + b"{}]}",
    "many numbers": b'{"version": 2, "shards": [' + b"0," * 1_000_000 + b"0]}",
    "many columns": index(
        mds(column_names=["c"] * 200_000, column_encodings=["int"] * 200_000, column_sizes=[8] * 200_000)
    ),
    "a long text": index(mds(format="x" * 5_000_000)),
    "a long name": index(mds(raw_data={"basename": "x" * 5_000_000, "bytes": 352, "hashes": {}})),
    "a long column": index(mds(column_encodings=["int", "str", "x" * 5_000_000])),
    "a long compression": index(mds(compression="x" * 5_000_000)),
    "many hashes": index(mds(hashes=["x" * 50] * 100_000)),
}


@pytest.mark.parametrize("data", JSON_BOMBS.values(), ids=JSON_BOMBS)
def test_deep_and_long_index_files_are_refused_in_a_short_message(data):
    with pytest.raises(IndexFileError) as refusal:
        parse_index(data, where="index.json")
    assert len(str(refusal.value)) < 2000


@pytest.mark.process
def test_index_files_that_are_too_deep_or_too_large_are_refused_in_little_memory(tmp_path):
    folders = [write(tmp_path / str(i), {"index.json": data}) for i, data in enumerate(JSON_BOMBS.values())]
    huge = write(tmp_path / "huge", {})
    with (huge / "index.json").open("wb") as file:
        file.write(b"{")
        file.truncate(1 << 30)  # a hole: it takes no disk
    lines = read_in_little_memory(tmp_path, huge, *folders)
    assert {line.split()[0] for line in lines} == {"IndexFileError"}


@pytest.mark.process
def test_values_that_expand_are_refused_in_little_memory(tmp_path):
    values = {
        "deep": ("json", b"[" * DEEP + b"]" * DEEP),
        "deep objects": ("json", b'{"a":' * DEEP + b"1" + b"}" * DEEP),
        "digits": ("str_int", b"9" * 1_000_000),
        "decimal": ("str_decimal", b"9" * 1_000_000 + b"x"),
        "array": ("ndarray:float64", bytes([2 << 2 | 2]) + struct.pack("<II", 2**31, 2**31)),
        "pixels": ("pil", struct.pack("<III", 65535, 65535, 3) + b"RGB"),
        "list": ("list[pil]", struct.pack("<II", 0, 2**30)),
        "jpegs": ("jpeg_array", struct.pack("<I", 2**30)),
    }
    folders = [write(tmp_path / name, one_value(*value)) for name, value in values.items()]
    lines = read_in_little_memory(tmp_path, *folders)
    assert {line.split()[0] for line in lines} == {"FormatError", "BadImageError"}


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_a_table_of_shards_with_compressed_columns_is_refused(algorithm, kind):
    column = pa.array([0] * 100_000) if kind == "numbers" else pa.array(["word"] * 100_000).dictionary_encode()
    sink, table = io.BytesIO(), pa.table({"samples": column})
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=algorithm)) as writer:
        writer.write_table(table)
    assert len(sink.getvalue()) < 5000
    with pytest.raises(ValueError, match="compressed"):
        read_arrow_file(sink.getvalue())


TABLE = """
import hashlib
import sys
from pathlib import Path
import pyarrow
from smalti.catalog.table.arrow import parse_table
from smalti.errors import IndexFileError
from tests.hostile.harness import limit_memory

print("limited" if limit_memory(int(sys.argv[1])) else "unlimited")
for path in sys.argv[2:]:
    data = Path(path).read_bytes()
    try:
        parse_table(data, sha256=hashlib.sha256(data).hexdigest(), where="table")
        print("value")
    except IndexFileError as error:
        print(error)
"""


def test_tables_of_shards_whose_rows_take_no_bytes_are_refused_in_little_memory(tmp_path):
    """Columns without buffers, and a long word that many rows share: 2^31 rows in 400 bytes, 12 GB in 6 MB."""
    whole = pa.ipc.open_file(emit_table(parse_index(MDS_INDEXES[0].encode(), where="seed")[0])).read_all()
    many, places = (1 << 31) - 1, pa.array([0] * 2000, pa.int32())
    columns = {
        "nulls": dict.fromkeys(whole.column_names, pa.Array.from_buffers(pa.null(), many, [None])),
        "structs": dict.fromkeys(whole.column_names, pa.Array.from_buffers(pa.struct([]), many, [None])),
        "words": dict.fromkeys(whole.column_names, pa.DictionaryArray.from_arrays(places, pa.array(["x" * 500_000]))),
    }
    for name, arrays in columns.items():
        table = pa.table(arrays).replace_schema_metadata(whole.schema.metadata)
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    lines = run_in_little_memory(TABLE, tmp_path, *(str(tmp_path / name) for name in columns))
    assert [line.split(": ")[0].split(" ")[:2] for line in lines] == [["shard", "table"]] * len(columns), lines


def test_a_table_of_shards_in_an_older_version_of_the_format_is_refused():
    """In that version pyarrow also applies a compression that the metadata names."""
    sink, table = io.BytesIO(), pa.table({"samples": [1, 2]})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match="version"):
        read_arrow_file(sink.getvalue())


def test_an_uncompressed_table_is_read():
    sink, table = io.BytesIO(), pa.table({"a": [1, None, 3], "b": pa.array(["x", None, "x"]).dictionary_encode()})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert read_arrow_file(sink.getvalue()).equals(table)
    for data in (b"", b"ARROW1\0\0", sink.getvalue()[8:], json.dumps({}).encode()):
        with pytest.raises(ValueError):  # noqa: PT011 - the caller adds the place
            read_arrow_file(data)
