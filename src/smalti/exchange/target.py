"""The state of the target of a copy: its versions, and which objects of a new version it has for certain.

A copy keeps the names of objects, so that a name may come back that a vacuum at the target is removing, or has removed.
Intended behaviour; anything else is a bug:
1. An object that a version at the target needs which is not expired is there, and stays.
2. Any other object of a write that was published at the target is copied, whether it is there or not.
3. Objects of writes that were not published there are those of an earlier copy that was stopped. They are used again:
   the marker of the write is renewed before they are listed, so that a later vacuum keeps them.
4. A vacuum that listed them before that publishes the list of what it removes before it removes anything. If that was
   before this state was read, the write is fenced and the copy is refused; if later, the commit conflicts with it.

Also here: a version at the source, which is its header, its shards, and all files that a copy needs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xxhash import xxh3_64_intdigest

from smalti.catalog.manifest import Draft, Header, Manifest, has_write_id, read_manifest
from smalti.catalog.opening import find_newest, headers_before
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import (
    columns_of,
    erased_keys,
    erasure_id,
    live_keys,
    objects_of,
    shards_of,
    store_columns,
)
from smalti.catalog.table.segments import tables_in
from smalti.catalog.table.shard_table import block_files_of, stored_sizes_of
from smalti.errors import CatalogError, DatasetExists, StoreNotFound, VersionNotFound
from smalti.exchange.transfer import BlockFile, hashed, is_whole
from smalti.format import ShardInfo
from smalti.format.hashing import BlockList
from smalti.format.index import FileInfo
from smalti.storage import Store


@dataclass(frozen=True)
class Parcel:
    """A version at the source, or one split of it, and what its copy is to be."""

    store: Store
    manifest: Manifest
    content: Header
    """The header of `manifest`."""
    write_id: str
    """The write id of the copy."""
    split: str | None = None
    present: Header | None = None
    """The version at the target that has it already."""
    placeholder_for: Header | None = None
    """A version that the source has no objects of any more; this content gets its number at the target."""

    @property
    def source(self) -> Header:
        """The version at the source."""
        return self.placeholder_for or self.content

    @property
    def erased(self) -> tuple[Mapping[str, Any], ...]:
        """Records of deletions of samples; a placeholder has those of its own that the copied content has too."""
        recorded = {erasure_id(entry) for entry in self.source.erased}
        return tuple(entry for entry in self.content.erased if erasure_id(entry) in recorded)

    def files(self) -> Iterator[FileInfo]:
        """Yield the files of the copy, as `files_of`."""
        return files_of(self.store, self.manifest, self.content.erased, self.split)

    def owner_of(self, key: str) -> str | None:
        """Return the write id in a key, which only Smalti's writers put there; None for other objects."""
        writes = self.content.write_id, *self.content.writes
        folders = key.split("/")[:-1][:2]
        return next((name for name in folders if name in writes or has_write_id(f"{name}/")), None)

    def owners(self) -> tuple[str, ...]:
        """Return the write ids of the files, and that of the copy."""
        found = {owner for file in self.files() if (owner := self.owner_of(file.basename)) is not None}
        return tuple(sorted({*found, self.write_id}))

    def draft(self, target: Store) -> Draft:
        """Return the draft to publish at the target; of a split, its tables of added columns are put there.

        The record of source files is of all splits, so that it is left out with one; its row hash is not known.
        """
        header, manifest, split = self.source, self.manifest, self.split
        origin: dict[str, Any] = {
            "url": self.store.url,
            "version": header.version,
            "operation": header.operation,
            "created": header.created,
        }
        if self.placeholder_for is not None:
            origin["is_expired"] = True
        if split is None:
            return manifest.redraft(self.write_id, metadata={**manifest.metadata, "copied_from": origin})
        sidecars, places = [], _places(manifest, split)
        for number, entry in enumerate(columns_of(manifest.sidecars)):
            aligned: Sequence[ShardInfo] = shards_of(self.store, entry)
            key, chosen = f"{self.write_id}/columns-{number}.arrow", [aligned[place] for place in places]
            sidecars.append(store_columns(target, key, chosen, entry.columns, entry.logical).to_json())
        return manifest.redraft(
            self.write_id,
            metadata={**manifest.metadata, "copied_from": {**origin, "split": split}},
            shards=tuple(manifest.select(split)),
            sidecars=tuple(sidecars),
            row_hash="",
        )


