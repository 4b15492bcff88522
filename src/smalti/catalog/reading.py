"""Finding and opening versions; nothing is listed, nothing is written."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from smalti.catalog.header import INDEX, Header, header_key, make_manifest, read_header, read_manifest
from smalti.catalog.index.first_hashes import with_firsts
from smalti.catalog.index.peek import EXTRA, Peek, peek_index
from smalti.catalog.manifest import Manifest, VersionInfo
from smalti.catalog.table.digest import digest_of
from smalti.catalog.table.shard_table import sizes_of
from smalti.errors import CatalogError, IndexFileError, StoreAuthError, StoreNotFound, VersionNotFound
from smalti.format import Schema, ShardInfo, load_strict
from smalti.format.index import shards_of
from smalti.storage import Place, Store, open_store

LOOK_SECONDS = 600.0
"""More than any store takes to give up."""


@dataclass(frozen=True)
class Newest:
    """What a place holds now."""

    header: Header | None
    """The newest version; None when there is none."""
    index: Peek | None
    """What `index.json` says about itself; None when there is none."""

    @property
    def extra(self) -> dict[str, Any] | None:
        """Smalti's key of `index.json`; None when it is absent or another writer's."""
        return None if self.index is None else self.index.extra

    @property
    def is_foreign(self) -> bool:
        """Whether the index file was written by something else than Smalti."""
        return self.index is not None and self.extra is None and not self.index.is_empty

    @property
    def is_split_folder(self) -> bool:
        """Whether this is the folder of one split of a Smalti set, which is opened like a plain MDS set."""
        return self.extra is not None and self.extra.get("split") is not None


def find_newest(store: Store, *, lenient: bool = False) -> Newest:
    """The newest version of the set at this place.

    `index.json` says where to start; a publisher that died before replacing it is found by looking for the versions
    that follow. With `lenient`, a store that refuses to say whether a following version exists (S3 without the right
    to list answers 403 for a missing key) is taken as "no", provided that the index file could be read.
    """
    index = peek_index(store)
    found = Newest(None, index)
    if found.is_foreign or found.is_split_folder:
        return found
    extra = found.extra
    start = 0 if extra is None else _version_of(extra, store)
    header: Header | None = None
    version = max(start, 1)
    is_far = store.local_path(INDEX) is None
    following = _looked_up_meanwhile(store, version + 1) if start and is_far else None
    while True:
        try:
            header = read_header(store, version) if following is None or version != start + 1 else following()
        except StoreNotFound:
            break
        except StoreAuthError:
            if lenient and version > start > 0:
                break
            raise
        version += 1
    if header is None and start:
        raise CatalogError(
            f"{store.locate(INDEX)} says version {start}, but {header_key(start)} is not there; the set was "
            "copied without its "
            "_versions folder: copy it too, or drop the 'smalti' key of index.json to use the set as plain MDS",
            version=start,
        )
    return Newest(header, index)


def _looked_up_meanwhile(store: Store, version: int) -> Callable[[], Header]:
    """The header of a version, asked for in a thread of its own: whoever starts to read waits for one answer less."""
    answer: SimpleQueue[Header | BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            answer.put(read_header(store, version))
        except BaseException as error:  # noqa: BLE001 -- raised where the answer is wanted
            answer.put(error)

    def following() -> Header:
        found = answer.get(timeout=LOOK_SECONDS)
        try:
            if isinstance(found, BaseException):
                raise found
            return found
        finally:
            del found  # an error that its own frame holds would keep all callers' frames until garbage is collected

    threading.Thread(target=ask, name="smalti-next-version", daemon=True).start()
    return following


def load_manifest(place: Place, *, version: int | None = None) -> Manifest:
    """A version of the set at this place (a URL, folder or store), the newest by default.

    A plain MDS set, as MosaicML's writer leaves it, opens as version 0 with a digest of its index.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version.
        IndexFileError: a manifest or index file cannot be trusted.
    """
    return _load(open_store(place), version, by_index=True)


def load_from_table(store: Store, version: int | None) -> Manifest:
    """As `load_manifest`, but always with the shard table of the version, recounted, so that its damage is seen."""
    return _load(store, version, by_index=False)


def _load(store: Store, version: int | None, *, by_index: bool) -> Manifest:
    if version is not None and version > 0:
        return _load_numbered(store, version, recount=not by_index)
    newest = find_newest(store, lenient=True)
    if newest.header is not None and version is None:
        shown = _shown_by(newest, store) if by_index else None
        return shown if shown is not None else read_manifest(store, newest.header, recount=not by_index)
    if newest.index is not None and newest.header is None:
        return _load_plain(store, newest)
    if newest.header is None:
        raise no_shard_set(store)
    raise VersionNotFound(
        f"{store.url} has versions 1 to {newest.header.version}; {version} is not one of them", version=version
    )


def history(place: Place) -> list[VersionInfo]:
    """All versions at this place (a URL, folder or store), oldest first, those removed by a vacuum too.

    Empty for a plain MDS set.

    Raises:
        StoreNotFound: there is no set.
    """
    store = open_store(place)
    newest = find_newest(store, lenient=True)
    if newest.header is None:
        if newest.index is None:
            raise no_shard_set(store)
        return []
    expired = set(newest.header.expired)
    found = [header.info(is_expired=header.version in expired) for header in headers_before(store, newest.header)]
    return [*found[::-1], newest.header.info()]


def no_shard_set(store: Store) -> StoreNotFound:
    """The error for a place at which `find_newest` found nothing; for the caller to raise."""
    return StoreNotFound(
        f"{store.url} holds no shard set: neither {INDEX} nor {header_key(1)} is there; check the address",
        key=INDEX,
        url=store.url,
    )


def headers_before(store: Store, newest: Header) -> Iterator[Header]:
    """Of the versions before this one, newest first, each read when it is asked for; not those a clean-up removed."""
    for version in range(newest.version - 1, 0, -1):
        with suppress(StoreNotFound):
            yield read_header(store, version)


def _load_numbered(store: Store, version: int, *, recount: bool) -> Manifest:
    try:
        header = read_header(store, version)
    except StoreNotFound as error:
        newest = find_newest(store, lenient=True)
        if newest.is_foreign:
            there = "it is a plain MDS set, which has no versions: open it without `version`"
        elif newest.header is None:
            there = "there is no shard set; check the address"
        else:
            there = f"the newest is {newest.header.version}"
        raise VersionNotFound(
            f"{store.url} has no version {version}: {there}", version=version, url=store.url
        ) from error
    try:
        return read_manifest(store, header, recount=recount)
    except IndexFileError as error:
        shown = find_newest(store, lenient=True).header
        if shown is not None and version in shown.expired:
            raise VersionNotFound(
                f"{store.url}: version {version} was removed by a vacuum; the newest is {shown.version}. A version "
                "with a tag is kept",
                version=version,
                url=store.url,
            ) from error
        raise


def _shown_by(newest: Newest, store: Store) -> Manifest | None:
    """The newest version out of the index file, which was read anyway; None if that does not show all of it.

    The digest covers everything that a manifest says about its shards: where it fits, the shard table could say nothing
    else. A small set opens so with two requests less, and without the time that importing Arrow takes.
    """
    header, index = newest.header, newest.index
    if header is None or index is None or index.top is None or (newest.extra or {}).get("digest") != header.digest:
        return None
    try:
        shards, _ = shards_of(index.top, where=store.locate(INDEX))
    except IndexFileError:
        return None  # it is a copy for others; the truth is below `_versions/`
    found = tuple(replace(shard, partition=_split_of(shard, header)) for shard in shards)
    is_whole = (sum(shard.samples for shard in found), len(found)) == (header.rows, header.num_shards)
    if not is_whole or digest_of(found) != header.digest:
        return None
    return make_manifest(header, with_firsts(found, newest.extra or {}))


def _split_of(shard: ShardInfo, header: Header) -> str | None:
    top = shard.raw.basename.split("/", 1)[0]
    return top if top in header.partitions else None


def _load_plain(store: Store, newest: Newest) -> Manifest:
    index, where = newest.index, store.locate(INDEX)
    shards: Sequence[ShardInfo]
    regular = None if index is None else index.regular
    if regular is not None:
        shards, digest = regular.shards, regular.digest
    else:
        # What was too large to be read to look at it had its size looked at as well.
        top = load_strict(store.get(INDEX), where=where) if index is None or index.top is None else index.top
        shards = with_firsts(shards_of(top, where=where)[0], newest.extra or {})
        digest = digest_of(shards)
    extra = newest.extra or {}
    return Manifest(
        version=int(extra.get("version", 0)) if newest.is_split_folder else 0,
        parent=None,
        write_id="",
        digest=digest,
        schema=shards[0].schema if shards else Schema.from_columns({}),
        shards=shards,
        rows=int(sizes_of(shards).sum()),
        lineage={},
        metadata={},
        created="",
    )


def _version_of(extra: dict[str, Any], store: Store) -> int:
    version = extra.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise IndexFileError(
            f"{store.locate(INDEX)}: {EXTRA}.version is {version!r:.60}, expected a number from 1 on", key=INDEX
        )
    return version
