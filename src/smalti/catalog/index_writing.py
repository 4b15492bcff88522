"""Putting index files: small ones from memory, those of very many shards entry by entry through a temporary file."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from smalti.catalog.checked_puts import ATTEMPTS
from smalti.catalog.index_replacing import replace_index
from smalti.catalog.peeking import EXTRA
from smalti.errors import CatalogError
from smalti.format import ShardInfo, emit_index
from smalti.format.info import VERSION
from smalti.storage import Store

MANY_SHARDS = 4096
"""From so many on an index file, some megabytes, is written part by part: a million entries are 700 MB."""
_AT_ONCE = 1024


def put_index(store: Store, key: str, shards: Sequence[ShardInfo], extra: Mapping[str, Any], folder: str = "") -> None:
    """Replace an index file, unless a newer version's is there, and see that the store has one.

    One of very many shards is put whatever is there.

    Args:
        store: Where it goes.
        key: Its name.
        shards: Those that it lists.
        extra: Its further top-level keys.
        folder: What is cut off from the names of files, `train/`; a shard is then listed without its split.

    Raises:
        CatalogError: the store says that it took the file, and holds nothing.
    """
    listed = (_inside(shard, folder) if folder else shard for shard in shards)
    if len(shards) < MANY_SHARDS:
        replace_index(store, key, emit_index(list(listed), extra), extra.get(EXTRA, {}).get("version", 0))
        return
    with tempfile.TemporaryDirectory(prefix="smalti-index-") as scratch:
        path = Path(scratch, "index.json")
        with path.open("wb") as file:
            file.writelines(index_parts(listed, extra))
        for _ in range(ATTEMPTS):
            store.put_file(key, path)
            if store.size(key):  # of whatever length: another publisher's may stand there by now
                return
    raise CatalogError(
        f"{store.locate(key)}: the store took an index file without an error, and holds nothing; publish again, and "
        "check the store's own log: it loses what is written",
        key=key,
    )


def index_parts(shards: Iterable[ShardInfo], extra: Mapping[str, Any]) -> Iterator[bytes]:
    """The bytes that `emit_index` makes of the same, some thousand entries at a time.

    Raises:
        IndexFileError: as for `emit_index`.
    """
    emit_index([], extra)  # refuses what it refuses
    separator = "{"
    for key in sorted((*extra, "shards", "version")):
        yield f"{separator}{json.dumps(key)}: ".encode()
        separator = ", "
        if key == "shards":
            yield from _entries(iter(shards))
        else:
            yield json.dumps(VERSION if key == "version" else extra[key], sort_keys=True).encode()
    yield b"}"


def _entries(shards: Iterator[ShardInfo]) -> Iterator[bytes]:
    separator = "["
    while part := list(islice(shards, _AT_ONCE)):
        yield (separator + json.dumps([shard.to_json() for shard in part], sort_keys=True)[1:-1]).encode()
        separator = ", "
    yield b"]" if separator == ", " else b"[]"


def _inside(shard: ShardInfo, folder: str) -> ShardInfo:
    """The shard as seen from the folder that it lies in."""
    return replace(shard.with_names(lambda name: name.removeprefix(folder)), partition=None)
