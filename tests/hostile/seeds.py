"""Undamaged index files to start from: every format, compressed and not, of one shard and of several."""

import json
from typing import Any

TEXT_COLUMNS = {"id": "int", "name": "str", "x": "float"}


def _file(basename: str, num_bytes: int, hashes: dict[str, str]) -> dict[str, Any]:
    return {"basename": basename, "bytes": num_bytes, "hashes": hashes}


def mds_entry(name: str, *, zipped: bool = False, columns: dict[str, int | None] | None = None) -> dict[str, Any]:
    """Return the entry of one MDS shard; `columns` is encoding to size."""
    columns = columns or {"int": 8, "str": None, "ndarray:int32": None}
    digest = {"sha1": "2e" * 20, "xxh64": "b8e48c8e5bc44b7d"}
    return {
        "column_encodings": list(columns),
        "column_names": [f"c{i}" for i in range(len(columns))],
        "column_sizes": list(columns.values()),
        "compression": "zstd:7" if zipped else None,
        "format": "mds",
        "hashes": sorted(digest),
        "raw_data": _file(f"{name}.mds", 352, digest),
        "samples": 3,
        "size_limit": 67108864,
        "version": 2,
        "zip_data": _file(f"{name}.mds.zstd", 99, digest) if zipped else None,
    }


def text_entry(kind: str, name: str, *, zipped: bool = False) -> dict[str, Any]:
    """Return the entry of one JSONL, CSV, TSV or XSV shard."""
    if kind == "json":
        own: dict[str, Any] = {"columns": TEXT_COLUMNS}
    else:
        own = {"column_encodings": list(TEXT_COLUMNS.values()), "column_names": list(TEXT_COLUMNS)}
    if kind == "xsv":
        own["separator"] = "|"
    digest = {"sha1": "b1" * 20}
    base = f"{name}.{kind}"
    return {
        **own,
        "compression": "zstd" if zipped else None,
        "format": kind,
        "hashes": ["sha1"],
        "newline": "\n",
        "raw_data": _file(base, 568, digest),
        "raw_meta": _file(f"{base}.meta", 218, digest),
        "samples": 11,
        "size_limit": 600,
        "version": 2,
        "zip_data": _file(f"{base}.zstd", 241, digest) if zipped else None,
        "zip_meta": _file(f"{base}.meta.zstd", 184, digest) if zipped else None,
    }


def _index(*entries: dict[str, Any], **extra: Any) -> str:
    return json.dumps({"shards": list(entries), "version": 2, **extra}, sort_keys=True)


_MANY: dict[str, int | None] = {
    "bytes": None, "float32": 4, "int16": 2, "jpeg": None, "json": None, "ndarray:uint8:2,3": 6, "pil": None,
    "str_int": None,
    "list[png]": None, "jpeg_array": None,
}  # fmt: skip

MDS_INDEXES = [
    _index(mds_entry("shard.00000")),
    _index(mds_entry("shard.00000", zipped=True)),
    _index(mds_entry("train/29/shard.00000"), mds_entry("train/30/shard.00000", zipped=True)),
    _index(mds_entry("s", columns=_MANY), smalti={"version": 3, "rows": 3, "parent": None}),
    _index(),
]
TEXT_INDEXES = [
    _index(text_entry(kind, "shard.00000", zipped=zipped))
    for kind in ("json", "csv", "tsv", "xsv")
    for zipped in (False, True)
]
MIXED_INDEXES = [_index(mds_entry("a/shard.00000"), text_entry("json", "b/shard.00000", zipped=True))]
