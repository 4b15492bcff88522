"""The summary of an index file: Smalti's key in it, read without fetching or parsing a list of a million shards."""

import json
import re
from dataclasses import dataclass
from typing import Any

from smalti.catalog.header import INDEX, parse_json
from smalti.catalog.table.foreign_index import RegularIndex, read_regular
from smalti.errors import IndexFileError, StoreNotFound
from smalti.format import MAX_INDEX_BYTES
from smalti.storage import Store

EXTRA = "smalti"
"""Smalti's own top-level key in an index file; other readers ignore it."""
PEEK_BYTES = 1 << 20
"""An index file up to this size is read and parsed as a whole."""

_KEY = b'"smalti": '
_END = re.compile(r', "version": 2}\s*\Z')


@dataclass(frozen=True)
class IndexSummary:
    """The parts of an index file that are needed to find versions, and its content if it was read anyway."""

    extra: dict[str, Any] | None
    """The value of Smalti's key; None when another program wrote the file."""
    top: dict[str, Any] | None = None
    """The whole file, parsed, when it was small enough to be read at once."""
    regular: RegularIndex | None = None
    """The shards of a large file whose entries are all alike."""
    is_empty: bool = False
    """True if the file is empty, because the store lost a write that it acknowledged; `_versions/` is authoritative."""


def peek_index(store: Store) -> IndexSummary | None:
    """Read the summary of the index file at this place; None when there is no such file.

    Raises:
        IndexFileError: it is not JSON, or Smalti's key is not an object.
    """
    try:
        head = store.get_range(INDEX, 0, PEEK_BYTES)
        if not head:
            return IndexSummary(None, is_empty=True)
        if len(head) < PEEK_BYTES:
            return _parse_whole(head, store)
        size = store.size(INDEX)
        extra = _from_tail(store.get_range(INDEX, size - PEEK_BYTES, size))
        if extra is not None:  # a million shards of Smalti's own are 700 MB, which need not be parsed
            return IndexSummary(extra)
        check_index_size(size, store.locate(INDEX))
        data = store.get(INDEX)
    except StoreNotFound:
        return None
    regular = read_regular(data, where=store.locate(INDEX))
    return _parse_whole(data, store) if regular is None else IndexSummary(None, regular=regular)


def check_index_size(num_bytes: int, where: str) -> int:
    """Return the size of an index file if the file may be read into memory.

    Raises:
        IndexFileError: it is larger than any index file that is parsed.
    """
    if num_bytes > MAX_INDEX_BYTES:
        raise IndexFileError(f"{where}: {num_bytes} bytes are more than the {MAX_INDEX_BYTES} allowed.", where=where)
    return num_bytes


def _from_tail(tail: bytes) -> dict[str, Any] | None:
    """Return the value of Smalti's key if it is the last top-level key but one, as `emit_index` writes it; else None.

    Only the version may follow it up to the end of the file, so that it cannot be the key of a nested object.
    """
    place = tail.rfind(_KEY)
    if place < 0:
        return None
    try:
        text = tail[place + len(_KEY) :].decode("ascii")
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _END.match(text, end) else None


def _parse_whole(data: bytes, store: Store) -> IndexSummary:
    top = parse_json(data, where=store.locate(INDEX))
    extra = top.get(EXTRA)
    if extra is not None and not isinstance(extra, dict):
        raise IndexFileError(f"{store.locate(INDEX)}: key {EXTRA!r} holds {extra!r:.60}, expected an object", key=INDEX)
    return IndexSummary(extra, top)
