"""The streams of a StreamingDataset, opened by the engine.

Copies of shards lie where MosaicML Streaming puts them, at `<local>/<split>/<name>`, with the index file beside them.
"""

import copy
import functools
import gc
import logging
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheOptions
from smalti.catalog.header import INDEX
from smalti.catalog.table.shard_table import bytes_of
from smalti.compat.streaming.base.constant import TICK
from smalti.compat.streaming.base.distributed import get_local_rank
from smalti.compat.streaming.base.engine.planning import WorkReading
from smalti.compat.streaming.base.format.base.reader import Reader
from smalti.compat.streaming.base.prepared_shards import PreparedShards
from smalti.compat.streaming.base.stream import Stream, readers_of
from smalti.compat.streaming.base.world import World
from smalti.compat.streaming.errors import (
    EmptyStreamError,
    MissingIndexError,
    MissingShardError,
    in_mosaicmls_words,
    mosaicmls_words,
)
from smalti.dataset.lookahead import planned_ahead
from smalti.errors import ChecksumMismatch, IndexFileError, ShardNotFound, StoreNotFound, VersionNotFound
from smalti.storage.retry import Deadline
from smalti.stream import OpenStreams, ShardSet, options_of
from smalti.stream.shard_set import find_shard_set

logger = logging.getLogger(__name__)
Ints = NDArray[np.int64]
_CACHED_SHARDS = 4  # the fewest of the largest shards that a cache must hold
_in_use: "weakref.WeakValueDictionary[Path, Samples]" = weakref.WeakValueDictionary()
"""The samples whose copies lie in a folder, of all datasets of this process."""


