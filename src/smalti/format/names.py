"""Names of files inside a shard set: the check whether a name may be joined to a folder or a prefix."""

import re

from smalti.errors import IndexFileError

MAX_NAME_CHARS = 1024
"""Longest key that S3, GCS and Azure all accept."""
_ALLOWED = re.compile(r"[A-Za-z0-9._\-/=]+")  # `smalti.catalog.table.screening` has a copy of this set


def check_basename(name: object, *, where: str) -> str:
    """Return `name` if it is a relative name that stays below the root it is joined to.

    Args:
        name: Name of a file in an index file, for example `"train/a1/shard.00000.mds"`.
        where: Place of the name, for the message.

    Raises:
        IndexFileError: Not text, empty, absolute, longer than 1024 characters, with characters outside
            `[A-Za-z0-9._-/=]`, or with an empty part, `.` or `..`.
    """
    if not isinstance(name, str):
        raise IndexFileError(f"{where}: expected a file name, found {type(name).__name__}.", where=where)
    parts = name.split("/")
    if len(name) > MAX_NAME_CHARS or _ALLOWED.fullmatch(name) is None or not {"", ".", ".."}.isdisjoint(parts):
        raise IndexFileError(
            f"{where}: {name[:80]!r} is not a safe file name: expected a relative name of A-Z a-z 0-9 . _ - = and /, "
            "without `..` or empty parts. The index file is damaged or hostile: do not use this data set.",
            where=where,
            name=name,
        )
    return name
