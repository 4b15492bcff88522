"""The check that what is read and what is written are different places, before anything is written.

A place within the other one counts too: what is written would be read as data, or removed with the set. Local paths are
compared without links, `..` and different spellings; addresses by server, bucket and folder.
"""

import os

from smalti.errors import CatalogError
from smalti.storage.object_store import FsspecStore
from smalti.storage.store import Store

SAME, INSIDE, AROUND = "is the same place as", "lies inside", "contains"


def check_apart(source: Store, target: Store, *, advice: str) -> None:
    """Return only if neither of two stores is, or lies in, the folder of the other.

    Args:
        source: where something is read.
        target: where something is to be written.
        advice: what to do, the end of the message.

    Raises:
        CatalogError: they are the same folder, or one contains the other.
    """
    relation = relation_of(source, target)
    if relation is not None:
        raise CatalogError(
            f"{target.url} {relation} its source {source.url}; nothing was written: {advice}", url=target.url
        )


def relation_of(source: Store, target: Store) -> str | None:
    """Return how the target lies to the source: `SAME`, `INSIDE` or `AROUND`; None if they are apart."""
    (server, folder), (other_server, other) = _place_of(source), _place_of(target)
    if server != other_server:
        return None
    if folder == other:
        return SAME
    if _lies_in(other, folder):
        return INSIDE
    return AROUND if _lies_in(folder, other) else None


def _lies_in(folder: str, other: str) -> bool:
    return folder.startswith(f"{other.rstrip('/')}/")


def _place_of(store: Store) -> tuple[str, str]:
    """Return the server of a store, and its folder there, equal for all addresses of a folder."""
    inside = store.local_path("any")
    if inside is not None:
        return "", os.path.realpath(inside.parent)
    if isinstance(store, FsspecStore):
        return f"{store.scheme.name} {store.endpoint()}", f"/{store.root.strip('/')}"
    return "", store.url.rstrip("/")
