"""Tags: names for versions, such as `best` or `2026-06`. A tagged version is never removed by a vacuum.

A tag is a small object below `_versions/tags/`, created by put-if-absent. It is moved only on request, by a conditional
put, so that of two concurrent moves one fails.
"""

import json
import re
from contextlib import suppress

from smalti.attributes import whole_or_none
from smalti.catalog.commit import check_created
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

TAGS = f"{FOLDER}/tags"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_SUFFIX = ".json"
_MAX_BYTES = 1 << 16


def tag(place: Place, name: str, version: int | None = None, *, move: bool = False, replaces: int | None = None) -> int:
    """Tag a version, the newest by default, and return its number. Idempotent.

    A name has 1 to 128 letters, digits and . _ -, not digits alone. With `move`, which needs a store with conditional
    puts, the tag is moved if another version has it. With `replaces` as well, it is moved only if that is the version
    that has it; 0 stands for none.

    Raises:
        CatalogError: the name is invalid, or another version has it and `move` is not given.
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version, or a vacuum has removed it.
        CommitConflict: another process moved the tag during the call, or it is not the tag of the version to replace.
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
            _replace(store, key, data, replaces)
    # A vacuum first publishes what it will remove, and then reads the tags: so at least one of the two sees the other.
    if _is_expired(store, number):
        if is_ours:  # an older tag was confirmed to its creator, and the vacuum has seen it
            untag(store, name)
        raise _vacuumed(store, number)
    return number


def untag(place: Place, name: str) -> None:
    """Remove a tag; its version may then be removed by a vacuum.

    Raises:
        VersionNotFound: there is no such tag.
        StoreNotFound: there is no set.
    """
    store = open_store(place)
    version_of_tag(store, name)
    store.delete(tag_key(name))


def tags(place: Place) -> dict[str, int]:
    """Return all tags: name to version, sorted by name.

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
                continue  # removed since the listing
    return dict(sorted(found.items()))


def version_of_tag(store: Store, name: str) -> int:
    """Return the number of the version that has this tag.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such tag; the message lists the tags.
        IndexFileError: the tag cannot be read.
    """
    try:
        return _read(store, name)
    except StoreNotFound as error:
        # Checked only now, so that reading an existing tag takes a single request.
        newest = find_newest(store, lenient=True)
        if newest.header is None and newest.index is None:
            raise no_shard_set(store) from error
        raise VersionNotFound(f"{store.url} has no tag {name!r}{_list_for_message(store)}", tag=name) from error


def _read(store: Store, name: str) -> int:
    key = tag_key(name)
    return _version_in(store.get_range(key, 0, _MAX_BYTES), store.locate(key))


def _version_in(data: bytes, where: str) -> int:
    version = parse_json(data, where=where).get("version")
    if type(version) is not int or version < 1:
        raise IndexFileError(f"{where}: expected a version from 1 on, found {version!r:.60}")
    return version


def _list_for_message(store: Store) -> str:
    with suppress(StoreError):  # credentials that may read are not always allowed to list
        return f"; its tags: {', '.join(map(repr, tags(store))) or 'none'}"
    return ""


def chosen_version(store: Store, version: int | None, tag: str | None) -> int | None:
    """Return the number of a version that is given by number or by tag; None for the newest.

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
    """Return the key of a tag.

    Raises:
        CatalogError: the name is invalid.
    """
    if not _is_name(name):
        raise CatalogError(
            f"tag {name!r:.140} is not usable: expected 1 to 128 letters, digits and . _ -, beginning with a letter or "
            "digit, and not digits alone, which would read like a version",
            tag=name,
        )
    return f"{TAGS}/{name}{_SUFFIX}"


def tag_bytes(name: str, version: int) -> bytes:
    """Return the content of a tag."""
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


def _replace(store: Store, key: str, data: bytes, replaces: int | None) -> None:
    tagged = store.get_tagged(key)
    found = _version_in(tagged.data, store.locate(key))
    if replaces is not None and found != replaces:
        raise CommitConflict(
            f"{store.locate(key)}: expected the tag of version {replaces or 'none'}, found that of version {found}"
        )
    try:
        store.put_if_match(key, data, tagged.etag)
    except StoreConflict as error:
        if store.get(key) != data:  # equal data: our own put took effect, but its reply was lost
            raise CommitConflict(f"{store.locate(key)}: another process moved this tag; look at it again") from error
