"""Shards by id: the versions that they come from, how they are fetched, their bytes, and the paths of their copies.

Shard ids count over all sources, laid end to end. Nothing is fetched or opened here, except that the folder of a
source's copies is created when its path is first needed.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice, check_flags, seconds_above_zero, whole_number, whole_or_none
from smalti.cache.files import Contents, check_filesystem, folder_name, make_folder, open_root
from smalti.catalog.manifest import INDEX, has_write_id
from smalti.catalog.table.shard_table import ShardTable, bytes_of
from smalti.errors import ArgumentError, CacheLimitError, ShardNotFound
from smalti.format import FileInfo, ShardInfo
from smalti.format.reading.batch import OpenOptions
from smalti.format.sizes import parse_byte_count
from smalti.storage import Store
from smalti.storage.retry import most_seconds

SHARDS, NONE = "shards", "none"
"""Values of `mode`: what is kept on this machine."""


@dataclass(frozen=True)
class CacheOptions:
    """Options for fetching, verifying and keeping remote shards on this machine: the argument `cache` of a dataset.

    Raises:
        ValueError: a field is out of range.

    Examples:
        >>> cache = CacheOptions(local="/data/cache", cache_limit="100gb")
        >>> dataset = StreamingDataset(remote="s3://bucket/users", cache=cache)
    """

    local: str | None = None
    """Folder of the copies; None for the user's cache folder. Each data set gets a subfolder named by its digest, and
    without checksums by its address too."""
    cache_limit: int | str | None = None
    """Bytes that local copies of all streams of a dataset may take, such as "100gb" (units of 1024), including those of
    other processes; shards that are needed last are evicted first. None for no limit. A number after construction."""
    predownload: int | None = None
    """Samples to look ahead when fetching, for all streams of a dataset; None for 8 batches or four shards."""
    download_retry: int = 2
    """Attempts for one shard in all (not further ones), at least 1."""
    download_timeout: float = 60.0
    """Seconds with less than 64 KiB of progress after which fetching a shard fails; in all, with every attempt, pause
    and wait for another process, it may take this long and the time of its stored size at 64 KiB/s."""
    validate_hash: str | None = None
    """Hash that the index must have for every file; None for whichever it has. All hashes in the index are checked."""
    keep_zip: bool = False
    """Keep the compressed file beside the unpacked one."""
    mode: str = SHARDS
    """`shards` keeps copies of whole shards; `none` reads the blocks of the samples that are needed, and keeps some of
    them in memory. Shards without block hashes are fetched whole in both cases."""
    mirror: bool = False
    """Lay the copies out as the data set is, in `local` itself, where other programs find them by their names; and copy
    shards of a set on this machine as well. Only one data set may use the folder."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "download_retry", whole_number("download_retry", self.download_retry, 1))
        object.__setattr__(self, "predownload", whole_or_none("predownload", self.predownload, 0, (1 << 31) - 1))
        object.__setattr__(self, "local", os.fspath(self.local) if self.local else None)
        if self.cache_limit is not None:
            object.__setattr__(self, "cache_limit", parse_byte_count(self.cache_limit, what="`cache_limit`"))
        check_flags(keep_zip=self.keep_zip)
        check_choice("mode", self.mode, (SHARDS, NONE))
        seconds = seconds_above_zero("download_timeout", self.download_timeout)
        object.__setattr__(self, "download_timeout", seconds)
        if self.mirror and not self.local:
            raise ArgumentError("`mirror` needs `local`, the folder in which the copies of one data set lie")

    @property
    def limit_bytes(self) -> int | None:
        """`cache_limit` as a number."""
        return cast("int | None", self.cache_limit)

    @property
    def stall_seconds(self) -> float:
        """Seconds without a byte after which a request is made again, so that all attempts fit the time limit."""
        return self.download_timeout / self.download_retry


