"""Rotation of full verification: each stored shard is read again once in a period, spread over the runs in it.

A hash of a shard's name puts it into one of a fixed number of slots; each slot has a time at which it is due. The times
are kept in the metadata of the check, so that the state does not grow with the set.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Period = Literal["always", "daily", "weekly", "monthly", "never"]

SLOTS = 128
"""Parts into which a set is divided."""

_DAY = 86_400.0
_SECONDS: dict[Period, float] = {"always": 0.0, "daily": _DAY, "weekly": 7 * _DAY, "monthly": 30 * _DAY}


def slot_of(name: str) -> int:
    """Return the slot of a shard."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % SLOTS


@dataclass(frozen=True)
class Rotation:
    """The slots that are due in a run, and the times at which all are due after it."""

    due: frozenset[int]
    times: tuple[int, ...]
    """Seconds since the epoch by slot; empty where nothing is ever due."""


def rotate(times: Sequence[int], period: Period, *, now: float) -> Rotation:
    """Return what is due now, given the times that the last run left; everything if it left none. Pure.

    After a pass over everything, the slots become due one after the other over a whole period.
    """
    if period == "never":
        return Rotation(frozenset(), ())
    seconds = _SECONDS[period]
    if len(times) != SLOTS:
        later = tuple(int(now + seconds * (slot + 1) / SLOTS) for slot in range(SLOTS))
        return Rotation(frozenset(range(SLOTS)), later)
    # Another, shorter period counts from now on.
    due = frozenset(slot for slot, time in enumerate(times) if min(time, now + seconds) <= now)
    return Rotation(due, tuple(int(now + seconds) if slot in due else int(t) for slot, t in enumerate(times)))
