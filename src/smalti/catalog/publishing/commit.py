"""The commit itself: one header, created by put-if-absent, and what is done about replies that do not come.

Intended behaviour; anything else is a bug:
1. Of all who try to create a version exactly one does, and whoever is told that he did is that one.
2. A reply that was lost, or a refusal of our own repeated put, is settled by reading the object back and comparing the
   write id. What cannot be settled is `CommitUnknown`; nothing is ever removed.

Time as publishing sees it: to wait a little before another try, and for the date that people read.

Nothing is ordered by it, and no age is measured with it: clocks of writers may be hours apart. Whoever simulates
writers hands in a clock of his own.
"""

import time
from contextlib import suppress
from datetime import datetime, timezone

from smalti.catalog.checked_put import check_created
from smalti.catalog.header import Header, header_key, read_header
from smalti.errors import CommitUnknown, StoreAuthError, StoreError, StoreExists, StoreNotFound, StoreTimeout
from smalti.storage import Store
from smalti.storage.retry import jitter


class Clock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(timezone.utc)

    def pause(self, seconds: float) -> None:
        """Wait for about so long: half to one and a half times, so that writers who collided do not do it again."""
        time.sleep(seconds * jitter(0.5, 1.5))


SYSTEM = Clock()


PUT_ATTEMPTS = 4
READ_BACK_ATTEMPTS = 4
PAUSE_SECONDS = 0.06


def commit(store: Store, header: Header, clock: Clock) -> Header | None:
    """The header of this version as it lies there when it is ours; None for a lost race.

    Raises:
        CommitUnknown: the store no longer answers, and the commit may or may not have taken effect.
        StoreError: the store refused it; it did not take effect.
    """
    key, payload = header_key(header.version), header.emit()
    may_land = False  # whether a put that was only slow may still take effect
    fault: StoreError | None = None
    for attempt in range(PUT_ATTEMPTS):
        try:
            store.put_if_absent(key, payload)
        except StoreExists:
            pass  # somebody's, or ours: an earlier put of ours may have landed although its reply was lost
        except StoreAuthError as error:  # this one was refused; it cannot have taken effect
            if may_land:
                raise _unknown(store, header) from error
            raise
        except StoreError as error:
            fault, may_land = error, may_land or isinstance(error, StoreTimeout)
        else:
            may_land = True
            with suppress(StoreError):  # it is there; that it cannot be looked at now is for the read-back to settle
                check_created(store, key, payload)
                return header
        found = _read_back(store, header, clock)
        if found is not None:
            return found if found.write_id == header.write_id else None
        clock.pause(PAUSE_SECONDS * 2**attempt)
    if may_land or fault is None:
        raise _unknown(store, header) from fault
    raise fault


def _read_back(store: Store, header: Header, clock: Clock) -> Header | None:
    """The header of the version as it lies in the store, None if it is not there."""
    fault: StoreError | None = None
    for attempt in range(READ_BACK_ATTEMPTS):
        try:
            return read_header(store, header.version)
        except StoreNotFound:  # noqa: PERF203 -- a handful of attempts
            return None
        except StoreError as error:
            fault = error
            clock.pause(PAUSE_SECONDS * 2**attempt)
    raise _unknown(store, header) from fault


def _unknown(store: Store, header: Header) -> CommitUnknown:
    return CommitUnknown(
        f"{store.url}: it cannot be told whether version {header.version} was published (write id "
        f"{header.write_id}), because the store stopped answering. Nothing was removed; publish again with the same "
        "write id: it returns the version or makes it",
        version=header.version,
        write_id=header.write_id,
    )
