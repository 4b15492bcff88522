"""A listing of a folder of images in several parts, for sources that take minutes to list.

The state of a listing is a small value that JSON can hold. It contains a digest of the objects so far, which depends
on neither the sizes of the parts nor the kind of store: the inventory of a whole folder has the same.
"""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from smalti.sources.image_folder import is_hidden_name, is_image
from smalti.sources.listing import list_source
from smalti.storage import Store
from smalti.storage.store import ListingPage


class Listed(Protocol):
    """An object of a listing."""

    @property
    def num_bytes(self) -> int:
        """Size, bytes."""

    @property
    def modified(self) -> str:
        """ETag or modification time."""


@dataclass(frozen=True)
class PartialListing:
    """The part of a folder that was listed so far, in the order of keys."""

    after: str = ""
    """Position from which to continue: objects with greater keys are still missing."""
    digest: str = ""
    """Digest of the names, sizes and modification marks of the images so far; empty before the first one."""
    count: int = 0
    """Number of images so far."""
    is_complete: bool = False
    """True if the listing has come to its end."""


def list_further(
    store: Store, listing: PartialListing, *, seconds: float, clock: Callable[[], float] = time.monotonic
) -> PartialListing:
    """Continue a listing until its end, but begin no further page after `seconds`; at least one page is listed.

    Objects that are added or removed behind the position meanwhile are not noticed: compare two complete listings.

    Raises:
        StoreError: a page cannot be listed; the listing that was given is still valid.
    """
    begin = clock()
    while not listing.is_complete:
        page = _page(store, listing.after)
        images = [(item.key, item) for item in page.objects if is_image(item.key)]
        digest = extend_digest(listing.digest, images)
        listing = PartialListing(page.after, digest, listing.count + len(images), page.is_last)
        if clock() - begin >= seconds:
            break
    return listing


def _page(store: Store, after: str) -> ListingPage:
    """Return the next objects; all that remain of a local folder, whose links are followed as in an inventory."""
    if store.local_path("any") is None:
        return store.list_page(after=after)
    objects = [item for item in list_source(store, is_hidden_name).objects if item.key > after]
    return ListingPage(objects, objects[-1].key if objects else after, is_last=True)


def extend_digest(digest: str, objects: Iterable[tuple[str, Listed]]) -> str:
    """Return the digest of some objects and those before them; equal however the objects are divided.

    Args:
        digest: of the objects before; empty for none.
        objects: path and facts of each, sorted by path.
    """
    value = bytes.fromhex(digest)
    for path, item in objects:
        line = f"{path}\0{item.num_bytes}\0{item.modified}\n".encode("utf-8", "surrogateescape")
        value = hashlib.sha256(value + line).digest()
    return value.hex()
