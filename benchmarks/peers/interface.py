"""What the harness asks of a library: write this, read that, open it, take one sample.

A method that a library has no counterpart for raises `Unsupported` with the reason, which is printed in its place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.link.place import Place, RemoteOptions
from benchmarks.workloads import Data, Workload


class Unsupported(Exception):  # noqa: N818 - an answer, not a fault
    """The library has no counterpart for what was asked."""


@dataclass(frozen=True)
class WriteOptions:
    """How to write."""

    form: str = "rows"
    """`rows` (dicts) or `batches` (Arrow record batches)."""
    zstd: bool = False
    """Compressed with zstd at level 3 and hashed, where the library can."""
    is_default: bool = False
    """Compressed as the function of DataFrames does by itself, whatever `zstd` says."""
    shard_bytes: int = 1 << 26
    """The largest shard."""


@dataclass(frozen=True)
class ReadOptions:
    """How to read."""

    batch_size: int
    workers: int = 0
    shuffle: bool = True
    decode: bool = False
    """Pictures become uint8 pixels, 224 x 224 from their centre; otherwise columns as they were written."""


@dataclass(frozen=True)
class ImageOptions:
    """The way from photos to training batches of 224 x 224."""

    workers: int = 0
    augment: bool = False
    """Random resized crops, and flips; otherwise the centre square."""
    as_floats: bool = True
    """Normalised float32; otherwise uint8, for libraries that have it on the way."""
    batch_size: int = 32


ORDER_BATCH = 256  # samples, where an order depends on the batch
Ids = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class OrderOptions:
    """Whose order is asked for: one epoch of a set of equal shards, read by one process."""

    samples: int
    samples_per_shard: int
    start: int
    """Samples of the epoch that were taken before."""
    algorithm: str | None = None
    """For libraries that have several."""

    def shard_sizes(self) -> NDArray[np.int64]:
        """Samples in each shard, in stored order; the last one holds what is left."""
        sizes = np.full(-(-self.samples // self.samples_per_shard), self.samples_per_shard, np.int64)
        sizes[-1] -= int(sizes.sum()) - self.samples
        return sizes


class Peer:
    """One library; every method may raise `Unsupported`."""

    imports: tuple[str, ...] = ()
    """What a program imports before it opens anything."""
    remote_imports: tuple[str, ...] = ()
    """What it imports besides before it reads over a link."""
    order_imports: tuple[str, ...] = ()
    """What it imports before it plans an order, where that is less."""

    def prepare_input(self, data: Data, options: WriteOptions) -> Any:
        """The samples in the form that `write` takes them; made before the clock starts."""
        return data.batches() if options.form == "batches" else data.rows

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """A complete set in an empty folder."""
        raise Unsupported("no writer")

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """All rows of a Spark DataFrame as a complete set."""
        raise Unsupported("takes no DataFrame")

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Batches; each iteration over it is one epoch. Opens the set."""
        raise Unsupported("no loader")

    def images(self, folder: Path, options: ImageOptions) -> Iterable[Any]:
        """Batches of pixels, from `files` or the `set` of a folder; each iteration over it is one epoch."""
        raise Unsupported("decodes no images")

    def remote_loader(
        self, place: Place, workload: Workload, options: ReadOptions, remote: RemoteOptions
    ) -> Iterable[Any]:
        """As `loader`, of a set behind a link."""
        raise Unsupported("no loader over a link")

    def cache_facts(self, loader: Iterable[Any]) -> Mapping[str, float]:
        """What the library itself tells of its cache, after an epoch."""
        return {}

    def read_all(self, place: Place, keys: list[str]) -> int:
        """Bytes of these objects, for floors."""
        raise Unsupported("no floor of a link")

    def state(self, folder: Path, workload: Workload, options: ReadOptions, taken: int) -> Any:
        """What the library would save, as JSON, after `taken` samples of the first epoch: whole batches."""
        raise Unsupported("no state to continue from")

    def resumed(self, folder: Path, workload: Workload, options: ReadOptions, state: Any) -> Iterator[Any]:
        """The batches from there on; opens the set."""
        raise Unsupported("no state to continue from")

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """Plans the epoch; the function returned gives so many sample ids, from `start` on."""
        raise Unsupported("no order without a set")

    def columns(self, batch: Any) -> Mapping[str, Sequence[Any]]:
        """A batch as columns, to check what came."""
        columns: Mapping[str, Sequence[Any]] = batch
        return columns

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """A function from sample id to sample."""
        raise Unsupported("no random access")

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """A set made of `copies` hard links of the one shard of the set `source`."""
        raise Unsupported("no sets of linked shards")


def link_copies(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Hard links of one file under many names."""
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(source)
