"""MosaicML Streaming at its defaults: no checksum, shuffle py1e; and the same program with Smalti's alias of it."""

import copy
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.link.place import Place, RemoteOptions
from benchmarks.peers.decoding import decoded
from benchmarks.peers.interface import (
    ORDER_BATCH,
    Ids,
    ImageOptions,
    OrderOptions,
    Peer,
    ReadOptions,
    Unsupported,
    WriteOptions,
    link_copies,
)
from benchmarks.peers.pictures import torch_loader, usual_transform
from benchmarks.workloads import Workload

# It imports names from torchvision, whose builds match no CPU build of torch here; the stand-in is never called.
_STUBS = str(Path(__file__).resolve().parents[1] / "stubs")


class Mosaicml(Peer):
    """mosaicml-streaming."""

    package = "streaming"
    imports = ("streaming", "torch.utils.data")
    remote_imports = ("boto3",)

    stubs: str | None = _STUBS
    """Folder of packages that it imports and never calls."""

    def __init__(self) -> None:
        if self.stubs is not None and self.stubs not in sys.path:
            sys.path.append(self.stubs)

    def _named(self, name: str, module: str = "") -> Any:
        """A name of the package, or of a module in it."""
        return getattr(import_module(self.package + module), name)

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Rows, as its own writer takes them."""
        compressed = {"compression": "zstd:3", "hashes": ["xxh64"]} if options.zstd else {}
        with self._named("MDSWriter")(
            out=str(folder), columns=workload.columns, size_limit=options.shard_bytes, **compressed
        ) as writer:
            for sample in samples:
                writer.write(sample)

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """Its `dataframe_to_mds`, columns inferred; `zstd` is its default."""
        dataframe_to_mds = self._named("dataframe_to_mds", ".base.converters")
        dataframe_to_mds(frame, mds_kwargs={"out": str(folder), "compression": "zstd" if options.zstd else None})

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Its dataset under torch's DataLoader."""
        from torch.utils.data import DataLoader

        plain = self._named("StreamingDataset")
        kind = decoded(plain, "image") if options.decode else plain
        dataset = kind(local=str(folder), shuffle=options.shuffle, batch_size=options.batch_size)
        loader: Iterable[Any] = DataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader

    def images(self, folder: Path, options: ImageOptions) -> Iterable[Any]:
        """Its dataset under torch's DataLoader, with the usual transform of each sample."""

        class Transformed(self._named("StreamingDataset")):  # type: ignore[misc]
            def __getitem__(self, sample_id: Any) -> Any:
                return usual_transform(super().__getitem__(sample_id)["image"], augment=options.augment)

        dataset = Transformed(local=str(folder / "set"), shuffle=True, batch_size=options.batch_size)
        return torch_loader(dataset, options)

    def remote_loader(
        self, place: Place, workload: Workload, options: ReadOptions, remote: RemoteOptions
    ) -> Iterable[Any]:
        """Its dataset under its own loader; the endpoint is in the environment."""
        from streaming import StreamingDataLoader, StreamingDataset

        kind = decoded(StreamingDataset, "image") if options.decode else StreamingDataset
        dataset = kind(
            remote=place.url, local=str(place.cache), shuffle=options.shuffle, batch_size=options.batch_size,
            shuffle_block_size=remote.block_size, cache_limit=remote.cache_bytes,
        )  # fmt: skip
        for stream in dataset.streams:
            # Opened for the index file: workers that are forked would share its connection and, without TLS to notice
            # it, take each other's bytes.
            stream._downloader.clean_up()
        loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader

    def state(self, folder: Path, workload: Workload, options: ReadOptions, taken: int) -> Any:
        """The dataset's own; before it was iterated it says epoch -1, from which it would begin anew."""
        dataset = self._named("StreamingDataset")(
            local=str(folder), shuffle=options.shuffle, batch_size=options.batch_size
        )
        return {**dataset.state_dict(num_samples=taken, from_beginning=True), "epoch": 0}

    def resumed(self, folder: Path, workload: Workload, options: ReadOptions, state: Any) -> Iterator[Any]:
        """Given to the dataset, as its own loader does."""
        loader: Any = self.loader(folder, workload, options)
        loader.dataset.load_state_dict(state)
        return iter(loader)

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """`generate_work` as the dataset calls it, with the dataset's `resample_streams`, on what an open set knows.

        What the dataset does besides is left out: its `Spanner` (8 bytes per sample for a moment) and the copy of
        the plan in shared memory (8 bytes per sample).
        """
        from streaming import StreamingDataset
        from streaming.base.batching import generate_work
        from streaming.base.world import World

        sizes = options.shard_sizes()
        opened: Any = SimpleNamespace(
            streams=[SimpleNamespace(choose=options.samples)], num_streams=1, epoch_size=options.samples,
            shards_per_stream=np.array([len(sizes)]), shard_offset_per_stream=np.array([0]),
            samples_per_shard=sizes, sample_offset_per_shard=sizes.cumsum() - sizes,
            batch_size=ORDER_BATCH, num_canonical_nodes=1, initial_physical_nodes=None, partition_algo="relaxed",
            shuffle=True, shuffle_algo="py1e", shuffle_seed=9176, shuffle_block_size=4_000_000,
            sampling_method="balanced", sampling_granularity=1, epoch_seed_change=True,
        )  # fmt: skip
        opened.resample_streams = partial(StreamingDataset.resample_streams, opened)
        world = World(num_nodes=1, ranks_per_node=1, workers_per_rank=1, worker=0)
        work: NDArray[np.int64] = generate_work("random", opened, world, 0, options.start).reshape(-1)
        return lambda count: work[:count]

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`dataset[i]`."""
        take: Callable[[int], Any] = self._named("StreamingDataset")(local=str(folder), batch_size=1).__getitem__
        return take

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """Its index file with one entry per link."""
        index = json.loads((source / "index.json").read_text())
        (entry,) = index["shards"]
        entries = []
        for number in range(copies):
            entries.append(copy.deepcopy(entry))
            entries[-1]["raw_data"]["basename"] = f"shard.{number:05d}.mds"
        link_copies(source / entry["raw_data"]["basename"], folder, [e["raw_data"]["basename"] for e in entries])
        (folder / "index.json").write_text(json.dumps({"version": index["version"], "shards": entries}))


class Alias(Mosaicml):
    """The same program with `smalti.compat.streaming` in its imports, at the defaults of that."""

    package = "smalti.compat.streaming"
    stubs = None
    # Its names are imported on first use, MosaicML's with the package: so neither imports while the clock runs.
    imports = ("smalti.compat.streaming.base.dataset", "torch.utils.data")

    def remote_loader(
        self, place: Place, workload: Workload, options: ReadOptions, remote: RemoteOptions
    ) -> Iterable[Any]:
        """Not of interest: the cache is Smalti's own."""
        raise Unsupported("the cache is that of smalti")

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """Not of interest: the order is Smalti's own."""
        raise Unsupported("the order is that of smalti")
