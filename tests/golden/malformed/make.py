"""Write the small malformed files of this folder: `python -m tests.golden.malformed.make`.

Attacks too large for the repository are made by the tests. Nothing of Smalti is used here: an attacker does not use it
either.
"""

import json
import struct
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import xxhash

HERE = Path(__file__).parent
Files = dict[str, bytes]


# ---------------------------------------------------------------- parts of honest files


def file(name: Any, data: "bytes | int" = 352, **hashes: Any) -> dict[str, Any]:
    """Return a file of an index entry: its size from its bytes, and its hash."""
    if isinstance(data, int):
        return {"basename": name, "bytes": data, "hashes": hashes or {"sha1": "2e" * 20}}
    return {"basename": name, "bytes": len(data), "hashes": {"xxh3_64": xxhash.xxh3_64_hexdigest(data)}}


def mds(**changes: Any) -> dict[str, Any]:
    """Return an MDS entry of columns id, text and tokens."""
    return {
        "column_encodings": ["int", "str", "ndarray:int32"], "column_names": ["id", "text", "tokens"],
        "column_sizes": [8, None, None], "compression": None, "format": "mds", "hashes": ["sha1"],
        "raw_data": file("shard.00000.mds"), "samples": 3, "size_limit": 67108864, "version": 2, "zip_data": None,
        **changes,
    }  # fmt: skip


def zipped(**changes: Any) -> dict[str, Any]:
    """Return the same entry, compressed."""
    return mds(**{"compression": "zstd", "zip_data": file("shard.00000.mds.zstd", 99), **changes})


def jsonl(**changes: Any) -> dict[str, Any]:
    """Return a JSONL entry."""
    return {
        "columns": {"id": "int", "name": "str"}, "compression": None, "format": "json", "hashes": ["sha1"],
        "newline": "\n", "raw_data": file("shard.00000.json", 568), "raw_meta": file("shard.00000.json.meta", 218),
        "samples": 11, "size_limit": 600, "version": 2, "zip_data": None, "zip_meta": None, **changes,
    }  # fmt: skip


def xsv(**changes: Any) -> dict[str, Any]:
    """Return an XSV entry."""
    entry = jsonl(format="xsv", separator="|", column_names=["id", "name"], column_encodings=["int", "str"])
    del entry["columns"]
    return {**entry, **changes}


def index(*entries: Any, **top: Any) -> bytes:
    """Return an index file of these entries."""
    return json.dumps({"shards": list(entries), "version": 2, **top}, sort_keys=True).encode()


