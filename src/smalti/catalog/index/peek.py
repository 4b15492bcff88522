"""Reading Smalti's key of an index file without parsing, or even fetching, a list of a million shards."""

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
class Peek:
    """What an index file says about itself."""

    extra: dict[str, Any] | None
    """Smalti's key; None when another writer made the file."""
    top: dict[str, Any] | None = None
    """The whole file, parsed, when it was read anyway."""
    regular: RegularIndex | None = None
    """The same of a large file whose entries are all alike."""
    is_empty: bool = False
    """Whether nothing is in it: a store lost a write that it acknowledged, and `_versions/` has the truth."""


def peek_index(store: Store) -> Peek | None:
    """Smalti's key of the index file at this place; None when there is no such file.

    Raises:
        IndexFileError: it is not JSON, or Smalti's key is not an object.
    """
    try:
        head = store.get_range(INDEX, 0, PEEK_BYTES)
        if not head:
            return Peek(None, is_empty=True)
        if len(head) < PEEK_BYTES:
            return _whole(head, store)
        size = store.size(INDEX)
        extra = _from_tail(store.get_range(INDEX, size - PEEK_BYTES, size))
        if extra is not None:  # however large: a million shards of Smalti's own are 700 MB that nobody parses
            return Peek(extra)
        check_index_size(size, store.locate(INDEX))
        data = store.get(INDEX)
    except StoreNotFound:
        return None
    regular = read_regular(data, where=store.locate(INDEX))
    return _whole(data, store) if regular is None else Peek(None, regular=regular)


def check_index_size(num_bytes: int, where: str) -> int:
    """The size itself, when an index file may have it; asked before the file is read into memory.

    Raises:
        IndexFileError: It is larger than any index file that is parsed.
    """
    if num_bytes > MAX_INDEX_BYTES:
        raise IndexFileError(f"{where}: {num_bytes} bytes are more than the {MAX_INDEX_BYTES} allowed.", where=where)
    return num_bytes


def _from_tail(tail: bytes) -> dict[str, Any] | None:
    """Smalti's key when it is the last but one of the top level, as `emit_index` writes it; None if in any doubt.

    Nothing but the version may follow it up to the end of the file: so it cannot be a key of something nested.
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


def _whole(data: bytes, store: Store) -> Peek:
    top = parse_json(data, where=store.locate(INDEX))
    extra = top.get(EXTRA)
    if extra is not None and not isinstance(extra, dict):
        raise IndexFileError(f"{store.locate(INDEX)}: key {EXTRA!r} holds {extra!r:.60}, expected an object", key=INDEX)
    return Peek(extra, top)
