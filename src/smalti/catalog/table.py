"""The table of shards as an Arrow file: a million shards are 200 MB, where JSON takes 450 and half as long again.

Sets of MDS shards have layout 1. Layout 2 has further columns for the meta files, line ends and separators of text
shards; only sets that have such shards are written so.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smalti.catalog.arrow_file import read_arrow_file
from smalti.catalog.columns import Columns, Numbers, Texts, Words
from smalti.catalog.manifest import check_shards
from smalti.catalog.mapped import Buffer, State, checked_sha256, let_go, map_file
from smalti.catalog.rows import Rows
from smalti.catalog.screening import screen
from smalti.catalog.shard_table import ShardTable, TableContent
from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, load_strict

TABLE_VERSION = 1
TEXT_TABLE_VERSION = 2
_COLUMNS: dict[str, type] = {
    "schema": Numbers, "partition": Words, "samples": Numbers, "raw_name": Texts, "raw_bytes": Numbers,
    "raw_hashes": Texts, "zip_name": Texts, "zip_bytes": Numbers, "zip_hashes": Texts, "compression": Words,
    "hash_names": Words, "size_limit": Numbers,
}  # fmt: skip
_TEXT_COLUMNS: dict[str, type] = {
    "format": Words, "newline": Words, "separator": Words, "meta_name": Texts, "meta_bytes": Numbers,
    "meta_hashes": Texts, "zip_meta_name": Texts, "zip_meta_bytes": Numbers, "zip_meta_hashes": Texts,
}  # fmt: skip
_NO_ROWS = np.zeros(0, np.int64)


def emit_table(shards: Sequence[ShardInfo]) -> bytes:
    """The Arrow IPC file of the shards; the same shards give the same bytes on one version of Arrow."""
    import pyarrow as pa

    schemas: dict[Schema, int] = {}
    for shard in shards:
        schemas.setdefault(shard.schema, len(schemas))
    arrays = [
        pa.array([schemas[shard.schema] for shard in shards], pa.int32()),
        _words(pa, [shard.partition for shard in shards]),
        pa.array([shard.samples for shard in shards], pa.int64()),
        *_file_arrays(pa, [shard.raw for shard in shards]),
        *_file_arrays(pa, [shard.zip for shard in shards]),
        _words(pa, [shard.compression for shard in shards]),
        _words(pa, [",".join(shard.hash_names) for shard in shards]),
        pa.array([shard.size_limit for shard in shards], pa.int64()),
    ]
    has_text = any(shard.meta is not None for shard in shards)
    if has_text:
        arrays += [
            *(_words(pa, [getattr(shard, name) for shard in shards]) for name in ("format", "newline", "separator")),
            *_file_arrays(pa, [shard.meta for shard in shards]),
            *_file_arrays(pa, [shard.zip_meta for shard in shards]),
        ]
    about = {
        "version": TEXT_TABLE_VERSION if has_text else TABLE_VERSION,
        "schemas": [{"names": s.names, "encodings": s.encodings, "sizes": s.sizes} for s in schemas],
    }
    names = (*_COLUMNS, *_TEXT_COLUMNS) if has_text else _COLUMNS
    table = pa.table(dict(zip(names, arrays, strict=True))).replace_schema_metadata(
        {"smalti": json.dumps(about, sort_keys=True)}
    )
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parse_table(data: bytes, *, sha256: str, where: str) -> ShardTable:
    """The shards of an Arrow file, checked against the digest that its header declares, and as an index file is.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content cannot be trusted.
    """
    return ShardTable(_content(data, where, sha256, partial(_unpickled, data, where)))


def map_table(path: Path, *, sha256: str, where: str) -> ShardTable:
    """The same of a file of this machine, which is mapped: what nobody asks for is not kept in memory.

    Raises:
        IndexFileError: as for `parse_table`.
        OSError: the file cannot be mapped.
    """
    data, state = map_file(path)
    return ShardTable(_content(data, where, sha256, partial(_mapped_again, path, where, sha256, state)))


def _unpickled(data: bytes, where: str) -> TableContent:
    """The content of bytes that this or another process checked, and sent here."""
    return _content(data, where, None, partial(_unpickled, data, where))


def _mapped_again(path: Path, where: str, sha256: str, state: State) -> TableContent:
    """The content of a file that another process checked, if it is still the same; else it is checked here."""
    try:
        data, found = map_file(path)
    except OSError as error:
        raise IndexFileError(f"shard table {where} cannot be opened here: {error.strerror}", key=where) from error
    known = None if found == state else sha256
    return _content(data, where, known, partial(_mapped_again, path, where, sha256, found))


def _content(data: Buffer, where: str, sha256: str | None, reopen: Callable[[], TableContent]) -> TableContent:
    """The content of a table's bytes.

    Args:
        data: The Arrow file.
        where: Its address, for messages.
        sha256: What its header says; None for bytes that were checked before, which are not looked at again.
        reopen: Makes the same in another process.

    Raises:
        IndexFileError: as for `parse_table`.
    """
    what = f"shard table {where}"
    try:
        if sha256 is None:
            return _opened(data, what, reopen, is_known=True)
        with checked_sha256(data, sha256, what=what, key=where):
            return _opened(data, what, reopen, is_known=False)
    except FormatError:
        raise
    except (SchemaError, CatalogError) as error:
        raise IndexFileError(f"{what}: {error.message[:500]}", key=where) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFileError(f"{what} cannot be read: {str(error)[:200]}", key=where) from error


def _opened(data: Buffer, what: str, reopen: Callable[[], TableContent], *, is_known: bool) -> TableContent:
    table = read_arrow_file(data, checked=is_known)
    about = load_strict((table.schema.metadata or {})[b"smalti"], where=what)
    if about["version"] not in (TABLE_VERSION, TEXT_TABLE_VERSION):
        raise IndexFileError(
            f"{what} has layout {about['version']!r:.40}, this reader knows {TEXT_TABLE_VERSION}: update smalti"
        )
    kinds = {**_COLUMNS, **_TEXT_COLUMNS} if about["version"] == TEXT_TABLE_VERSION else _COLUMNS
    columns, rows = Columns.of(table, kinds), Rows(about["schemas"], what)
    content = TableContent(columns, rows, _NO_ROWS, reopen)
    if is_known or not table.num_rows:
        return content
    screened = screen(columns, table.num_rows, partial(let_go, data))
    let_go(data)
    suspects = [content.read(row, row + 1)[0] for row in screened.suspects.tolist()]
    check_shards(suspects, suspects[0].schema)
    return replace(content, kinds=screened.kinds)


def _words(pa: Any, values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string()).cast(pa.dictionary(pa.int32(), pa.string()))


def _file_arrays(pa: Any, files: Sequence[FileInfo | None]) -> tuple[Any, Any, Any]:
    return (
        pa.array([None if file is None else file.basename for file in files], pa.string()),
        pa.array([None if file is None else file.num_bytes for file in files], pa.int64()),
        pa.array(
            [None if file is None else json.dumps(dict(file.hashes), sort_keys=True) for file in files], pa.string()
        ),
    )
