"""Where a StreamingDataset gets its samples: from the engine, or from streams that have their own way of fetching.

Copies of shards lie where MosaicML Streaming puts them: `<local>/<split>/<name>`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheOptions
from smalti.catalog.header import INDEX
from smalti.catalog.table.shard_table import bytes_of
from smalti.compat.streaming.base.spanner import Spanner
from smalti.compat.streaming.base.stream import Stream
from smalti.compat.streaming.base.world import World
from smalti.compat.streaming.errors import EmptyStream, MissingIndex, MissingShard
from smalti.compat.streaming.planning import WorkReading
from smalti.dataset.lookahead import planned_ahead
from smalti.errors import IndexFileError, ShardNotFound, StoreNotFound, VersionNotFound
from smalti.stream import OpenStreams, ShardSet, StreamOptions
from smalti.stream.shard_set import find_shard_set

Ints = NDArray[np.int64]
_FETCHING = ("get_shards", "prepare_shard", "_prepare_shard_part", "_download_file", "_decompress_shard_part")


class Samples(Protocol):
    """The samples of all streams, and the local copies of their shards."""

    shard_sizes: Sequence[Ints]
    """Of every stream, the samples of each of its shards."""
    max_shard_bytes: int
    """Bytes of the largest shard, unpacked and compressed together."""

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return one sample."""

    def planned(
        self, reading: WorkReading, worker: int, num_workers: int, predownload: int | None
    ) -> Iterator[list[int]]:
        """Yield the sample ids of one worker, step by step, while shards of later steps are fetched."""

    def prepare(self, shard_id: int, *, blocking: bool) -> None:
        """Fetch a shard; without `blocking`, start to fetch it."""

    def evict(self, shard_id: int) -> None:
        """Remove the copies of a shard."""

    def evict_coldest(self) -> int:
        """Remove the copies of one shard, that which is needed last; return their bytes."""

    def kept_bytes(self) -> int:
        """Return the bytes of all shards that are local."""


def open_samples(streams: Sequence[Stream], world: World, cache_limit: int | None, *, unsafe: bool) -> Samples:
    """Open the streams.

    Raises:
        MissingIndex: a stream has no index file.
        EmptyStream: a stream has no samples.
        ValueError: an index file cannot be trusted, or a column has an unsafe type, or the limit is too small.
    """
    if any(map(_fetches_itself, streams)):
        return ReaderSamples(streams, world, unsafe=unsafe)
    try:
        try:
            opened = OpenStreams([_options_of(stream, unsafe=unsafe) for stream in streams], cache_limit)
        except (StoreNotFound, VersionNotFound):
            opened = OpenStreams([_existing(stream, unsafe=unsafe) for stream in streams], cache_limit)
    except IndexFileError as error:
        if error.facts.get("num_shards") != 0:
            raise
        raise EmptyStream(f"Stream contains no samples: {error.message}", **error.facts) from error
    for stream, each in zip(streams, opened.sets, strict=True):
        if not each.num_samples:
            raise EmptyStream(f"Stream contains no samples: {_index_path(stream)}.", url=each.store.url)
        _place_index(stream, each)
    return EngineSamples(opened, [not _is_fetched(stream) for stream in streams])


@dataclass
class EngineSamples:
    """Samples that the engine reads."""

    opened: OpenStreams
    are_in_place: Sequence[bool]
    """For every stream, whether it is read where it lies."""

    @property
    def shard_sizes(self) -> list[Ints]:
        """Of every stream, the samples of each of its shards."""
        return [np.asarray(each.shard_sizes, np.int64) for each in self.opened.sets]

    @property
    def max_shard_bytes(self) -> int:
        """Bytes of the largest shard, unpacked and compressed together."""
        sizes = [bytes_of(each.shards) for each in self.opened.sets]
        return max(int((each.raw + each.zipped).max()) for each in sizes)

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return one sample.

        Raises:
            MissingShard: its shard is gone.
        """
        try:
            return self.opened.sample(sample_id)
        except ShardNotFound as error:
            raise MissingShard(
                f"{error.message}. Check if the shard file exists in your remote location or have you deleted the "
                "shard file from the local directory?",
                **error.facts,
            ) from error

    def planned(
        self, reading: WorkReading, worker: int, num_workers: int, predownload: int | None
    ) -> Iterator[list[int]]:
        """Yield the sample ids of one worker, step by step."""
        steps = planned_ahead(
            reading, self.opened, worker=worker, num_workers=num_workers, num_readers=1, predownload=predownload
        )
        for _, ids in steps:
            yield ids.tolist()

    def prepare(self, shard_id: int, *, blocking: bool) -> None:
        """Fetch a shard; without `blocking`, start to fetch it."""
        if blocking:
            self.opened.cache.shard(shard_id)
        else:
            self.opened.cache.prefetch([shard_id])

    def evict(self, shard_id: int) -> None:
        """Remove the copies of a shard; one that is read where it lies stays."""
        self.opened.cache.evict(shard_id)

    def evict_coldest(self) -> int:
        """Remove the copies of the shard that is needed last; return their bytes."""
        return self.opened.cache.evict_last_needed()

    def kept_bytes(self) -> int:
        """Return the bytes of all shards that are local."""
        in_place = (
            int(bytes_of(each.shards).raw.sum())
            for each, is_in_place in zip(self.opened.sets, self.are_in_place, strict=True)
            if is_in_place
        )
        return self.opened.cache.kept_bytes() + sum(in_place)


class ReaderSamples:
    """Samples of streams that override how shards are found or fetched: one shard at a time, when it is needed."""

    def __init__(self, streams: Sequence[Stream], world: World, *, unsafe: bool) -> None:
        self.streams = streams
        self.shards_of_stream = [list(stream.get_shards(world, unsafe)) for stream in streams]
        self.shards = list(chain.from_iterable(self.shards_of_stream))
        self.shard_sizes = [
            np.array([shard.samples for shard in shards], np.int64) for shards in self.shards_of_stream
        ]
        for stream, sizes in zip(streams, self.shard_sizes, strict=True):
            if not sizes.sum():
                raise EmptyStream(f"Stream contains no samples: {_index_path(stream)}.")
        self._spanner = Spanner(np.concatenate(self.shard_sizes))
        self._ends = np.cumsum([len(shards) for shards in self.shards_of_stream])

    @property
    def max_shard_bytes(self) -> int:
        """Bytes of the largest shard, unpacked and compressed together."""
        return max(shard.get_max_size() for shard in self.shards)

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return one sample."""
        shard_id, row = self._spanner[sample_id]
        try:
            return self.shards[shard_id][row]
        except FileNotFoundError:
            self.prepare(shard_id)
        try:
            return self.shards[shard_id][row]
        except FileNotFoundError as error:
            raise MissingShard(
                f"{error}. Check if the shard file exists in your remote location or have you deleted the shard file "
                "from the local directory?"
            ) from error

    def planned(
        self, reading: WorkReading, worker: int, num_workers: int, predownload: int | None
    ) -> Iterator[list[int]]:
        """Yield the sample ids of one worker, step by step."""
        del predownload
        num_steps = reading.division.num_steps
        for _, ids in reading.steps(worker, num_steps, num_workers):
            yield ids.tolist()

    def prepare(self, shard_id: int, *, blocking: bool = True) -> None:
        """Fetch a shard, always before this returns."""
        del blocking
        self.streams[int(np.searchsorted(self._ends, shard_id, side="right"))].prepare_shard(self.shards[shard_id])

    def evict(self, shard_id: int) -> None:
        """Remove the files of a shard."""
        self.shards[shard_id].evict()

    def evict_coldest(self) -> int:
        """Remove the files of the first shard that has any; return their bytes."""
        return next(filter(None, (shard.evict() for shard in self.shards)), 0)

    def kept_bytes(self) -> int:
        """Return the bytes of all shards that are local."""
        total = 0
        for stream, shards in zip(self.streams, self.shards_of_stream, strict=True):
            sizes = np.zeros(len(shards), np.int64)
            stream.set_up_local(shards, sizes)
            total += int(sizes.sum())
        return total


