"""The content of a version at the source: its header, its shards, and all files that a copy needs."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smalti.catalog.header import INDEX, Header, read_manifest
from smalti.catalog.manifest import Draft, Manifest, has_write_id
from smalti.catalog.opening import Choice, Newest, find_newest, header_of, no_shard_set, open_version
from smalti.catalog.sidecars import columns_of, objects_of, shards_of, store_columns
from smalti.errors import StoreNotFound, VersionNotFound
from smalti.exchange.transfer import BlockFile
from smalti.format import MAX_INDEX_BYTES, ShardInfo
from smalti.format.index import FileInfo
from smalti.storage import Store

_SHA256 = "sha256"


@dataclass(frozen=True)
class Content:
    """A version at the source."""

    store: Store
    manifest: Manifest
    header: Header | None
    """None for a plain MDS set, and for the folder of one split of a set."""

    @property
    def version(self) -> int:
        """Number at the source; 0 for a plain MDS set."""
        return self.manifest.version

    def files(self) -> Iterator[FileInfo]:
        """Yield all files of the version but its header and its own shard table, with the hashes that are known.

        Raises:
            StoreNotFound: a table is gone.
            IndexFileError: a table is damaged.
        """
        yield from _stored(self.store, self.manifest.shards)
        for entry in columns_of(self.manifest.sidecars):
            yield from _stored(self.store, shards_of(self.store, entry))
            yield FileInfo(entry.table_key, self.store.size(entry.table_key), {_SHA256: entry.table_sha256})
        yield from self._objects(objects_of(self.manifest.sidecars))
        yield from self.erased_files()

    def erased_files(self) -> Iterator[FileInfo]:
        """Yield the objects with source files of deleted samples."""
        yield from self._objects(entry for entry in self.erased if "key" in entry)

    def _objects(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[FileInfo]:
        for entry in entries:
            key = str(entry["key"])
            yield FileInfo(key, self.store.size(key), {_SHA256: str(entry["sha256"])})

    @property
    def erased(self) -> tuple[Mapping[str, Any], ...]:
        """Records of deletions of samples."""
        return () if self.header is None else self.header.erased

    def owner_of(self, key: str) -> str | None:
        """Return the write id in a key, which only Smalti's writers put there; None for other objects."""
        writes = () if self.header is None else {self.header.write_id, *self.header.writes}
        folders = key.split("/")[:-1][:2]
        return next((name for name in folders if name in writes or has_write_id(f"{name}/")), None)

    def owners(self) -> tuple[str, ...]:
        """Return the write ids of all files, sorted."""
        found = {owner for file in self.files() if (owner := self.owner_of(file.basename)) is not None}
        return tuple(sorted(found))

    def draft(self, write_id: str, origin: dict[str, Any]) -> Draft:
        """Return the draft of the same content; `origin` is added to its metadata."""
        return self.manifest.redraft(write_id, metadata={**self.manifest.metadata, "copied_from": origin})


def _stored(store: Store, shards: Sequence[ShardInfo]) -> Iterator[FileInfo]:
    """Yield the files of the shards, and those of their block lists."""
    lists: dict[str, list[tuple[int, int, int]]] = {}
    for shard in shards:
        yield from shard.stored_files
        if shard.blocks is not None:
            place = (*shard.blocks.span(shard.raw.num_bytes), shard.blocks.digest)
            lists.setdefault(shard.blocks.file, []).append(place)
    for key in sorted(lists):
        with suppress(StoreNotFound):  # shards without a list are read whole
            yield BlockFile(key, store.size(key), lists=lists[key])


def read_content(store: Store, version: int | None) -> Content:
    """Read a version completely, the newest by default; its digest is recomputed.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version, or a vacuum removed it.
        IndexFileError: the manifest cannot be trusted.
    """
    newest = find_newest(store, lenient=True)
    if newest.header is None:
        return Content(store, open_version(store, Choice(version, by_index=False)), None)
    number = newest.header.version if version is None else version
    if number in newest.header.expired:
        raise vacuumed(store, number)
    return content_of(store, header_of(store, number))


def content_of(store: Store, header: Header) -> Content:
    """Read the shards of a version whose header is known.

    Raises:
        IndexFileError: the manifest cannot be trusted.
    """
    return Content(store, read_manifest(store, header), header)


def vacuumed(store: Store, version: int) -> VersionNotFound:
    """Return the error for a version whose shards a vacuum removed."""
    return VersionNotFound(
        f"{store.url}: version {version} was removed by a vacuum or a purge, so that it cannot be copied. A vacuum "
        "keeps versions with a tag",
        version=version,
    )


def split_draft(content: Content, target: Store, split: str, origin: dict[str, Any]) -> Draft:
    """Return the draft of one split; tables of added columns are put below its write id if there are any.

    The write id follows from the source's and the split, so that a repeated call returns the same version. The record
    of source files is left out, because it is of all splits; the row hash of the split alone is not known.
    """
    write_id = split_write_id(content, split)
    manifest = content.manifest
    places = [place for place, shard in enumerate(manifest.shards) if shard.partition == split]
    sidecars = []
    for number, entry in enumerate(columns_of(manifest.sidecars)):
        aligned: Sequence[ShardInfo] = shards_of(content.store, entry)
        key = f"{write_id}/columns-{number}.arrow"
        chosen = [aligned[place] for place in places]
        sidecars.append(store_columns(target, key, chosen, entry.columns, entry.logical).to_json())
    shards = tuple(manifest.select(split))
    draft = content.draft(write_id, {**origin, "split": split})
    return Draft(**{**vars(draft), "shards": shards, "sidecars": tuple(sidecars), "row_hash": ""})


def split_write_id(content: Content, split: str) -> str:
    """Return the write id of a copy of one split."""
    text = f"{content.manifest.write_id}\n{content.manifest.digest}\n{split}"
    return f"copy-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def split_files(content: Content, split: str) -> Iterator[FileInfo]:
    """Yield the files of one split, with those of added columns and of records of deletions.

    Raises:
        CatalogError: there is no such split.
    """
    yield from _stored(content.store, content.manifest.select(split))
    partitions = [shard.partition for shard in content.manifest.shards]
    for entry in columns_of(content.manifest.sidecars):
        aligned = shards_of(content.store, entry)
        own = [aligned[place] for place, name in enumerate(partitions) if name == split]
        yield from _stored(content.store, own)
    yield from content.erased_files()


def plain_index(store: Store, newest: Newest) -> bytes:
    """Return the index file of a set without versions.

    Raises:
        StoreNotFound: there is no set.
    """
    if newest.index is None:
        raise no_shard_set(store)
    return store.get_limited(INDEX, MAX_INDEX_BYTES)