@dataclass
class Samples:
    """The samples of all streams, and the local copies of their shards."""

    streams: Sequence[Stream]
    opened: OpenStreams

    @property
    def shard_sizes(self) -> list[Ints]:
        """The samples of each shard, by stream."""
        return [np.asarray(each.shard_sizes, np.int64) for each in self.opened.sets]

    @property
    def max_shard_bytes(self) -> int:
        """Bytes of the largest shard, unpacked and compressed together."""
        return _max_shard_bytes(self.opened.sets)

    def readers(self, world: World, *, unsafe: bool) -> list[Reader]:
        """Return a reader of each shard."""
        found: list[Reader] = []
        for stream, each in zip(self.streams, self.opened.sets, strict=True):
            if not stream._overrides("get_shards"):
                found += readers_of(each, stream.local, stream.split)
            else:
                found += stream.get_shards(world, unsafe)
        return found

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return one sample.

        Raises:
            ChecksumMismatch: its shard is damaged.
            MissingShardError: its shard is gone.
        """
        try:
            return self.opened.sample(sample_id)
        except ChecksumMismatch as error:
            raise in_mosaicmls_words(error) from error
        except ShardNotFound as error:
            raise MissingShardError(
                f"{error.message}. Check if the shard file exists in your remote location or have you deleted the "
                "shard file from the local directory?",
                **error.facts,
            ) from error

    def planned(
        self, reading: WorkReading, worker: int, num_workers: int, predownload: int | None
    ) -> Iterator[list[int]]:
        """Yield the sample ids of one worker, step by step, while shards of later steps are fetched."""
        steps = planned_ahead(
            reading, self.opened, worker=worker, num_workers=num_workers, num_readers=1, predownload=predownload
        )
        for _, ids in steps:
            yield ids.tolist()

    def prepare(self, shard_id: int) -> None:
        """Fetch a shard."""
        with mosaicmls_words():
            self.opened.cache.shard(shard_id)

    def evict(self, shard_id: int) -> None:
        """Remove the copies of a shard; log once where there are none because the set is read where it lies."""
        ends = np.cumsum([len(each.shards) for each in self.opened.sets])
        stream = self.streams[int(np.searchsorted(ends, shard_id, side="right"))]
        if not self.opened.cache.evict(shard_id) and not _is_fetched(stream):
            _log_that_nothing_was_evicted()

    def kept_bytes(self) -> int:
        """Return the bytes of all shards and index files that are local, whichever process fetched them."""
        total = self.opened.cache.kept_bytes()
        for stream, each in zip(self.streams, self.opened.sets, strict=True):
            total += stream.get_index_size()
            if not _is_fetched(stream):
                total += int(bytes_of(each.shards).raw.sum())
        return total


def open_samples(streams: Sequence[Stream], cache_limit: int | None, *, unsafe: bool) -> Samples:
    """Open the streams.

    Raises:
        MissingIndexError: a stream has no index file.
        EmptyStreamError: a stream has no samples.
        ValueError: two streams have one folder; an index file cannot be trusted; a column has an unsafe type; or the
            limit is less than a shard needs.
    """
    _check_folders(streams)
    sets = []
    for stream in streams:
        _await_first_rank(stream)
        with mosaicmls_words():
            found = _find(stream, unsafe=unsafe)
        if not found.num_samples:
            raise EmptyStreamError(f"Stream contains no samples: {_index_path(stream)}.", url=found.store.url)
        if _is_fetched(stream):
            _place_index(stream, found)
        sets.append(found)
    if cache_limit is not None:
        _check_cache_limit(streams, sets, cache_limit)
    samples = Samples(streams, OpenStreams.of_sets(sets, _limit_of_copies(streams, sets, cache_limit)))
    _in_use.update(dict.fromkeys(map(_folder_of, filter(_is_fetched, streams)), samples))
    return samples


@functools.cache
def _log_that_nothing_was_evicted() -> None:
    logger.warning(
        "Nothing was evicted: the set has no `remote`, and its files are the only copy of it. This is logged once."
    )


def _limit_of_copies(streams: Sequence[Stream], sets: Sequence[ShardSet], cache_limit: int | None) -> int | None:
    """Return the bytes that copies of shards may take, beside the index files, which count as in MosaicML Streaming."""
    # A set that is read where it lies is no copy, and nothing of it is evicted.
    if cache_limit is None or not any(map(_is_fetched, streams)):
        return None
    left = cache_limit - sum(stream.get_index_size() for stream in streams)
    return left if left >= _max_shard_bytes(sets) else cache_limit  # the dataset refuses most limits that are too low


def _check_cache_limit(streams: Sequence[Stream], sets: Sequence[ShardSet], limit: int) -> None:
    """Check that the cache can hold the index files and a few shards.

    Raises:
        ValueError: it cannot.
    """
    index_bytes = sum(stream.get_index_size() for stream in streams)
    if limit <= index_bytes:
        raise ValueError(
            f"Minimum cache usage ({index_bytes} bytes) is larger than the cache limit ({limit} bytes). Please raise "
            "`cache_limit`."
        )
    largest = _max_shard_bytes(sets)
    if limit < _CACHED_SHARDS * largest:
        raise ValueError(
            f"Cache limit ({limit} bytes) is too low. Increase the `cache_limit` to at-least four times the largest "
            f"shard size ({largest} bytes) which includes raw (decompressed) and zip (compressed) file size."
        )


def _max_shard_bytes(sets: Sequence[ShardSet]) -> int:
    sizes = [bytes_of(each.shards) for each in sets]
    return max(int((each.raw + each.zipped).max()) for each in sizes)


def _await_first_rank(stream: Stream) -> None:
    """Wait until the first rank of this machine has made a temporary folder, which for it must not exist before.

    With a process group its barrier has waited. Best effort: a rank that is alone continues after the time limit.
    """
    if stream._local is None and get_local_rank() != 0:
        deadline = Deadline(stream.download_timeout)
        while not Path(stream.local).exists() and not deadline.passed():
            time.sleep(TICK)


def _find(stream: Stream, *, unsafe: bool) -> ShardSet:
    try:
        found = _find_declared(stream, unsafe=unsafe)
    except (StoreNotFound, VersionNotFound) as missing:
        path = _index_path(stream)
        if not _is_fetched(stream):
            raise MissingIndexError(
                f"No `remote` provided, but local file {path} does not exist either", path=str(path)
            ) from missing
        if not path.exists():
            raise MissingIndexError(f"{missing} Check `remote` and `split`.", path=str(path)) from missing
        complete = copy.copy(stream)  # MosaicML reads copies that are complete without their remote
        complete.remote = None
        found = _find_declared(complete, unsafe=unsafe)
    # The index at the root of a set with splits names files from there, one in a split's folder from that folder.
    is_below = bool(stream.split) and not any(found.manifest.partitions)
    folder = str(_index_path(stream).parent if is_below else Path(stream.local))
    cache = replace(found.options.cache, local=folder, mirror=True)
    if not _is_fetched(stream):
        cache = replace(cache, keep_zip=CacheOptions.keep_zip)
    return replace(found, options=replace(found.options, cache=cache))


def _find_declared(stream: Stream, *, unsafe: bool) -> ShardSet:
    declared = stream.to_smalti(allow_unsafe_types=unsafe)
    options = options_of(declared, allow_unsafe_types=unsafe, logical=False)  # values as MosaicML returns them
    try:
        return find_shard_set(options)
    except IndexFileError as error:
        if error.facts.get("num_shards") != 0:
            raise
        raise EmptyStreamError(f"Stream contains no samples: {error.message}", **error.facts) from error


def _check_folders(streams: Sequence[Stream]) -> None:
    """Return if no two streams have one folder, and none fetches into that of another dataset of this process.

    Raises:
        ValueError: two have, or one does: each would take the other's shards for its own.
    """
    folders = list(map(_folder_of, streams))
    twice = sorted({str(folder) for folder in folders if folders.count(folder) > 1})
    if twice:
        raise ValueError(f"Reused local directory: {twice}. Provide a different one for each stream.")
    fetched = set(map(_folder_of, filter(_is_fetched, streams)))
    if not fetched.isdisjoint(_in_use):
        gc.collect()  # a dataset that nothing refers to may still be waiting for it
    used = sorted(fetched.intersection(_in_use))
    if used:
        theirs = list(map(str, map(_folder_of, _in_use[used[0]].streams)))
        raise ValueError(
            f"Reused local directory: {list(map(str, folders))} vs {theirs}. Provide a different one: {used[0]} is "
            "that of another dataset of this process. If that is not needed any more, delete it, or call "
            "`streaming.base.util.clean_stale_shared_memory()`."
        )


def forget_folders() -> None:
    """Make the folders that datasets of this process use free for others, which then share the copies there."""
    _in_use.clear()


def _is_fetched(stream: Stream) -> bool:
    return bool(stream.remote) and stream.remote != stream.local


def _folder_of(stream: Stream) -> Path:
    return Path(stream.local, stream.split).absolute()


def _index_path(stream: Stream) -> Path:
    return Path(stream.local, stream.split, INDEX)


def _place_index(stream: Stream, found: ShardSet) -> None:
    """Copy the index file beside the copies of the shards, where other programs expect it."""
    target = _index_path(stream)
    is_its_own = found.store.local_path(INDEX) == target  # a set that is read from its copies
    is_listed = stream.split and any(found.manifest.partitions)
    if isinstance(found.store, PreparedShards):
        return  # the stream has fetched it by itself
    if is_its_own or (target.exists() and (is_listed or target.stat().st_size == found.store.size(INDEX))):
        return
    if target.exists():  # of an earlier version
        target.unlink()
    stream._download_file(INDEX)
