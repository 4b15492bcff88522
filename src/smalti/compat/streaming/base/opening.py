"""The streams of a StreamingDataset, opened by the engine.

Copies of shards lie where MosaicML Streaming puts them, at `<local>/<split>/<name>`, with the index file beside them.
"""

import copy
import functools
import gc
import logging
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smalti.cache import CacheOptions
from smalti.catalog.manifest import INDEX
from smalti.catalog.table.shard_table import bytes_of
from smalti.compat.streaming.base.constant import TICK
from smalti.compat.streaming.base.stream import PreparedShards, Stream
from smalti.compat.streaming.base.world import get_local_rank
from smalti.compat.streaming.errors import EmptyStreamError, MissingIndexError, mosaicmls_words
from smalti.errors import IndexFileError, StoreNotFound, VersionNotFound
from smalti.storage.retry import Deadline
from smalti.stream import OpenStreams, ShardSet, options_of
from smalti.stream.shard_set import find_shard_set

logger = logging.getLogger(__name__)
_CACHED_SHARDS = 4  # the fewest of the largest shards that a cache must hold
_in_use: "weakref.WeakKeyDictionary[OpenStreams, tuple[list[Path], set[Path]]]" = weakref.WeakKeyDictionary()
"""The folders of the streams of all datasets of this process, and those of them that are fetched into."""


@functools.cache
def log_that_nothing_was_evicted() -> None:
    """Log once that a set is read where it lies."""
    logger.warning(
        "Nothing was evicted: the set has no `remote`, and its files are the only copy of it. This is logged once."
    )


def open_streams_of(streams: Sequence[Stream], cache_limit: int | None, *, unsafe: bool) -> OpenStreams:
    """Open the streams.

    Raises:
        MissingIndexError: a stream has no index file.
        EmptyStreamError: a stream has no samples.
        ValueError: two streams have one folder; an index file cannot be trusted; a column has an unsafe type; or the
            limit is less than a shard needs.
    """
    folders, fetched = _folders_of(streams)
    sets = []
    for stream in streams:
        # The first rank of this machine makes a temporary folder, which for it must not exist before. With a process
        # group its barrier has waited. Best effort: a rank that is alone continues after the time limit.
        if stream._local is None and get_local_rank() != 0:
            deadline = Deadline(stream.download_timeout)
            while not Path(stream.local).exists() and not deadline.passed():
                time.sleep(TICK)
        with mosaicmls_words():
            found = _find(stream, unsafe=unsafe)
        if not found.num_samples:
            raise EmptyStreamError(f"Stream contains no samples: {stream._path_of(INDEX)}.", url=found.store.url)
        if stream._is_fetched:
            _place_index(stream, found)
        sets.append(found)
    opened = OpenStreams(sets, _limit_of_copies(streams, sets, cache_limit))
    _in_use[opened] = folders, fetched
    return opened


def max_shard_bytes(sets: Sequence[ShardSet]) -> int:
    """Return the bytes of the largest shard, unpacked and compressed together."""
    sizes = [bytes_of(each.shards) for each in sets]
    return max(int((each.raw + each.zipped).max()) for each in sizes)


def _limit_of_copies(streams: Sequence[Stream], sets: Sequence[ShardSet], limit: int | None) -> int | None:
    """Return the bytes that copies of shards may take, beside the index files, which count as in MosaicML Streaming.

    Raises:
        ValueError: the limit is too low for the index files and a few shards.
    """
    if limit is None:
        return None
    index_bytes, largest = sum(stream.get_index_size() for stream in streams), max_shard_bytes(sets)
    if limit <= index_bytes:
        raise ValueError(
            f"Minimum cache usage ({index_bytes} bytes) is larger than the cache limit ({limit} bytes). Please raise "
            "`cache_limit`."
        )
    if limit < _CACHED_SHARDS * largest:
        raise ValueError(
            f"Cache limit ({limit} bytes) is too low. Increase the `cache_limit` to at-least four times the largest "
            f"shard size ({largest} bytes) which includes raw (decompressed) and zip (compressed) file size."
        )
    # A set that is read where it lies is no copy, and nothing of it is evicted.
    if not any(stream._is_fetched for stream in streams):
        return None
    return limit - index_bytes if limit - index_bytes >= largest else limit


def _find(stream: Stream, *, unsafe: bool) -> ShardSet:
    try:
        found = _find_declared(stream, unsafe=unsafe)
    except (StoreNotFound, VersionNotFound) as missing:
        path = stream._path_of(INDEX)
        if not stream._is_fetched:
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
    folder = str(stream._path_of(INDEX).parent if is_below else Path(stream.local))
    cache = replace(found.options.cache, local=folder, mirror=True)
    if not stream._is_fetched:
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


def _folders_of(streams: Sequence[Stream]) -> tuple[list[Path], set[Path]]:
    """Return the folder of each stream, and those that are fetched into.

    Raises:
        ValueError: two streams have one folder, or another dataset of this process fetches into one of these: each
            would take the other's shards for its own.
    """
    folders = [stream._path_of("").absolute() for stream in streams]
    twice = sorted({str(folder) for folder in folders if folders.count(folder) > 1})
    if twice:
        raise ValueError(f"Reused local directory: {twice}. Provide a different one for each stream.")
    fetched = {folder for folder, stream in zip(folders, streams, strict=True) if stream._is_fetched}
    if any(not fetched.isdisjoint(theirs) for _, theirs in _in_use.values()):
        gc.collect()  # a dataset that nothing refers to may still be waiting for it
    for used, theirs in list(_in_use.values()):
        if both := sorted(fetched & theirs):
            raise ValueError(
                f"Reused local directory: {list(map(str, folders))} vs {list(map(str, used))}. Provide a different "
                f"one: {both[0]} is that of another dataset of this process. If that is not needed any more, delete "
                "it, or call `streaming.base.util.clean_stale_shared_memory()`."
            )
    return folders, fetched


def forget_folders() -> None:
    """Make the folders that datasets of this process use free for others, which then share the copies there."""
    _in_use.clear()


def _place_index(stream: Stream, found: ShardSet) -> None:
    """Copy the index file beside the copies of the shards, where other programs expect it."""
    target = stream._path_of(INDEX)
    is_its_own = found.store.local_path(INDEX) == target  # a set that is read from its copies
    is_listed = stream.split and any(found.manifest.partitions)
    if isinstance(found.store, PreparedShards):
        return  # the stream has fetched it by itself
    if is_its_own or (target.exists() and (is_listed or target.stat().st_size == found.store.size(INDEX))):
        return
    if target.exists():  # of an earlier version
        target.unlink()
    stream._download_file(INDEX)