def detect_cache_folder() -> Path:
    """Return the cache folder of this user on this system (`~/.cache/smalti`, `~/Library/Caches/smalti`)."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("smalti", appauthor=False))


@dataclass(frozen=True, eq=False)
class ShardSource:
    """One version of a shard set, and how its shards are fetched."""

    store: Store
    """Store of the dataset root."""
    digest: str
    """Digest of the manifest; names the folder of the copies."""
    shards: Sequence[ShardInfo]
    """Shards of the manifest, or some of them."""
    options: CacheOptions
    """Folder of the copies, number of attempts, time limit."""
    allow_unsafe_types: bool = False
    """True if columns may be opened whose decoding runs code."""
    is_own: bool = False
    """True if Smalti wrote the shards, so that their own headers must agree with the manifest."""
    names: tuple[str, ...] | None = None
    """Columns to read, in the order of the result; None for all."""

    @property
    def cache_folder(self) -> Path:
        """The folder in which the folders of copies lie: the user's choice, or the default one of this system."""
        return Path(self.options.local).expanduser() if self.options.local else detect_cache_folder()

    @property
    def is_own_mirror(self) -> bool:
        """True if the copies' folder is that of the data set itself: only what must be unpacked is written there."""
        place = self.store.local_path(INDEX) if self.options.mirror else None
        return place is not None and place.parent.resolve() == self.cache_folder.resolve()

    def open_options(self, info: ShardInfo) -> OpenOptions:
        """Return how one of the shards is opened."""
        return OpenOptions(self.allow_unsafe_types, self.is_own or has_write_id(info.raw.basename), self.names)


@dataclass(frozen=True)
class ShardFile:
    """One file of a shard, in the store and in the cache."""

    raw: FileInfo
    """The uncompressed file, which is read."""
    zip: FileInfo | None
    """The compressed file."""
    name: str
    """For messages."""
    keeps_zip: bool
    """True if the compressed file is kept beside the unpacked one."""

    @property
    def stored(self) -> FileInfo:
        """The file in the store: `zip`, or `raw` where there is none."""
        return self.zip or self.raw

    @property
    def kept_bytes(self) -> int:
        """Bytes that its copies take."""
        return self.staged_bytes if self.keeps_zip else self.raw.num_bytes

    @property
    def staged_bytes(self) -> int:
        """Bytes that it takes while it is fetched: compressed and unpacked."""
        return self.raw.num_bytes + (self.zip.num_bytes if self.zip is not None else 0)