def files_of(
    store: Store, manifest: Manifest, erased: Sequence[Mapping[str, Any]] = (), split: str | None = None
) -> Iterator[FileInfo]:
    """Yield all files of a version but its header and its own shard table, with the hashes that are known.

    Those of one split are its shards, with those of added columns, and the records of deletions. `erased` has the
    records of deletions in the version's header.

    Raises:
        CatalogError: there is no such split.
        StoreNotFound: a table is gone.
        IndexFileError: a table is damaged.
    """
    yield from _stored(store, manifest.select(split))
    entries = [entry for entry in erased if "key" in entry]
    for added in columns_of(manifest.sidecars):
        aligned: Sequence[ShardInfo] = shards_of(store, added)
        if split is None:
            yield from _stored(store, aligned)
            yield FileInfo(added.table_key, store.size(added.table_key), {"sha256": added.table_sha256})
        else:
            yield from _stored(store, [aligned[place] for place in _places(manifest, split)])
    for entry in (*objects_of(manifest.sidecars), *entries) if split is None else entries:
        key = str(entry["key"])
        yield FileInfo(key, store.size(key), {"sha256": str(entry["sha256"])})


def _places(manifest: Manifest, split: str) -> list[int]:
    """Return the indices of the shards of a split."""
    return [place for place, shard in enumerate(manifest.shards) if shard.partition == split]


def _stored(store: Store, shards: Sequence[ShardInfo]) -> Iterator[FileInfo]:
    """Yield the files of the shards, and those of their block lists."""
    lists: dict[str, list[tuple[BlockList, int]]] = {}
    for shard in shards:
        yield from shard.stored_files
        if shard.blocks is not None:
            lists.setdefault(shard.blocks.file, []).append((shard.blocks, shard.raw.num_bytes))
    for key in sorted(lists):
        with suppress(StoreNotFound):  # shards without a list are read whole
            yield BlockFile(key, store.size(key), lists=lists[key])


def vacuumed(store: Store, version: int) -> VersionNotFound:
    """Return the error for a version whose shards a vacuum removed."""
    return VersionNotFound(
        f"{store.url}: version {version} was removed by a vacuum or a purge, so that it cannot be copied. A vacuum "
        "keeps versions with a tag",
        version=version,
    )