def without(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the entry without one of its keys."""
    return {name: value for name, value in entry.items() if name != key}


# ---------------------------------------------------------------- index files

_HEALTHY = index(mds())
INDEXES: Files = {
    "accepted-healthy": _HEALTHY,
    "accepted-unknown-keys": index(mds(future=[1]), smalti_other={"x": 1}),
    "accepted-no-shards": index(),
    "empty": b"",
    "cut": _HEALTHY[:200],
    "not-utf8": _HEALTHY.replace(b"tokens", b"\xff\xfe\xff\xfe\xff\xfe", 1),
    "utf16": _HEALTHY.decode().encode("utf-16"),
    "byte-order-mark": b"\xef\xbb\xbf" + _HEALTHY,
    "two-documents": _HEALTHY + _HEALTHY,
    "key-twice": _HEALTHY.replace(b'"samples": 3', b'"samples": 3, "samples": 4'),
    "version-twice": _HEALTHY[:-1] + b', "version": 2}',
    "nan": _HEALTHY[:-1] + b', "x": NaN}',
    "number-beyond-float": _HEALTHY[:-1] + b', "x": 1e999}',
    "number-of-5000-digits": _HEALTHY[:-1] + b', "x": ' + b"9" * 5000 + b"}",
    "html": b"<!doctype html><title>503 Service Unavailable</title>",
    "a-list": b"[]",
    "a-number": b"7",
    "samples-negative": index(mds(samples=-5)),
    "samples-billion": index(mds(samples=1_000_000_000)),
    "samples-fraction": index(mds(samples=1.5)),
    "samples-text": index(mds(samples="7")),
    "samples-true": index(mds(samples=True)),
    "samples-null": index(mds(samples=None)),
    "samples-beyond-64-bit": index(mds(samples=2**64 + 3)),
    "samples-one-too-many": index(mds(samples=87)),
    "text-samples-too-many": index(jsonl(samples=53)),
    "text-samples-more-than-lines": index(jsonl(raw_data=file("shard.00000.json", 10))),
    "bytes-negative": index(mds(raw_data=file("a", -1))),
    "bytes-huge": index(mds(raw_data=file("a", 2**62))),
    "bytes-4-gib": index(mds(raw_data=file("a", 2**32))),
    "bytes-text": index(mds(raw_data={**file("a"), "bytes": "352"})),
    "zip-bytes-huge": index(zipped(zip_data=file("a.zstd", 2**62))),
    "meta-bytes-huge": index(jsonl(raw_meta=file("a.meta", 2**62))),
    "encoding-unknown": index(mds(column_encodings=["int", "str", "os.system"])),
    "encoding-not-text": index(mds(column_encodings=["int", "str", ["ndarray"]])),
    "encoding-of-4-gib": index(mds(column_encodings=["int", "str", "ndarray:uint8:70000,70000"])),
    "encoding-of-64-axes": index(mds(column_encodings=["int", "str", "ndarray:uint8:" + ",".join("1" * 64)])),
    "encoding-with-other-digits": index(mds(column_encodings=["int", "str", "ndarray:uint8:\u0663"])),
    "text-encoding-unknown": index(jsonl(columns={"id": "pkl", "name": "str"})),
    "format-unknown": index(mds(format="parquet")),
    "format-missing": index(without(mds(), "format")),
    "format-of-another": index(mds(format="json")),
    "version-missing": b'{"shards": []}',
    "version-of-entry-missing": index(without(mds(), "version")),
    "raw-missing": index(without(mds(), "raw_data")),
    "meta-missing": index(without(jsonl(), "raw_meta")),
    "zip-missing": index(zipped(zip_data=None)),
    "zip-without-compression": index(zipped(compression=None)),
    "zip-meta-missing": index(jsonl(compression="zstd", zip_data=file("shard.00000.json.zstd", 90))),
    "compression-unknown": index(zipped(compression="lzma")),
    "compression-level": index(zipped(compression="zstd:99")),
    "entry-null": index(None),
    "shards-object": index() .replace(b"[]", b"{}"),
    "version-newer": index(mds(), version=3),
    "version-of-entry-newer": index(mds(version=3)),
    "version-float": index(mds(), version=2.0),
    "version-true": index(mds(version=True)),
    "shard-twice": index(mds(), mds()),
    "file-of-two-shards": index(mds(), mds(raw_data=file("other.mds"), compression="zstd",
    zip_data=file("shard.00000.mds"))),
    "raw-is-zip": index(zipped(zip_data=file("shard.00000.mds", 99))),
    "data-is-meta": index(jsonl(raw_meta=file("shard.00000.json", 218))),
    "column-size-negative": index(mds(column_sizes=[-8, None, None])),
    "column-size-zero": index(mds(column_sizes=[0, None, None])),
    "column-size-of-another": index(mds(column_sizes=[4, None, None])),
    "column-size-for-text": index(mds(column_sizes=[8, 5, None])),
    "column-size-true": index(mds(column_sizes=[8, None, True])),
    "columns-none": index(mds(column_names=[], column_encodings=[], column_sizes=[])),
    "columns-uneven": index(mds(column_sizes=[8, None])),
    "column-twice": index(mds(column_names=["id", "text", "text"])),
    "column-not-text": index(mds(column_names=["id", "text", 3])),
    "column-lone-surrogate": index(mds(column_names=["id", "text", "\ud800"])),
    "text-column-twice": index(xsv(column_names=["id", "id"])),
    "hash-declared-and-absent": index(mds(hashes=["sha1", "xxh64"])),
    "hash-declared-and-absent-for-zip": index(zipped(zip_data=file("shard.00000.mds.zstd", 99, md5="ab" * 16))),
    "hash-declared-and-absent-for-meta": index(jsonl(raw_meta=file("shard.00000.json.meta", 218, md5="ab" * 16))),
    "hash-unknown": index(mds(raw_data=file("a", 352, sha1="2e" * 20, crc32="00000000"))),
    "hash-short": index(mds(raw_data=file("a", 352, sha1="2e" * 19))),
    "hash-upper-case": index(mds(raw_data=file("a", 352, sha1="2E" * 20))),
    "hash-null": index(mds(raw_data=file("a", 352, sha1=None))),
    "size-limit-negative": index(mds(size_limit=-1)),
    "size-limit-huge": index(mds(size_limit=2**64)),
    "newline-empty": index(xsv(newline="")),
    "newline-long": index(xsv(newline="\n" * 10_000)),
    "newline-is-separator": index(xsv(separator="\n")),
    "separator-number": index(xsv(separator=3)),
    "separator-missing": index(without(xsv(), "separator")),
    "name-parent-raw": index(mds(raw_data=file("../shard.00000.mds"))),
    "name-parent-zip": index(zipped(zip_data=file("../../etc/cron.d/x.zstd", 99))),
    "name-parent-meta": index(jsonl(raw_meta=file("a/../../x.meta", 218))),
    "name-absolute-raw": index(mds(raw_data=file("/etc/passwd"))),
    "name-absolute-meta": index(jsonl(raw_meta=file("/etc/passwd", 218))),
    "name-url": index(mds(raw_data=file("http://169.254.169.254/latest/meta-data"))),
    "name-null": index(mds(raw_data=file(None))),
}  # fmt: skip


# ---------------------------------------------------------------- shards


def shard(
    samples: Sequence[bytes], *, count: int | None = None, offsets: Sequence[int] | None = None, config: bytes = b"{}"
) -> bytes:
    """Return an MDS shard; `count` and `offsets` replace the true ones."""
    begin = 8 + 4 * len(samples) + len(config)
    ends = [begin]
    for sample in samples:
        ends.append(ends[-1] + len(sample))
    table = offsets if offsets is not None else ends
    return b"".join(
        [
            struct.pack("<I", len(samples) if count is None else count),
            struct.pack(f"<{len(table)}I", *table),
            config,
            *samples,
        ]
    )


def sample(*values: bytes) -> bytes:
    """Return a sample of variable-size columns only."""
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def one_column(encoding: str, data: bytes, *, samples: int = 1, size: int | None = None) -> Files:
    """Return a set of one shard with one column called `x`, fitting hashes, and any samples."""
    entry = mds(
        column_names=["x"], column_encodings=[encoding], column_sizes=[size], hashes=["xxh3_64"], samples=samples,
        raw_data=file("shard.00000.mds", data), size_limit=None,
    )  # fmt: skip
    return {"index.json": index(entry), "shard.00000.mds": data}


def one_value(encoding: str, value: bytes) -> Files:
    """Return a set of one sample with one value."""
    return one_column(encoding, shard([sample(value)]))


def lines(kind: str, data: bytes, ends: Sequence[int], *, count: int | None = None, **changes: Any) -> Files:
    """Return a set of one text shard; `ends` are its offsets."""
    n = len(ends) - 1 if count is None else count
    meta = struct.pack("<I", n) + struct.pack(f"<{len(ends)}I", *ends) + b"{}"
    make = jsonl if kind == "json" else xsv
    entry = make(
        raw_data=file(f"shard.00000.{kind}", data), raw_meta=file(f"shard.00000.{kind}.meta", meta), hashes=["xxh3_64"],
        samples=len(ends) - 1, **changes,
    )  # fmt: skip
    return {"index.json": index(entry), f"shard.00000.{kind}": data, f"shard.00000.{kind}.meta": meta}


def packed(compression: str, extension: str, raw_bytes: int, data: bytes) -> Files:
    """Return a compressed set whose one file is `data`, and whose index declares a content of `raw_bytes`."""
    name = f"shard.00000.mds.{extension}"
    raw = {"basename": "shard.00000.mds", "bytes": raw_bytes, "hashes": {}}
    entry = mds(
        column_names=["x"], column_encodings=["bytes"], column_sizes=[None], hashes=[], samples=1, raw_data=raw,
        compression=compression, zip_data=file(name, data),
    )  # fmt: skip
    return {"index.json": index(entry), name: data}


def _png(width: int, height: int) -> bytes:
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def _jpeg(width: int, height: int) -> bytes:
    frame = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    scan = struct.pack(">HB", 8, 1) + b"\x01\x00\x00\x3f\x00"
    return b"\xff\xd8\xff\xc0" + frame + b"\xff\xda" + scan + b"\x00\xff\xd9"


def _archive() -> bytes:
    out = BytesIO()
    with ZipFile(out, "w") as archive:
        archive.writestr(ZipInfo("payload.py"), "raise SystemExit('run')")
    return out.getvalue()


def _pil(width: int, height: int, mode: bytes, pixels: bytes = b"", *, mode_chars: int | None = None) -> bytes:
    return struct.pack("<III", width, height, len(mode) if mode_chars is None else mode_chars) + mode + pixels


def _list(count: int, sizes: Sequence[int], data: bytes) -> bytes:
    return struct.pack(f"<II{len(sizes)}I", 0, count, *sizes) + data


_TWO = [sample(b"abc"), sample(b"defg")]
_AT = 8 + 4 * 2 + 2  # where the first of two samples begins behind a config of two bytes
SETS: dict[str, Callable[[], Files]] = {
    "accepted-healthy": lambda: one_column("bytes", shard(_TWO), samples=2),
    "accepted-padding-in-sample": lambda: one_column("bytes", shard([_TWO[0] + bytes(9), _TWO[1]]), samples=2),
    "accepted-archive-in-config": lambda: one_column("bytes", shard(_TWO, config=_archive()), samples=2),
    "accepted-empty-shard": lambda: one_column("bytes", shard([]), samples=0),
    "offsets-fall": lambda: one_column("bytes", shard(_TWO, offsets=[_AT, _AT - 1, _AT + 15]), samples=2),
    "offsets-overlap": lambda: one_column("bytes", shard(_TWO, offsets=[_AT + 9, _AT, _AT + 15]), samples=2),
    "offsets-beyond-the-file": lambda: one_column("bytes", shard(_TWO, offsets=[_AT, _AT + 7, 2**32 - 1]), samples=2),
    "offsets-into-the-table": lambda: one_column("bytes", shard(_TWO, offsets=[4, _AT + 7, _AT + 15]), samples=2),
    "hole-behind-the-samples": lambda: one_column("bytes", shard(_TWO) + b"hidden", samples=2),
    "archive-behind-the-samples": lambda: one_column("bytes", shard(_TWO) + _archive(), samples=2),
    "archive-in-front": lambda: one_column("bytes", _archive() + shard(_TWO), samples=2),
    "count-above-the-index": lambda: one_column("bytes", shard(_TWO, count=3), samples=2),
    "count-below-the-index": lambda: one_column("bytes", shard(_TWO), samples=3),
    "count-of-all-bits": lambda: one_column("bytes", shard(_TWO, count=2**32 - 1), samples=2),
    "length-wraps": lambda: one_column("bytes", shard([struct.pack("<I", 2**32 - 1) + b"abc"])),
    "length-beyond-the-sample": lambda: one_column(
        "bytes", shard([struct.pack("<I", 8) + b"abc", sample(b"defg")]), samples=2
    ),
    "sample-shorter-than-lengths": lambda: one_column("bytes", shard([b"ab", sample(b"x")]), samples=2),
    "fixed-column-cut": lambda: one_column("int", shard([bytes(7)]), size=8),
    "fixed-array-cut": lambda: one_column("ndarray:float64:1000,1000", shard([bytes(64)]), size=8_000_000),
    "text-not-utf8": lambda: one_value("str", b"ab\xff"),
    "text-surrogate": lambda: one_value("str", b"\xed\xa0\x80"),
    "json-cut": lambda: one_value("json", b'{"a": [1'),
    "json-deep": lambda: one_value("json", b"[" * 5000 + b"]" * 5000),
    "json-not-utf8": lambda: one_value("json", b'"\xff"'),
    "digits-without-end": lambda: one_value("str_int", b"9" * 5000),
    "digits-that-are-none": lambda: one_value("str_int", b"__import__('os')"),
    "decimal-that-is-none": lambda: one_value("str_decimal", b"1,5"),
    "array-of-unknown-type": lambda: one_value("ndarray", bytes([7, 1 << 2, 1, 0])),
    "array-without-shape": lambda: one_value("ndarray", bytes([8])),
    "array-larger-than-its-bytes": lambda: one_value("ndarray:uint8", bytes([1 << 2, 200]) + bytes(10)),
    "array-whose-size-wraps": lambda: one_value(
        "ndarray:uint8", bytes([2 << 2 | 2]) + struct.pack("<II", 2**31, 2**31)
    ),
    "array-whose-size-wraps-in-64-bit": lambda: one_value(
        "ndarray:uint8", bytes([2 << 2 | 3]) + struct.pack("<QQ", 2**63, 2)
    ),
    "array-of-63-axes": lambda: one_value("ndarray:uint8", bytes([63 << 2, *[255] * 63]) + bytes(8)),
    "pil-65535-square": lambda: one_value("pil", _pil(65535, 65535, b"RGB", bytes(99))),
    "pil-size-wraps": lambda: one_value("pil", _pil(2**31, 2**31, b"L", bytes(99))),
    "pil-mode-of-4-gib": lambda: one_value("pil", _pil(1, 1, b"RGB", bytes(3), mode_chars=2**32 - 1)),
    "pil-mode-unknown": lambda: one_value("pil", _pil(1, 1, b"EVIL", bytes(4))),
    "pil-cut": lambda: one_value("pil", _pil(2, 2, b"RGB", bytes(11))),
    "png-65535-square": lambda: one_value("png", _png(65535, 65535)),
    "png-2-gigapixel-line": lambda: one_value("png", _png(2**31 - 1, 1)),
    "jpeg-65535-square": lambda: one_value("jpeg", _jpeg(65535, 65535)),
    "image-of-another-format": lambda: one_value("png", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"),
    "image-postscript": lambda: one_value("jpeg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n"),
    "list-of-2-to-30": lambda: one_value("list[pil]", _list(2**30, [], b"")),
    "list-of-2-to-30-jpeg": lambda: one_value("list[jpeg]", _list(2**30, [4], b"abcd")),
    "list-of-all-bits": lambda: one_value("list[png]", _list(2**32 - 1, [4], b"abcd")),
    "list-size-beyond": lambda: one_value("list[png]", _list(1, [2**32 - 1], b"abcd")),
    "list-sizes-that-wrap": lambda: one_value("list[jpeg]", _list(2, [2**31, 2**31], b"")),
    "jpeg-array-of-2-to-30": lambda: one_value("jpeg_array", struct.pack("<I", 2**30)),
    "jpeg-array-sizes-that-wrap": lambda: one_value("jpeg_array", struct.pack("<III", 2, 2**32 - 4, 8) + b"abcd"),
    "snappy-claims-4-gib": lambda: packed("snappy", "snappy", 2**32 - 1, b"\xff\xff\xff\xff\x0f\x00a"),
    "snappy-claims-more-than-the-index": lambda: packed("snappy", "snappy", 100, b"\xff\xff\xff\xff\x0f\x00a"),
    "zstd-claims-2-to-62": lambda: packed(
        "zstd", "zstd", 100, bytes.fromhex("28b52ffde0") + struct.pack("<Q", 2**62) + b"\x01\x00\x00"
    ),
    "zstd-window-of-3-tib": lambda: packed("zstd", "zstd", 100, bytes.fromhex("28b52ffd00f8010000")),
    "zstd-is-gzip": lambda: packed("zstd", "zstd", 100, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00" + bytes(8)),
    "gz-is-nothing": lambda: packed("gz", "gz", 100, b""),
    "bz2-cut": lambda: packed("bz2", "bz2", 100, b"BZh91AY&SY"),
    "br-is-text": lambda: packed("br", "br", 100, b"\xff\xff\xff\xff\xff\xff"),
    "lines-accepted-healthy": lambda: lines("json", b'{"id": 1, "name": "a"}\n', [0, 23]),
    "lines-offset-beyond-the-data": lambda: lines("json", b'{"id": 1, "name": "a"}\n', [0, 4000]),
    "lines-offsets-fall": lambda: lines("json", b'{"id": 1, "name": "a"}\n' * 2, [0, 50, 46]),
    "lines-hole-in-front": lambda: lines("json", b'hidden\n{"id": 1, "name": "a"}\n', [7, 30]),
    "lines-hole-behind": lambda: lines("json", b'{"id": 1, "name": "a"}\nhidden', [0, 23]),
    "lines-count-of-all-bits": lambda: lines("json", b'{"id": 1, "name": "a"}\n', [0, 23], count=2**32 - 1),
    "lines-cut-inside": lambda: lines("json", b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n', [0, 20, 46]),
    "lines-key-twice": lambda: lines("json", b'{"id": 1, "id": 2, "name": "a"}\n', [0, 32]),
    "lines-column-missing": lambda: lines("json", b'{"id": 1}\n', [0, 10]),
    "lines-text-for-a-number": lambda: lines("json", b'{"id": "1", "name": "a"}\n', [0, 25]),
    "lines-deep": lambda: lines("json", b"[" * 5000 + b"\n", [0, 5001]),
    "xsv-other-header": lambda: lines("xsv", b"id|nome\n1|a\n", [8, 12]),
    "xsv-header-missing": lambda: lines("xsv", b"1|a\n", [0, 4]),
    "xsv-value-too-many": lambda: lines("xsv", b"id|name\n1|a|b\n", [8, 14]),
    "xsv-digits-with-underscore": lambda: lines("xsv", b"id|name\n1_0|a\n", [8, 14]),
    "xsv-not-utf8": lambda: lines("xsv", b"id|name\n1|\xff\n", [8, 12]),
}


def all_files() -> Files:
    """Return every small file of this folder by its path in it."""
    files = {f"indexes/{name}.json": data for name, data in INDEXES.items()}
    for name, make in SETS.items():
        files.update({f"sets/{name}/{part}": data for part, data in make().items()})
    return files


def main() -> None:
    """Write all files."""
    for name, data in all_files().items():
        path = HERE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