@dataclass(frozen=True, eq=False)
class CachedShard:
    """One shard with the paths of its copies; their folder is created when it is first needed."""

    shard_id: int
    info: ShardInfo
    source: ShardSource
    place: int
    """Its number in the source."""
    make_root: Callable[[bool], Path]
    """Returns the folder of copies, of files with a hash or without."""

    @cached_property
    def name(self) -> str:
        """Its name in messages: "shard 17 (train/.../shard.00017.mds) of s3://b/set, version digest 1a2b3c"."""
        of_set = f"{self.source.store.url}, version digest {self.source.digest[:12]}"
        return f"shard {self.place} ({self.info.stored.basename}) of {of_set}"

    @cached_property
    def files(self) -> tuple[ShardFile, ...]:
        """Its files: one for MDS, data and meta for a text shard."""
        info, keep_zip = self.info, self.source.options.keep_zip
        names = self.name, f"meta file {info.stored_files[-1].basename} of {self.name}"
        parts = zip(info.raw_files, (info.zip, info.zip_meta), names, strict=False)
        return tuple(ShardFile(raw, zipped, name, keep_zip) for raw, zipped, name in parts)

    @property
    def staged_bytes(self) -> int:
        """Bytes that it takes while it is fetched."""
        return sum(file.staged_bytes for file in self.files)

    @property
    def max_seconds(self) -> float:
        """Seconds after which fetching it fails."""
        return most_seconds(self.source.options.download_timeout, sum(file.stored.num_bytes for file in self.files))

    def root(self, file: ShardFile) -> Path:
        """Return the folder below which the copy of a file lies.

        Raises:
            StoreError: it cannot be created, or a limit cannot be kept in it.
        """
        return self.make_root(bool(file.raw.hashes) or self.source.options.mirror)

    def target(self, file: ShardFile) -> Path:
        """Return the path of the uncompressed copy of a file."""
        return self.root(file) / file.raw.basename

    def targets(self) -> tuple[Path, ...]:
        """Return the paths at which its uncompressed copies would lie."""
        return tuple(map(self.target, self.files))

    def copies(self) -> tuple[Path, ...]:
        """Return the paths of its uncompressed copies; none if it is read where it lies."""
        return () if self.in_place() else self.targets()

    def in_place(self) -> tuple[Path, ...]:
        """Return the paths of its uncompressed files in a local store; none if that does not have all of them."""
        if self.source.options.mirror and not self.source.is_own_mirror:
            return ()
        found = [self.source.store.local_path(file.raw.basename) for file in self.files]
        paths = tuple(path for path in found if path is not None)
        if len(paths) != len(found):
            return ()
        if self.info.zip is None:
            return paths
        # MosaicML's reader unpacks a compressed set into a folder that is a set too, mostly without compressed files.
        try:
            sizes = [path.stat().st_size for path in paths]
        except OSError:
            return ()  # the compressed file is looked for then, and its absence reported
        return paths if sizes == [file.raw.num_bytes for file in self.files] else ()

    def not_found(self, file: ShardFile) -> ShardNotFound:
        """Return the error for a file that the store no longer has."""
        return ShardNotFound(
            f"{file.name} is gone from the store: it was deleted after it was published. `smalti.catalog.verify` lists "
            "what is missing; restore the object, or open another version",
            **self.facts(file),
        )

    def facts(self, file: ShardFile) -> dict[str, Any]:
        """Return the attributes of errors about a file."""
        key, source = file.stored.basename, self.source
        return {"shard": self.shard_id, "key": key, "digest": source.digest, "url": source.store.url}


Owners = Callable[[str], list[int]]
"""Returns the ids of the shards of one source that have an uncompressed file of this name."""


def owners_in(shards: Sequence[ShardInfo], first: int) -> Owners:
    """Return the function that finds the shards of a file; `first` is the id of the first of the shards."""
    if isinstance(shards, ShardTable):
        return cache(lambda name: [first + place for place in shards.named(name)])
    owners: dict[str, list[int]] = {}
    for shard_id, info in enumerate(shards, first):
        for file in info.raw_files:
            owners.setdefault(file.basename, []).append(shard_id)
    return lambda name: owners.get(name, [])


def shards_of_file(path: Path, tables: Sequence[tuple[Path, Owners]]) -> list[int]:
    """Return the ids of the shards that a copy belongs to; `tables` has the folders of copies with their owners."""
    text, found = str(path), list[int]()
    for root, owners in tables:
        folder = f"{root}/"
        if text.startswith(folder):
            found += owners(text[len(folder) :])
    return sorted(set(found))


