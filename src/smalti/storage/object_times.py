"""When an object was last put, out of what the listings of the libraries say: each has its own name and form for it."""

from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

_NAMES = ("LastModified", "last_modified", "updated", "mtime", "created")
"""S3; Azure and Databricks; Google; SFTP and Google; what has no later time, as fsspec's memory."""
_MOST_SECONDS = 1e11
"""Greater numbers are milliseconds."""


def time_of(info: Mapping[str, Any]) -> float | None:
    """Seconds since 1970 by the store's own clock; None where the listing does not tell, or in no known form."""
    return next((seconds for name in _NAMES if (seconds := _seconds(info.get(name))) is not None), None)


def _seconds(value: Any) -> float | None:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return value / 1000 if value > _MOST_SECONDS else float(value)


def _of_text(text: str) -> float | None:
    if text.isascii() and text.isdigit():
        return _seconds(int(text))
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return _seconds(parse(text.replace("Z", "+00:00") if text.endswith("Z") else text))
        except ValueError:  # noqa: PERF203 -- two forms
            continue
    return None
