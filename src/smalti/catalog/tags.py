"""Names for versions: `best`, `2026-06`. A tag keeps its version from every vacuum.

A tag is a small object below `_versions/tags/`. It is made only if there is none of that name, and moved only on
purpose, by a conditional put, so that of two who move it one is told.
"""

import json
import re
from contextlib import suppress

from smalti.catalog.checked_put import check_created
from smalti.catalog.header import FOLDER, parse_json, read_header
from smalti.catalog.reading import find_newest, no_shard_set
from smalti.errors import (
    CatalogError,
    CommitConflict,
    IndexFileError,
    StoreConflict,
    StoreError,
    StoreExists,
    StoreNotFound,
    VersionNotFound,
)
from smalti.storage import Place, Store, open_store
from smalti.whole import whole_or_none

TAGS = f"{FOLDER}/tags"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_SUFFIX = ".json"
_MAX_BYTES = 1 << 16


def tag(place: Place, name: str, version: int | None = None, *, move: bool = False) -> int:
    """Name a version, the newest by default, and return its number. Again with the same version, it does nothing.

    Args:
        place: The root of the set: a URL, folder or store.
        name: 1 to 128 letters, digits and . _ -, not digits alone.
        version: Which one.
        move: Take the name away from another version that has it; needs a store that can replace conditionally.

    Raises:
        CatalogError: the name cannot be used, or another version has it and `move` is not given.
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version, or a vacuum has removed it.
        CommitConflict: somebody else moved the tag meanwhile.
    """
    store, key = open_store(place), tag_key(name)
    number = _usable_version(store, whole_or_none("version", version))
    data = tag_bytes(name, number)
    is_ours = True
    try:
        store.put_if_absent(key, data)
        check_created(store, key, data)
    except StoreExists:
        found = version_of_tag(store, name)
        if found != number and not move:
            raise CatalogError(
                f"{store.url}: tag {name!r} is that of version {found}; say `move` to give it to version {number}",
                tag=name,
                version=found,
            ) from None
        is_ours = found != number
        if is_ours:
            _replace(store, key, data)
    # A vacuum says first what it will remove, and then looks at the tags: so one of the two sees the other.
    if _is_expired(store, number):
        if is_ours:  # else whoever made it was told that his version stays, and the vacuum has seen his tag
            untag(store, name)
        raise _vacuumed(store, number)
    return number


def untag(place: Place, name: str) -> None:
    """Take the name away; its version may then be removed by a vacuum.

    Raises:
        VersionNotFound: there is no such tag.
        StoreNotFound: there is no set.
    """
    store = open_store(place)
    version_of_tag(store, name)
    store.delete(tag_key(name))


def tags(place: Place) -> dict[str, int]:
    """Every tag and its version, by name; empty for a set that has none.

    Raises:
        IndexFileError: a tag cannot be read.
    """
    store = open_store(place)
    found = {}
    for info in store.list(TAGS):
        name = info.key.removeprefix(f"{TAGS}/").removesuffix(_SUFFIX)
        if _is_name(name) and info.key == tag_key(name):
            try:
                found[name] = _read(store, name)
            except StoreNotFound:
                continue  # taken away since the listing
    return dict(sorted(found.items()))


def version_of_tag(store: Store, name: str) -> int:
    """The number of the version that has this name.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: none of its versions has this name; the message says which names there are.
        IndexFileError: the tag cannot be read.
    """
    try:
        return _read(store, name)
    except StoreNotFound as error:
        # Only now: where the tag is there, nothing else need be asked for.
        newest = find_newest(store, lenient=True)
        if newest.header is None and newest.index is None:
            raise no_shard_set(store) from error
        raise VersionNotFound(f"{store.url} has no tag {name!r}{_those_there_are(store)}", tag=name) from error


def _read(store: Store, name: str) -> int:
    key = tag_key(name)
    version = parse_json(store.get_range(key, 0, _MAX_BYTES), where=store.locate(key)).get("version")
    if type(version) is not int or version < 1:
        raise IndexFileError(f"{store.locate(key)}: expected a version from 1 on, found {version!r:.60}", key=key)
    return version


def _those_there_are(store: Store) -> str:
    with suppress(StoreError):  # who may read need not be allowed to list
        return f"; its tags: {', '.join(map(repr, tags(store))) or 'none'}"
    return ""


def chosen_version(store: Store, version: int | None, tag: str | None) -> int | None:
    """The number of the version that somebody asked for, by number or by tag; None for the newest.

    Raises:
        ValueError: both are given.
        StoreNotFound, VersionNotFound: as for `version_of_tag`.
    """
    if tag is None:
        return version
    if version is not None:
        raise ValueError(f"`version` is {version} and `tag` is {tag!r}; give one of them")
    return version_of_tag(store, tag)


def tag_key(name: str) -> str:
    """Where a tag lies.

    Raises:
        CatalogError: the name cannot be used.
    """
    if not _is_name(name):
        raise CatalogError(
            f"tag {name!r:.140} is not usable: expected 1 to 128 letters, digits and . _ -, beginning with a letter or "
            "digit, and not digits alone, which would read like a version",
            tag=name,
        )
    return f"{TAGS}/{name}{_SUFFIX}"


def tag_bytes(name: str, version: int) -> bytes:
    """Return the object that gives a version a name."""
    return json.dumps({"smalti": 1, "tag": name, "version": version}).encode()


def _is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not name.isdigit()


def _usable_version(store: Store, version: int | None) -> int:
    found = find_newest(store)
    newest = found.header
    if newest is None and found.index is None:
        raise no_shard_set(store)
    if newest is None:
        raise VersionNotFound(f"{store.url} has no versions that could be tagged", version=version)
    if version is None:
        return newest.version
    try:
        read_header(store, version) if version > 0 else None
    except StoreNotFound:
        version = 0
    if version < 1:
        raise VersionNotFound(f"{store.url} has versions 1 to {newest.version}, and not the one to be tagged")
    if version in newest.expired:
        raise _vacuumed(store, version)
    return version


def _is_expired(store: Store, version: int) -> bool:
    newest = find_newest(store).header
    return newest is not None and version in newest.expired


def _vacuumed(store: Store, version: int) -> VersionNotFound:
    return VersionNotFound(f"{store.url}: version {version} was removed by a vacuum", version=version)


def _replace(store: Store, key: str, data: bytes) -> None:
    etag = store.get_tagged(key).etag
    try:
        store.put_if_match(key, data, etag)
    except StoreConflict as error:
        if store.get(key) != data:  # else it is our own put, whose reply was lost
            raise CommitConflict(f"{store.locate(key)}: somebody else moved this tag; look at it again") from error