class ShardSources:
    """The shards of several sources by id.

    A shard's id is its place in all sources, laid end to end. `limit` is for the copies of all of them; here it only
    refuses folders in which no limit can be kept.
    """

    def __init__(self, sources: Sequence[ShardSource], limit: int | None) -> None:
        self.sources, self._limit = sources, limit
        self._ends = list(accumulate(len(source.shards) for source in sources))
        self._roots: list[dict[bool, Path]] = [{} for _ in sources]
        """By source, the folders of its copies that were needed so far."""

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, shard_id: int) -> tuple[int, int]:
        """Return the number of a shard's source, and the shard's place in it."""
        number = bisect_right(self._ends, shard_id)
        return number, shard_id - (self._ends[number - 1] if number else 0)

    def source_of(self, shard_id: int) -> ShardSource:
        """Return the source of a shard."""
        return self.sources[self.locate(shard_id)[0]]

    def info(self, shard_id: int) -> ShardInfo:
        """Return the manifest's entry of a shard."""
        number, place = self.locate(shard_id)
        return self.sources[number].shards[place]

    def shard(self, shard_id: int) -> CachedShard:
        """Return a shard with the paths of its copies."""
        number, place = self.locate(shard_id)
        source = self.sources[number]
        return CachedShard(shard_id, source.shards[place], source, place, partial(self._root, number))

    def _root(self, number: int, has_hash: bool) -> Path:  # noqa: FBT001
        source, roots = self.sources[number], self._roots[number]
        if has_hash not in roots:
            root = source.cache_folder
            if source.options.mirror:
                make_folder(root)
            else:
                root = open_root(root, folder_name(source.digest, source.store.url, has_hash=has_hash))
            check_filesystem(root, self._limit)
            roots[has_hash] = root
        return roots[has_hash]

    def keep_copies(self, root: Path, contents: Contents) -> None:
        """Remove from `contents` of a folder what may not be evicted: files of the user, and a data set itself."""
        here = [each for each in self.sources if each.options.mirror and each.cache_folder == root]
        if any(each.is_own_mirror for each in here):
            contents.copies.clear()
        elif here:
            tables = self.tables()
            for path in list(contents.copies):  # files of a compressed shard bear its suffix
                if not shards_of_file(path, tables) and not shards_of_file(path.with_suffix(""), tables):
                    del contents.copies[path]

    def costs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return by shard the bytes of its copies, and the bytes that are fetched; 0 for what is read where it lies."""
        kept, fetched, first = [], [], 0
        for source in self.sources:
            shards, zipped = source.shards, bytes_of(source.shards).zipped
            is_local = len(shards) > 0 and source.store.local_path(shards[0].raw.basename) is not None
            are_copied = np.ones(zipped.size, np.bool_)
            if is_local and (not source.options.mirror or source.is_own_mirror):
                are_copied[zipped == 0] = False
                for place in np.flatnonzero(zipped).tolist():  # some may lie unpacked beside their compressed files
                    are_copied[place] = not self.shard(first + place).in_place()
            kept.append(np.where(are_copied, _kept_bytes(source), 0))
            fetched.append(np.where(are_copied, bytes_of(source.shards).stored, 0))
            first += len(source.shards)
        return np.concatenate(kept), np.concatenate(fetched)

    def check_limit(self, limit: int) -> None:
        """Return if every single shard fits into so many bytes.

        Raises:
            CacheLimitError: the largest one does not.
        """
        needs = np.concatenate([_kept_bytes(source) for source in self.sources])
        if needs.size and (need := int(needs.max())) > limit:
            raise CacheLimitError(
                f"`cache_limit` is {limit} bytes, and {self.shard(int(needs.argmax())).name} alone takes {need}: give "
                "at least that; better, what a few batches need and what is fetched at the same time.",
                limit=limit,
                needed=need,
            )

    def roots(self) -> list[Path]:
        """Return the folders of copies that were needed so far, sorted."""
        return sorted({root for roots in self._roots for root in tuple(roots.values())})

    def tables(self) -> list[tuple[Path, Owners]]:
        """Return each folder of copies with the owners of its files, for `shards_of_file`."""
        return [
            (root, owners)
            for roots, owners in zip(self._roots, self._owners, strict=True)
            for root in tuple(roots.values())  # another thread may add one
        ]

    @cached_property
    def _owners(self) -> list[Owners]:
        ends = zip(self.sources, self._ends, strict=True)
        return [owners_in(source.shards, end - len(source.shards)) for source, end in ends]


def _kept_bytes(source: ShardSource) -> NDArray[np.int64]:
    """Return by shard the bytes that its copies take; int64, shape (shards,)."""
    sizes = bytes_of(source.shards)
    return sizes.raw + sizes.zipped if source.options.keep_zip else sizes.raw
