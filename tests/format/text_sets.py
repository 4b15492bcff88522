"""Text shards in a folder, for tests of reading."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti.format import FileInfo, ShardInfo, ShardOptions, text_schema
from smalti.format.hashing import digest_bytes
from smalti.format.text import layout_of
from tests.text_writers import TextBuilder

COLUMNS = {"id": "int", "name": "str", "x": "float"}
KINDS = {"json": None, "csv": ",", "tsv": "\t", "xsv": "||"}


def builder(kind: str, columns: Any = None, *, newline: str = "\n", **options: Any) -> TextBuilder:
    """Return a builder of one format."""
    layout = layout_of(kind, text_schema(columns or COLUMNS), newline, KINDS[kind])
    return TextBuilder(layout, ShardOptions(**options))


def one_shard(folder: Path, kind: str, samples: Any, columns: Any = None, **options: Any) -> ShardInfo:
    """Write the samples as one uncompressed shard in `folder`, and return its entry."""
    made = builder(kind, columns, size_limit=None, **options)
    for sample in samples:
        assert not made.add(sample)
    (filled,) = made.finish()
    built = filled.seal()
    for file, data in zip(built.info.stored_files, built.payloads, strict=True):
        (folder / file.basename).write_bytes(data)
    return built.info


def rewritten(folder: Path, info: ShardInfo, *, data: bytes | None = None, meta: bytes | None = None) -> ShardInfo:
    """Replace files of a shard, and return its entry with fitting sizes and hashes: only the content is wrong."""

    def put(file: FileInfo, content: bytes) -> FileInfo:
        (folder / file.basename).write_bytes(content)
        return replace(file, num_bytes=len(content), hashes=digest_bytes(content, file.hashes))

    if data is not None:
        info = replace(info, raw=put(info.raw, data))
    if meta is not None and info.meta is not None:
        info = replace(info, meta=put(info.meta, meta))
    return info


def paths(folder: Path, info: ShardInfo) -> list[Path]:
    """Return the paths of its uncompressed files."""
    return [folder / file.basename for file in info.raw_files]
