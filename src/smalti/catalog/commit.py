"""The commit: one header, created by put-if-absent, and the handling of replies that do not arrive.

Intended behaviour; anything else is a bug:
1. Exactly one of the writers that try to create a version succeeds, and `commit` reports success to that one only.
2. A lost reply, or a refusal of our own repeated put, is settled by reading the object back and comparing the write id.
   If that is impossible, `CommitUnknown` is raised; nothing is ever removed.
3. Puts are checked afterwards: some stores acknowledge an object and keep nothing, or only a part, of it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone

from smalti.catalog.manifest import Header, header_key, read_header
from smalti.errors import (
    CatalogError,
    CommitUnknown,
    SmaltiError,
    StoreAuthError,
    StoreError,
    StoreExists,
    StoreNotFound,
    StoreTimeout,
)
from smalti.storage import Store
from smalti.storage.retry import jitter

ATTEMPTS = 2
PUT_ATTEMPTS = 4
READ_BACK_ATTEMPTS = 4
PAUSE_SECONDS = 0.06


class PublishingClock:
    """The clock of this machine, for the `created` field and for pauses between attempts.

    Nothing is ordered by it and no age is measured with it: the clocks of writers may be hours apart. Simulations pass
    a clock of their own.
    """

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(timezone.utc)

    def pause(self, seconds: float) -> None:
        """Wait for 0.5 to 1.5 times as long, at random, so that writers that collided do not collide again."""
        time.sleep(seconds * jitter(0.5, 1.5))


SYSTEM = PublishingClock()


def commit(store: Store, header: Header, clock: PublishingClock) -> Header | None:
    """Create the version; return its header, or None if another writer was first.

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
            pass  # created by another writer or by us: an earlier put may have taken effect although its reply was lost
        except StoreAuthError as error:  # this put was refused, so it cannot have taken effect
            if may_land:
                raise _unknown(store, header) from error
            raise
        except StoreError as error:
            fault, may_land = error, may_land or isinstance(error, StoreTimeout)
        else:
            may_land = True
            with suppress(StoreError):  # the header exists; if it cannot be checked now, the read-back below decides
                check_created(store, key, payload)
                return header
        found = _read_back(store, header, clock)
        if found is not None:
            return found if found.write_id == header.write_id else None
        clock.pause(PAUSE_SECONDS * 2**attempt)
    if may_land or fault is None:
        raise _unknown(store, header) from fault
    raise fault


def _read_back(store: Store, header: Header, clock: PublishingClock) -> Header | None:
    """Read the header of the version as it is in the store; None if there is none."""
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
        f"{store.url}: it is unknown whether version {header.version} was published (write id "
        f"{header.write_id}), because the store stopped answering. Nothing was removed; publish again with the same "
        "write id: it returns the version or makes it",
        version=header.version,
        write_id=header.write_id,
    )


def put_and_check(
    put: Callable[[], object],
    store: Store,
    key: str,
    num_bytes: int,
    *,
    is_shared: bool = False,
    attempts: int = ATTEMPTS,
    error: type[SmaltiError] = CatalogError,
) -> None:
    """Put an object, and check that the store has all of it.

    `put` is called once per attempt. With `is_shared`, other publishers may have replaced the object since, so that any
    content will do.

    Raises:
        CatalogError: the store acknowledged the object and has another number of bytes; or `error`.
    """
    for _ in range(attempts):
        put()
        found = store.size(key)
        if found == num_bytes or (is_shared and found):
            return
    raise _lost_write(error, store, key, found, num_bytes)


def check_created(store: Store, key: str, data: bytes) -> None:
    """Check that the store has the object that was just created. An empty one is removed: it would block the key.

    Raises:
        CatalogError: the store has something else.
    """
    found = store.get_range(key, 0, len(data) + 1)
    if found == data:
        return
    if not found:
        store.delete(key)
    raise _lost_write(CatalogError, store, key, len(found), len(data))


def _lost_write(error: type[SmaltiError], store: Store, key: str, found: int, expected: int) -> SmaltiError:
    return error(
        f"{store.locate(key)}: put {expected} bytes, and the store has {found}; it did not take the whole object. Try "
        "again; if it happens again, check the store's own log: it loses what is written",
        key=key,
        expected=expected,
        found=found,
    )