@dataclass
class CopyTarget:
    """The place that versions are copied to."""

    store: Store
    newest: Header | None
    headers: Mapping[int, Header]
    """All headers by number."""

    @classmethod
    def read(cls, store: Store) -> "CopyTarget":
        """Read the headers of the target.

        Raises:
            DatasetExists: there is a set without versions, or this is the folder of one split.
        """
        newest = find_newest(store)
        if newest.is_plain:
            raise DatasetExists(
                f"{store.url} holds a set without versions of its own, which is never replaced or extended; choose "
                "another place",
                url=store.url,
            )
        header = newest.header
        before = [] if header is None else [header, *headers_before(store, header)]
        return cls(store, header, {each.version: each for each in before})

    def usable(self) -> Iterator[Header]:
        """Yield the headers of versions that can be opened, newest first."""
        expired = () if self.newest is None else self.newest.expired
        yield from (self.headers[number] for number in sorted(self.headers, reverse=True) if number not in expired)

    def version_of(self, source: Header, *, write_id: str | None = None) -> Header | None:
        """Return the version that has this write id, or else this content; None if there is none that can be opened."""
        name = source.write_id if write_id is None else write_id
        found = next((header for header in self.usable() if header.write_id == name), None)
        if found is None and write_id is None:
            found = next((header for header in self.usable() if _has_same_content(header, source)), None)
        return found

    def is_at(self, source: Header) -> bool:
        """Return whether the newest version has the content of `source`, and its records of deletions and purges."""
        if self.newest is None or not _has_same_content(self.newest, source):
            return False
        there = {(erasure_id(entry), bool(entry.get("purged"))) for entry in self.newest.erased}
        there |= {(erasure, False) for erasure, _ in there}
        return all((erasure_id(entry), bool(entry.get("purged"))) in there for entry in source.erased)

    def check_erased(self, source: Header, known: Collection[str] = ()) -> None:
        """Check that a version of the source records every deletion of samples that the target does.

        Args:
            source: The version of the source.
            known: Deletions that the source recorded before; if they were not purged at the target, a rollback at the
                source undoes them there too.

        Raises:
            CatalogError: samples were deleted at the target that the version may hold.
        """
        recorded = {erasure_id(entry) for entry in source.erased}
        lost = [
            entry
            for entry in (() if self.newest is None else self.newest.erased)
            if erasure_id(entry) not in recorded and (entry.get("purged") or erasure_id(entry) not in known)
        ]
        if lost:
            versions = [int(entry["version"]) for entry in lost]
            raise CatalogError(
                f"{self.store.url}: samples were deleted at the target (versions {', '.join(map(str, versions))}) that "
                f"version {source.version} of the source may hold: it has no record of these deletions, and could "
                "bring the samples back. Nothing was copied. Delete them at the source too, and copy the version that "
                "makes; then, or if they should come back, say `restore_erased` of `copy_version` (`smalti cp "
                "--overwrite --restore-erased`)",
                versions=versions,
            )

    def may_hold_deleted(self, new: Iterable[tuple[int | None, Sequence[Mapping[str, Any]]]]) -> tuple[int, ...]:
        """Return the versions that lack a record of a deletion which the newest one has.

        `new` has the versions that were published since the state was read: number, None in a dry run, and records.
        """
        recorded = set() if self.newest is None else set(map(erasure_id, self.newest.erased))
        found: list[tuple[int | None, set[str]]] = [
            (header.version, set(map(erasure_id, header.erased))) for header in list(self.usable())[::-1]
        ]
        for number, erased in new:
            recorded |= set(map(erasure_id, erased))
            found.append((number, set(recorded)))
        return tuple(number for number, had in found if number is not None and had != recorded)

    def check_fences(self, parcel: Parcel, owners: Iterable[str]) -> None:
        """Check that no vacuum removes what is about to be copied, before anything is put; `owners` are the parcel's.

        Raises:
            CatalogError: a vacuum at the target removes objects of the same write.
        """
        fenced = set() if self.newest is None else {*owners} & {*self.newest.fenced}
        for file in parcel.files() if fenced else ():
            owner = parcel.owner_of(file.basename)
            if owner in fenced and _hash(file.basename) not in self._needed:
                raise CatalogError(
                    f"{self.store.locate(file.basename)}: a vacuum at the target removes the objects of write {owner}, "
                    "and could still remove what is copied now. Nothing was copied. Copy to another place, or call "
                    "`vacuum` at the target once more when its last version is older than its limit: it then frees "
                    "the name",
                    write_id=owner,
                )

    def begin(self, owners: Iterable[str]) -> None:
        """Put or renew the markers of writes that were not published here."""
        for owner in owners:
            if not self._is_published(owner):
                markers.begin(self.store, owner)

    def missing(self, parcel: Parcel, files: Iterable[FileInfo], *, is_checked: bool) -> Iterator[FileInfo]:
        """Yield the files that have to be copied; the markers were put before the first one is asked for.

        Args:
            parcel: The version that the files are of.
            files: Its files, or some of them.
            is_checked: Read every object that is there, and copy it again if it is damaged.
        """
        is_local = self.store.local_path("x") is not None
        for file in files:
            key, owner = file.basename, parcel.owner_of(file.basename)
            is_there = self._listed.get(_hash(key)) == file.num_bytes
            if is_there and self.is_needed(file):
                if is_checked and not is_whole(self.store, hashed(parcel.store, file)):
                    yield file
                continue
            is_reusable = is_there and owner is not None and not self._is_published(owner)
            expected = hashed(parcel.store, file) if is_reusable and is_checked else file
            # A crash of the machine may have left a file of the right size without its bytes.
            if not is_reusable or ((is_checked or is_local) and not is_whole(self.store, expected)):
                yield file

    def is_needed(self, file: FileInfo) -> bool:
        """Return whether a version that can be opened names this object, with this size."""
        return self._needed.get(_hash(file.basename)) == file.num_bytes

    @cached_property
    def _listed(self) -> Mapping[int, int]:
        """Size by hash of the name of all objects, when they were first asked for."""
        return {_hash(info.key): info.num_bytes for info in self.store.list()}

    @cached_property
    def _needed(self) -> Mapping[int, int]:
        """Size by hash of the name of all objects that versions need which can be opened."""
        needed: dict[int, int] = {}
        contents: set[tuple[str, str]] = set()
        segments: set[str] = set()  # which versions share
        for header in self.usable():
            identity = header.table_key, repr(header.sidecars)
            if identity in contents:
                continue
            contents.add(identity)
            others = [*live_keys(self.store, header.sidecars), *erased_keys(header)]
            for sha256, shards in tables_in(read_manifest(self.store, header, recount=False).shards):
                if not sha256 or sha256 not in segments:
                    needed |= {_hash(name): size for part in stored_sizes_of(shards) for name, size in part}
                    others += block_files_of(shards)
                    segments.add(sha256)
            for key in others:
                with suppress(StoreNotFound):  # copied again
                    needed[_hash(key)] = self.store.size(key)
        return needed

    def _is_published(self, owner: str) -> bool:
        is_remembered = self.newest is not None and owner in self.newest.writes
        return is_remembered or any(header.write_id == owner for header in self.headers.values())


def _has_same_content(one: Header, other: Header) -> bool:
    """Return whether two versions have the same shards, added columns and logical types."""
    first, second = (
        (header.digest, [entry.get("digest") or entry.get("sha256") for entry in header.sidecars], dict(header.logical))
        for header in (one, other)
    )
    return first == second


def _hash(name: str) -> int:
    return xxh3_64_intdigest(name.encode(errors="surrogatepass"))
