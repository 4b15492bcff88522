"""`measure_reading`: the speed at which this machine reads a shard set, cold and warm, beside the speed of the link."""

import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from smalti.cache import CacheOptions
from smalti.cache.sources import detect_cache_folder
from smalti.catalog.table.shard_table import bytes_of
from smalti.dataset import StreamingDataset, open_dataset
from smalti.diagnosis.doctor import is_read_in_place
from smalti.errors import ArgumentError, CatalogError, MixedSplitsWarning, StoreTimeout
from smalti.format import ShardInfo
from smalti.storage import Place, Store, open_store

SECONDS = 30.0
"""Time for all measurements together."""
THREADS = (1, 4, 16)
"""Numbers of threads that read at once."""
BATCH = 256
"""Samples of one read, at most: as many as lie in the shard."""
RANGE_BYTES = 8 << 20
"""Bytes of one request to the link, as the library's own client reads."""
ROUND_TRIPS = 10
"""Requests of one byte, for the round trip."""
GRACE_SECONDS = 300.0
"""Time that a read which has begun may take longer, so that a slow link has a speed at all."""
SHARE_OF_DISK = 0.5
"""Part of the free space that the copies of one cold measurement may take."""

_Step = tuple[int, int]
"""Bytes as stored, and samples, of one read."""


@dataclass(frozen=True)
class Latency:
    """Times of single reads, seconds."""

    median: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True)
