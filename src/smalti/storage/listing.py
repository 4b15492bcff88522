"""Facts that listings of objects contain: marks of content, modification times, and temporary files of writers.

Stores of files write an object to a temporary file and rename it. A writer that is killed leaves its temporary file.
Listings of objects omit these files; `Store.unfinished_uploads` lists them, and a vacuum removes old ones.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from smalti.errors import StoreError
from smalti.storage.store import UnfinishedUpload, check_key

_MARKS = (
    "ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created",
)  # fmt: skip
"""Fields of fsspec's entries that change with the content, the most reliable first."""
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
"""Fields of fsspec's entries with the time of the last put, in the order in which they are tried.

S3; Azure and Databricks; Google; SFTP and Google; fsspec's memory, which has no later time.
"""
_MAX_SECONDS = 1e11  # of a time in seconds since 1970; greater numbers are milliseconds
_SUFFIX = ".smalti-tmp"
_MAX_NAME = 100  # characters kept of the target's name, so that the whole stays a valid file name
_TEMPORARY = re.compile(rf"\.(.+)\.[0-9a-f]{{16}}{re.escape(_SUFFIX)}", re.DOTALL)


def mark_of(entry: Mapping[str, Any]) -> str:
    """Return the most reliable mark of the content in an entry of fsspec; "" without one."""
    return next((str(entry[name]).strip('"') for name in _MARKS if entry.get(name)), "")


def time_of(entry: Mapping[str, Any]) -> float | None:
    """Return when an object was last put, seconds since 1970 by the store's own clock.

    None if the entry has no time, or none in a known form.
    """
    return next((seconds for name in _TIMES if (seconds := _seconds(entry.get(name))) is not None), None)


def _seconds(value: Any) -> float | None:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(value, str):
        return _parsed(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return value / 1000 if value > _MAX_SECONDS else float(value)


def _parsed(text: str) -> float | None:
    if text.isascii() and text.isdigit():
        return _seconds(int(text))
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return _seconds(parse(text.replace("Z", "+00:00") if text.endswith("Z") else text))
        except ValueError:  # noqa: PERF203 -- two forms
            continue
    return None


def temporary_name(name: str) -> str:
    """Return an unused file name in which to write the file `name` of the same folder."""
    return f".{name[:_MAX_NAME]}.{secrets.token_hex(8)}{_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Return whether this path or name is one of a temporary file, which is no object of the store."""
    return name.endswith(_SUFFIX)


def target_of(name: str) -> str | None:
    """Return the name, cut to 100 characters, of the file for which a temporary file was written.

    None if `temporary_name` did not make the name.
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match is not None else None


def temporary_path(path: str, name: str) -> str:
    """Return the path of the temporary file `name` in the folder of `path`.

    Raises:
        ValueError: `temporary_name` did not make the name.
    """
    if target_of(name) is None:
        raise ValueError(f"{name!r} in the folder of {path} is not the name of a temporary file")
    return f"{path.rpartition('/')[0]}/{name}"


def unfinished_uploads_in(entries: Iterable[Mapping[str, Any]]) -> list[UnfinishedUpload]:
    """Return the temporary files among entries of an fsspec listing, with whole paths for keys.

    A file whose entry has no time is omitted: its writer may still be active.
    """
    found = []
    for entry in entries:
        begun = time_of(entry)
        if begun is not None and entry["type"] != "directory":
            found.append(unfinished_upload(str(entry["name"]), begun, int(entry["size"])))
    return [upload for upload in found if upload is not None]


def unfinished_upload(path: str, begun: float, num_bytes: int) -> UnfinishedUpload | None:
    """Return a temporary file as an unfinished upload; None for a path that no store of Smalti's made.

    That is any other file, and a path that is not a valid key or cannot be printed.
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