def check_local_folders(streams: Sequence[Stream]) -> None:
    """Return if no two streams have the same folder for their copies.

    Raises:
        ValueError: two have.
    """
    folders = [os.path.abspath(os.path.join(stream.local, stream.split)) for stream in streams]  # noqa: PTH100, PTH118
    twice = sorted({folder for folder in folders if folders.count(folder) > 1})
    if twice:
        raise ValueError(
            f"Reused local directory: {', '.join(twice)} for several streams. Provide a different one for each."
        )


def _fetches_itself(stream: Stream) -> bool:
    return any(getattr(type(stream), name, None) is not getattr(Stream, name, None) for name in _FETCHING)


def _is_fetched(stream: Stream) -> bool:
    return bool(stream.remote) and stream.remote != stream.local


def _index_path(stream: Stream) -> Path:
    return Path(stream.local, stream.split, INDEX)


def _options_of(stream: Stream, *, unsafe: bool, root: str | None = None, split: str | None = None) -> StreamOptions:
    """Return the engine's options of a stream; by default its root is the folder of its split, as MosaicML has it."""
    is_fetched = _is_fetched(stream)
    folder = stream.remote if is_fetched and stream.remote else stream.local
    cache = CacheOptions(
        local=str(_index_path(stream).parent),
        download_retry=max(1, stream.download_retry),
        download_timeout=stream.download_timeout,
        validate_hash=stream.validate_hash,
        keep_zip=is_fetched and stream.keep_zip,
        mirror=True,
    )
    below = f"{folder.rstrip('/')}/{stream.split}" if stream.split else folder
    return StreamOptions(below if root is None else root, split=split, cache=cache, allow_unsafe_types=unsafe)


def _existing(stream: Stream, *, unsafe: bool) -> StreamOptions:
    """Return options with which a set is found: of the split's folder, a split that an index lists, or the copies.

    Raises:
        MissingIndex: there is none.
    """
    tried = [_options_of(stream, unsafe=unsafe)]
    if stream.split:
        root = stream.remote if _is_fetched(stream) else stream.local
        tried.append(_options_of(stream, unsafe=unsafe, root=root, split=stream.split))
    if _is_fetched(stream) and _index_path(stream).exists():  # MosaicML reads a complete copy without its remote
        tried.append(_options_of(stream, unsafe=unsafe, root=str(_index_path(stream).parent)))
    missing: Exception | None = None
    for options in tried:
        try:
            find_shard_set(options)
        except (StoreNotFound, VersionNotFound) as error:  # noqa: PERF203 - at most three
            missing = missing or error
        else:
            return options
    if _is_fetched(stream):
        raise MissingIndex(f"{missing} Check `remote` and `split`.", url=tried[0].root) from missing
    raise MissingIndex(
        f"No `remote` provided, but local file {_index_path(stream)} does not exist either", url=tried[0].root
    ) from missing


def _place_index(stream: Stream, opened: ShardSet) -> None:
    """Copy the index file beside the copies of the shards, where other programs expect it."""
    target = _index_path(stream)
    if not _is_fetched(stream) or opened.store.local_path(INDEX) == target:
        return
    if target.exists() and target.stat().st_size == opened.store.size(INDEX):
        return
    content = opened.store.get(INDEX)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(target)