class ReadingSpeed:
    """The speed of one kind of reading with one number of threads."""

    work: str
    """`link`: ranged requests, nothing else; `cold`: samples, with an empty cache; `warm`: the same ones again."""
    threads: int
    seconds: float
    num_bytes: int
    """Bytes as they lie in the store; of `warm`, those that would have been fetched."""
    samples: int
    """Samples read; of `link`, those that these bytes hold."""
    latency: Latency
    """That of a request of `link`, else of a batch."""

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes per second."""
        return self.num_bytes / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class ReadingSpeeds:
    """The result of `measure_reading`."""

    url: str
    version: int
    samples: int
    """Samples of the version."""
    shards: int
    num_bytes: int
    """Bytes of its shards, as stored."""
    is_read_in_place: bool
    """True for a set on this machine that is not compressed: nothing is copied."""
    round_trip: Latency
    """The wait for one byte: the shortest possible for anything."""
    speeds: tuple[ReadingSpeed, ...]

    def speed(self, work: str, threads: int) -> ReadingSpeed:
        """Return one of the speeds.

        Raises:
            KeyError: it was not measured.
        """
        for each in self.speeds:
            if (each.work, each.threads) == (work, threads):
                return each
        raise KeyError((work, threads))

    def share_of_link(self, threads: int) -> float | None:
        """Return the speed of cold reading relative to the link's, with the same threads; None without bytes."""
        link = self.speed("link", threads).bytes_per_second
        return self.speed("cold", threads).bytes_per_second / link if link else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values of JSON."""
        rows = [
            asdict(each)
            | {"bytes_per_second": each.bytes_per_second, "samples_per_second": each.samples_per_second}
            | ({"share_of_link": self.share_of_link(each.threads)} if each.work == "cold" else {})
            for each in self.speeds
        ]
        return asdict(self) | {"speeds": rows}


def measure_reading(
    place: Place,
    *,
    version: int | None = None,
    tag: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    seconds: float = SECONDS,
    threads: Sequence[int] = THREADS,
    local: str | Path | None = None,
    on_speed: Callable[[ReadingSpeed], None] | None = None,
) -> ReadingSpeeds:
    """Measure how fast this machine reads a shard set: the plain link, and samples from an empty and a full cache.

    Copies lie in a temporary folder on the cache's disk, which is removed at the end; an existing cache is neither read
    nor changed. A read that has begun is finished, but does not count, after its time.

    Args:
        place: Address or store of the shard set.
        version: Version to read; by default the newest.
        tag: Tag of the version, instead of its number.
        storage_options: Options of the store.
        seconds: Time for all measurements together; each number of threads gets an equal part.
        threads: Numbers of threads that read at once.
        local: Folder on the disk to measure; by default that of the user's cache.
        on_speed: Called with each speed when it is known.

    Raises:
        SmaltiError: the set cannot be opened or read.
        ValueError: `seconds` or one of `threads` is not positive.

    Examples:
        >>> speeds = measure_reading("s3://bucket/users", seconds=0.1, threads=[1])
        >>> speeds.samples, speeds.shards
        (15, 2)
    """
    if seconds <= 0 or not threads or min(threads) < 1:
        raise ArgumentError(f"expected seconds > 0 and threads >= 1, found {seconds} and {tuple(threads)}")
    url = place.url if isinstance(place, Store) else str(place)
    store = open_store(place, storage_options)
    share = seconds / (3 * len(threads))
    found: list[ReadingSpeed] = []

    def opened(copies: Path) -> StreamingDataset:
        cache = CacheOptions(local=str(copies))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MixedSplitsWarning)  # speed does not depend on the split
            return open_dataset(url, version=version, tag=tag, storage_options=storage_options, cache=cache)

    def add(speed: ReadingSpeed) -> None:
        found.append(speed)
        if on_speed is not None:
            on_speed(speed)

    wanted = detect_cache_folder() if local is None else Path(local).expanduser()
    base = next((path for path in (wanted, *wanted.parents) if path.is_dir()), None)  # on the cache's disk
    with tempfile.TemporaryDirectory(prefix=".smalti-benchmark-", dir=base, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with closing(opened(folder / "facts")) as dataset:
            stream, number_of_version = dataset.stream, dataset.manifest.version
        if not len(stream):
            raise CatalogError(f"{stream.root} has no samples: there is nothing to read")
        shards, sizes = stream.shards, bytes_of(stream.shards)
        filled: list[int] = np.flatnonzero(stream.shard_sizes).tolist()  # numbers of shards with samples
        round_trip = _round_trip(store, shards[0].stored.basename, share)
        for number in threads:
            add(_measure("link", number, share, (_ranges(store, shards[each]) for each in cycle(filled))))
            copies = folder / f"threads-{number}"
            with closing(opened(copies)) as dataset:
                read: list[int] = []
                add(_measure("cold", number, share, _cold(dataset, filled, folder, read)))
                warm = (_batches(dataset, each) for each in cycle(read or [0]))
                add(_measure("warm", number, share, warm))
            shutil.rmtree(copies, ignore_errors=True)
    return ReadingSpeeds(
        url=store.url,
        version=number_of_version,
        samples=int(stream.shard_ends[-1]),
        shards=len(shards),
        num_bytes=int(sizes.stored.sum()),
        is_read_in_place=is_read_in_place(store, shards),
        round_trip=round_trip,
        speeds=tuple(found),
    )


def _ranges(store: Store, shard: ShardInfo) -> Iterator[_Step]:
    """Read one stored shard by ranges; yield the bytes of each, and the samples that as many bytes hold."""
    file = shard.stored
    for begin in range(0, file.num_bytes, RANGE_BYTES):
        got = len(store.get_range(file.basename, begin, min(begin + RANGE_BYTES, file.num_bytes)))
        yield got, round(got * shard.samples / max(1, file.num_bytes))


def _batches(dataset: StreamingDataset, number: int) -> Iterator[_Step]:
    """Read the samples of one shard in batches; yield their stored bytes and their number."""
    stream = dataset.stream
    end, samples = int(stream.shard_ends[number]), int(stream.shard_sizes[number])
    stored = int(bytes_of(stream.shards[number : number + 1]).stored[0])
    for first in range(end - samples, end, BATCH):
        ids = np.arange(first, min(first + BATCH, end))
        stream.batch(ids)
        yield int(stored * ids.size / samples), int(ids.size)


def _cold(dataset: StreamingDataset, numbers: list[int], folder: Path, read: list[int]) -> Iterator[Iterable[_Step]]:
    """Yield the reading of each shard once, as long as there is room for its copy; append its number to `read`."""
    room, sizes = SHARE_OF_DISK * shutil.disk_usage(folder).free, bytes_of(dataset.stream.shards)
    for number in numbers:
        room -= int(sizes.raw[number] + sizes.stored[number])
        if room < 0 and read:
            return
        read.append(number)
        yield _batches(dataset, number)


def _round_trip(store: Store, key: str, seconds: float) -> Latency:
    """Return the wait for one byte of an object, of some requests within the time."""
    taken, end = list[float](), time.monotonic() + seconds
    store.get_range(key, 0, 1)  # connects
    while len(taken) < ROUND_TRIPS and (not taken or time.monotonic() < end):
        begun = time.monotonic()
        store.get_range(key, 0, 1)
        taken.append(time.monotonic() - begun)
    return _latency(taken)


def _latency(taken: Sequence[float]) -> Latency:
    if not taken:
        return Latency(0.0, 0.0, 0.0, 0.0)
    median, p90, p99, longest = np.percentile(np.array(taken), [50, 90, 99, 100]).tolist()
    return Latency(median, p90, p99, longest)


def _measure(work: str, threads: int, seconds: float, parts: Iterator[Iterable[_Step]]) -> ReadingSpeed:
    """Read parts on several threads until the time is over or there are no more, and return the speed."""
    begun = last = time.monotonic()  # the last read that counts
    end = begun + seconds
    total_bytes, total_samples = 0, 0
    taken, faults, lock = list[float](), list[BaseException](), threading.Lock()

    def read_parts() -> None:
        nonlocal last, total_bytes, total_samples
        try:
            while time.monotonic() < end and not faults:
                with lock:
                    part = next(parts, None)
                if part is None:
                    return
                before = time.monotonic()
                for num_bytes, samples in part:
                    now = time.monotonic()
                    with lock:
                        if now < end or not taken:
                            total_bytes, total_samples = total_bytes + num_bytes, total_samples + samples
                            last = max(last, now)
                            taken.append(now - before)
                    if now >= end:
                        return
                    before = time.monotonic()
        except BaseException as error:  # noqa: BLE001 -- raised by the thread that waits
            faults.append(error)

    workers = [threading.Thread(target=read_parts, name="smalti-benchmark", daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end + GRACE_SECONDS - time.monotonic()))
    if faults:
        raise faults[0]
    if any(worker.is_alive() for worker in workers):
        raise StoreTimeout(f"a read has not ended {GRACE_SECONDS:.0f} s after its time; check the network or the disk")
    return ReadingSpeed(work, threads, last - begun, total_bytes, total_samples, _latency(taken))
