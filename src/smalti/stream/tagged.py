"""The version that was asked for, by number or by tag."""

from smalti.catalog import tags
from smalti.catalog.tags import chosen_version
from smalti.errors import VersionNotFound
from smalti.storage import Store


def asked_version(store: Store, version: int | None, tag: str | None) -> int | None:
    """The number of the version; None for the newest.

    Raises:
        ValueError: Both are given.
        VersionNotFound: There is no such tag; the message names those there are.
    """
    try:
        return chosen_version(store, version, tag)
    except VersionNotFound as error:
        names = ", ".join(map(repr, tags(store))) or "none"
        raise VersionNotFound(f"{store.url} has no tag {tag!r}; its tags: {names}", tag=tag) from error
