"""Puts of the catalog's own objects, looked at afterwards: some stores acknowledge a body and keep nothing of it."""

from smalti.errors import CatalogError
from smalti.storage import Store

ATTEMPTS = 2


def put_checked(store: Store, key: str, data: bytes, *, is_shared: bool = False) -> None:
    """Replace the object, and see that the store has all of it.

    Args:
        store: Where it goes.
        key: Its name.
        data: Its bytes.
        is_shared: Whether somebody else may have replaced it since, so that any content is good.

    Raises:
        CatalogError: the store says that it took the object, and holds another number of bytes.
    """
    for _ in range(ATTEMPTS):
        store.put(key, data)
        found = store.size(key)
        if found == len(data) or (is_shared and found):
            return
    raise CatalogError(_text(store, key, found, len(data)), key=key)


def check_created(store: Store, key: str, data: bytes) -> None:
    """See that the store has the object that was just created; what is empty is removed, or it would block the name.

    Raises:
        CatalogError: it holds something else.
    """
    found = store.get_range(key, 0, len(data) + 1)
    if found == data:
        return
    if not found:
        store.delete(key)
    raise CatalogError(_text(store, key, len(found), len(data)), key=key)


def _text(store: Store, key: str, found: int, expected: int) -> str:
    return (
        f"{store.locate(key)}: the store took {expected} bytes without an error, and holds {found}; publish again, and "
        "check the store's own log: it loses what is written"
    )
