"""Converted DataFrames that outlive the program, found again by what they were computed of."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from smalti.compat.petastorm.sources import StoreSource, open_place
from smalti.errors import StoreError, StoreNotFound

_FOLDER = "_kept"
_log = logging.getLogger(__name__)

Files = Iterable[tuple[str, int]]
"""Names and sizes."""


def remember(parent: str, key: str, url: str, files: Files, options: Mapping[str, Any] | None) -> None:
    """Notes, beside the folders, which of them holds this DataFrame.

    Raises:
        StoreError: the note could not be written.
    """
    source = open_place(parent, options).source
    if not isinstance(source, StoreSource):
        raise StoreError(
            f"{parent}: `keep=True` needs a place that Smalti's stores can write; HDFS is none.", url=parent
        )
    note = {"folder": url.rpartition("/")[2], "files": sorted(files)}
    source.store.put(f"{_FOLDER}/{key}.json", json.dumps(note).encode())


def find(parent: str, key: str, options: Mapping[str, Any] | None) -> tuple[str, frozenset[tuple[str, int]]] | None:
    """The folder that holds this DataFrame, and its files, as they were noted; None where nothing (readable) was."""
    source = open_place(parent, options).source
    name = f"{_FOLDER}/{key}.json"
    try:
        data = source.read(name, 0, source.size(name))
    except StoreNotFound:
        return None
    try:
        note = json.loads(data)
        folder, files = note["folder"], frozenset((str(name), int(size)) for name, size in note["files"])
        if not isinstance(folder, str) or "/" in folder or folder in {"", ".", ".."}:
            raise ValueError(f"not a folder's name: {folder!r}")
    except (ValueError, TypeError, KeyError) as error:
        _log.warning("%s is damaged and not used: %s", source.locate(name), error)
        return None
    return f"{parent}/{folder}", files
