"""Names of the temporary files in which stores of files write an object before they rename it.

A process that is killed while it writes leaves its file. Listings of objects omit such files; `unfinished_uploads` of
the store lists them, and a vacuum removes old ones.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from smalti.errors import StoreError
from smalti.storage.object_times import time_of
from smalti.storage.store import UnfinishedUpload, check_key

SUFFIX = ".smalti-tmp"
_MAX_NAME = 100  # characters kept of the target's name, so that the whole stays a valid file name
_NAME = re.compile(rf"\.(.+)\.[0-9a-f]{{16}}{re.escape(SUFFIX)}", re.DOTALL)


def temporary_name(name: str) -> str:
    """Return an unused file name for writing the file `name` of the same folder."""
    return f".{name[:_MAX_NAME]}.{secrets.token_hex(8)}{SUFFIX}"


def is_temporary(name: str) -> bool:
    """Return whether a file is none of a store's objects; a path or the name alone."""
    return name.endswith(SUFFIX)


def target_of(name: str) -> str | None:
    """Return the name, cut to 100 characters, of the file that a temporary file was to become.

    None if `temporary_name` did not make the name.
    """
    match = _NAME.fullmatch(name)
    return match[1] if match is not None else None


def path_beside(path: str, name: str) -> str:
    """Return the path of the temporary file `name` in the folder of `path`.

    Raises:
        ValueError: `temporary_name` did not make the name.
    """
    if target_of(name) is None:
        raise ValueError(f"{name!r} beside {path} is not the name of a temporary file")
    return f"{path.rpartition('/')[0]}/{name}"


def unfinished_among(entries: Iterable[Mapping[str, Any]]) -> list[UnfinishedUpload]:
    """Return the temporary files among entries of an fsspec listing, with whole paths for keys.

    A file whose entry has no time is omitted: nobody could tell whether its writer is still at work.
    """
    found = []
    for entry in entries:
        begun = time_of(entry)
        if begun is not None and entry["type"] != "directory":
            found.append(unfinished_upload(str(entry["name"]), begun, int(entry["size"])))
    return [upload for upload in found if upload is not None]


def unfinished_upload(path: str, begun: float, num_bytes: int) -> UnfinishedUpload | None:
    """Return the upload that a file with this path is; None for any but a temporary file of ours.

    None as well for a path that is no usable key, or that cannot be printed: no store of ours made it.
    """
    folder, slash, name = path.rpartition("/")
    target = target_of(name)
    key = f"{folder}{slash}{target}"
    if target is None or not key.isprintable():
        return None
    try:
        check_key(key.lstrip("/"))
    except StoreError:
        return None
    return UnfinishedUpload(key, name, begun, num_bytes, is_temporary=True)
