"""How old objects are by the store's own clock, and how old they must be before a clean-up removes them."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from smalti.errors import CatalogError, StoreError
from smalti.storage import ObjectInfo, Store

LEAST_SECONDS = 7 * 86400.0
"""Writers and readers may be at work for days: what is younger is left alone, unless somebody insists."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_age(age: str | float) -> float:
    """Seconds, of a number or of text such as "7d", "36h", "90m", "2w".

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
    """The age in seconds from which on something may go.

    Args:
        older_than: As for `parse_age`.
        whose: Who may still be at work, such as "writer or reader", for the message.
        unsafe_ttl: Allow less than `LEAST_SECONDS`.

    Raises:
        CatalogError: it is no age, or less than that.
    """
    limit = parse_age(older_than)
    if limit < LEAST_SECONDS and not unsafe_ttl:
        raise CatalogError(
            f"`older_than` is {limit / 86400:.2g} days; less than {LEAST_SECONDS / 86400:.0f} may remove what a slow "
            f"{whose} still needs. Say `unsafe_ttl` if nobody is at work there"
        )
    return limit


@contextmanager
def probe_in(store: Store, folder: str) -> Iterator[str]:
    """The key of a small object that lies in the folder while the block lists it: its time is the store's own now."""
    key = f"{folder}/probe-{secrets.token_hex(8)}"
    store.put(key, b"what time is it?")
    try:
        yield key
    finally:
        with suppress(StoreError):  # a later clean-up removes it
            store.delete(key)


def told_time(store: Store, changed: float | None) -> float:
    """The time of a probe, as it was listed.

    Raises:
        CatalogError: the store did not tell any.
    """
    if changed is None:
        raise CatalogError(
            f"{store.url}: this store does not tell when its objects were put, so that nothing can be called old"
        )
    return changed


def time_of(info: ObjectInfo) -> float:
    """When the object was put; what nobody knows the age of is young for ever."""
    return float("inf") if info.changed is None else info.changed
