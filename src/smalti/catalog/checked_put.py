"""Puts that are checked afterwards: some stores acknowledge an object and keep nothing, or only a part, of it."""

from collections.abc import Callable

from smalti.errors import CatalogError, SmaltiError
from smalti.storage import Store

ATTEMPTS = 2


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

    Args:
        put: Puts the object; called once per attempt.
        store: The store that it goes to.
        key: The key of the object.
        num_bytes: The size of the object.
        is_shared: Whether other publishers may have replaced the object since, so that any content will do.
        attempts: Number of puts before it fails.
        error: The class of the error to raise.

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
