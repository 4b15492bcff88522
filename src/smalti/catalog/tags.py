"""Tags: names for versions, such as `best` or `2026-06`. A tagged version is never removed by a vacuum.

A tag is a small object below `_versions/tags/`, created by put-if-absent. It is moved only on request, by a conditional
put, so that of two concurrent moves one fails. It may carry metadata, such as the model that was trained on the
version: both are one object, and move together.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from smalti.attributes import whole_or_none
from smalti.catalog.commit import check_created
from smalti.catalog.manifest import check_json, read_header
from smalti.catalog.opening import TAG_BYTES, Tag, find_newest, no_shard_set, parse_tag, read_tag, read_tags, tag_key
from smalti.errors import (
    CatalogError,
    CommitConflict,
    StoreConflict,
    StoreError,
    StoreExists,
    StoreNotFound,
    VersionNotFound,
)
from smalti.storage import Place, Store, open_store
from smalti.storage.store import delete_own, holds, put_own


def tag(
    place: Place,
    name: str,
    version: int | None = None,
    *,
    move: bool | Tag = False,
    metadata: Mapping[str, Any] | None = None,
) -> int:
    """Tag a version, the newest by default, and return its number. Idempotent.

    Args:
        place: Root of the set: a URL, folder or store.
        name: 1 to 128 letters, digits and . _ -, not digits alone.
        version: Number of the version; by default the newest.
        move: Whether the tag is moved if another version has it, which needs a store with conditional puts; a `Tag`
            that was read is moved only if it still is what was read.
        metadata: Values that JSON holds, at most 64 kB; without it, a tag that is not moved keeps its own.

    Raises:
        CatalogError: the name is invalid, or another version has it (or other metadata) and `move` is not given.
        SchemaError: the metadata is not JSON that can be read back.
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version, or a vacuum has removed it.
        CommitConflict: another process moved the tag during the call, or it is not the tag of the version to replace.

    Examples:
        >>> tag("s3://bucket/users", "stable", 1)
        1
        >>> StreamingDataset(remote="s3://bucket/users", tag="stable").size
        10
    """
    store, key = open_store(place), tag_key(name)
    number = _usable_version(store, whole_or_none("version", version))
    data = tag_bytes(name, number, metadata)
    is_ours = True
    try:
        try:
            store.put_if_absent(key, data)
        except StoreError as error:  # a lost reply is settled by reading the tag back
            if isinstance(error, StoreExists) or not holds(store, key, data):
                raise
        check_created(store, key, data)
    except StoreExists:
        found = read_tag(store, name)
        is_ours = found.version != number or (metadata is not None and found.metadata != metadata)
        if is_ours and not move:
            raise CatalogError(
                f"{store.url}: tag {name!r} is that of version {found.version}; say `move` to give it to version "
                f"{number}",
                tag=name,
                version=found.version,
            ) from None
        if is_ours:
            _replace(store, key, data, expected=move if isinstance(move, Tag) else None)
    # A vacuum first publishes what it will remove, and then reads the tags: so at least one of the two sees the other.
    if _is_expired(store, number):
        if is_ours:  # an older tag was confirmed to its creator, and the vacuum has seen it
            untag(store, name)
        raise VersionNotFound(f"{store.url}: version {number} was removed by a vacuum", version=number)
    return number


def _is_expired(store: Store, version: int) -> bool:
    newest = find_newest(store).header
    return newest is not None and version in newest.expired


def untag(place: Place, name: str) -> None:
    """Remove a tag; its version may then be removed by a vacuum.

    Args:
        place: Root of the set: a URL, folder or store.
        name: The tag.

    Raises:
        VersionNotFound: there is no such tag.
        StoreNotFound: there is no set.

    Examples:
        >>> _ = tag("s3://bucket/users", "stable", 1)
        >>> untag("s3://bucket/users", "stable")
        >>> tags("s3://bucket/users")
        {}
    """
    store = open_store(place)
    read_tag(store, name)
    delete_own(store, tag_key(name))


def tags(place: Place) -> dict[str, int]:
    """Return all tags: name to version, sorted by name.

    Args:
        place: Root of the set: a URL, folder or store.

    Raises:
        IndexFileError: a tag cannot be read.

    Examples:
        >>> _ = tag("s3://bucket/users", "stable", 1)
        >>> tags("s3://bucket/users")
        {'stable': 1}
    """
    return {name: each.version for name, each in read_tags(place).items()}


def tag_bytes(name: str, version: int, metadata: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of a tag.

    Raises:
        CatalogError: the metadata is larger than a tag may be.
        SchemaError: the metadata is not JSON that can be read back.
    """
    check_json("metadata", metadata or {})
    content = {"smalti": 1, "tag": name, "version": version}
    data = json.dumps({**content, "metadata": metadata} if metadata else content).encode()
    if len(data) >= TAG_BYTES:
        raise CatalogError(f"tag {name!r} would have {len(data)} bytes with its metadata, at most {TAG_BYTES} fit")
    return data


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
        raise VersionNotFound(f"{store.url}: version {version} was removed by a vacuum", version=version)
    return version


def _replace(store: Store, key: str, data: bytes, *, expected: Tag | None = None) -> None:
    found = store.get_tagged(key)
    moved = f"{store.locate(key)}: another process moved this tag; look at it again"
    if expected is not None and parse_tag(store, expected.name, found.data) != expected:
        raise CommitConflict(moved)
    try:
        put_own(store, key, data, partial(store.put_if_match, key, data, found.etag))
    except StoreConflict as error:
        raise CommitConflict(moved) from error
