"""Ages of objects, measured by the store's own clock, and the age from which on they may be removed."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from smalti.errors import CatalogError, StoreError
from smalti.storage import ObjectInfo, Store

LEAST_SECONDS = 7 * 86400.0
"""Writers and readers may run for days, so a smaller limit needs `unsafe_ttl`."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_age(age: str | float) -> float:
    """Return an age in seconds, given as a number or as text such as "7d", "36h", "90m", "2w".

    Raises:
        CatalogError: it is neither.
    """
    if isinstance(age, int | float) and not isinstance(age, bool) and 0 <= age < float("inf"):
        return float(age)
    match = _AGE.fullmatch(age.strip()) if isinstance(age, str) else None
    if match is None:
        raise CatalogError(f'expected an age such as "7d", "36h" or a number of seconds, found {age!r:.60}')
    return float(match[1]) * _UNITS[match[2]]


def checked_limit(older_than: str | float, *, whose: str, unsafe_ttl: bool) -> float:
    """Return the age in seconds from which on objects may be removed.

    Args:
        older_than: As for `parse_age`.
        whose: The processes that may still need the objects, such as "writer or reader"; for the message.
        unsafe_ttl: Allow less than `LEAST_SECONDS`.

    Raises:
        CatalogError: it is not an age, or is too small.
    """
    limit = parse_age(older_than)
    if limit < LEAST_SECONDS and not unsafe_ttl:
        raise CatalogError(
            f"`older_than` is {limit / 86400:.2g} days; less than {LEAST_SECONDS / 86400:.0f} may remove what a slow "
            f"{whose} still needs. Say `unsafe_ttl` if no {whose} is running"
        )
    return limit


@contextmanager
def probe_in(store: Store, folder: str) -> Iterator[str]:
    """Put a small object into the folder for the duration of the block, and yield its key.

    Its time in a listing is the current time by the store's clock.
    """
    key = f"{folder}/probe-{secrets.token_hex(8)}"
    store.put(key, b"what time is it?")
    try:
        yield key
    finally:
        with suppress(StoreError):  # a later vacuum removes it
            store.delete(key)


def probe_timestamp(store: Store, changed: float | None) -> float:
    """Return the time of a probe as listed.

    Raises:
        CatalogError: the store does not report times.
    """
    if changed is None:
        raise CatalogError(
            f"{store.url}: this store does not report when its objects were put, so that no object can be called old"
        )
    return changed


def time_of(info: ObjectInfo) -> float:
    """Return the time when the object was put; infinity if it is unknown, so that the object is never old."""
    return float("inf") if info.changed is None else info.changed
