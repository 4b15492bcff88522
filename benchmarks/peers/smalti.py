"""Smalti: hashed when written, verified when read, truly shuffled; nothing is switched off for a figure."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.link.place import Place, RemoteOptions
from benchmarks.peers.decoding import decoded
from benchmarks.peers.interface import (
    ORDER_BATCH,
    Ids,
    ImageOptions,
    OrderOptions,
    Peer,
    ReadOptions,
    WriteOptions,
    link_copies,
)
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from smalti.storage import Store

_SEED = 9176  # the dataset's default
_READ_AHEAD = 64  # batches, more than a loader looks ahead


class Smalti(Peer):
    """A set that Smalti wrote: versions and manifest."""

    # What `from smalti import StreamingDataset, StreamingDataLoader` imports.
    imports: tuple[str, ...] = ("smalti.torch.dataset", "smalti.torch.loader")
    remote_imports = ("s3fs", "obstore.store")
    order_imports = ("smalti.compat.streaming.order.planning",)

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Rows or Arrow batches, with the writer's default checksum."""
        from smalti import MDSWriter

        compression = "zstd:3" if options.zstd else None
        with MDSWriter(
            out=str(folder), columns=workload.columns, compression=compression, size_limit=options.shard_bytes
        ) as writer:
            take = writer.write_batch if options.form == "batches" else writer.write
            for item in samples:
                take(item)

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """The function at its defaults, apart from the compression."""
        from smalti.spark import dataframe_to_mds

        chosen: dict[str, Any] = {} if options.is_default else {"compression": "zstd" if options.zstd else None}
        dataframe_to_mds(frame, str(folder), **chosen)

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """The dataset under its own loader."""
        return _loader(options, remote=str(folder))

    def images(self, folder: Path, options: ImageOptions) -> Iterable[Any]:
        """`DecodeImages` at its defaults in the loader; normalised by the trainer's function."""
        from smalti import StreamingDataLoader, StreamingDataset
        from smalti.images import DecodeImages, RandomResizedCrop
        from smalti.torch.train.tasks.images import normalised

        transform = DecodeImages(size=224, crop=RandomResizedCrop() if options.augment else "resize")
        dataset = StreamingDataset(remote=str(folder / "set"), shuffle=True, transform=transform)
        loader = StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        if not options.as_floats:
            return _Mapped(loader, lambda batch: batch["image"])
        return _Mapped(loader, lambda batch: normalised(batch["image"].permute(0, 3, 1, 2), channels_last=True))

    def remote_loader(
        self, place: Place, workload: Workload, options: ReadOptions, remote: RemoteOptions
    ) -> Iterable[Any]:
        """The same, through its cache."""
        from smalti import CacheOptions, OrderOptions

        return _loader(
            options,
            remote=place.url,
            cache=CacheOptions(local=str(place.cache), cache_limit=remote.cache_bytes),
            order=OrderOptions(shuffle_block_size=remote.block_size),
        )

    def cache_facts(self, loader: Any) -> Mapping[str, float]:
        """Its `stats()`; `ratio` is of the bytes fetched to the least possible."""
        stats = loader.streaming_dataset.stats()
        facts = {"evictions": stats.evictions, "waited_s": stats.wait_seconds, "ratio": stats.ratio}
        return {name: float(value) for name, value in facts.items() if value is not None}

    def state(self, folder: Path, workload: Workload, options: ReadOptions, taken: int) -> Any:
        """The dataset's own, which its loader saves."""
        from smalti import StreamingDataset

        dataset = StreamingDataset(remote=str(folder), batch_size=options.batch_size, shuffle=options.shuffle)
        return dataset.state_dict(num_samples=taken, from_beginning=True)

    def resumed(self, folder: Path, workload: Workload, options: ReadOptions, state: Any) -> Iterator[Any]:
        """Through the loader."""
        loader: Any = self.loader(folder, workload, options)
        loader.load_state_dict(state)
        return iter(loader)

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """`window`, or MosaicML's as we make it."""
        if options.algorithm == "py1e":
            return _mosaic_order(options)
        from smalti.order import default_canonical_nodes, plan_epoch

        nodes = default_canonical_nodes(options.samples)
        plan = plan_epoch(options.shard_sizes(), seed=_SEED, epoch=0, canonical_nodes=nodes)
        return lambda count: plan.sample_ids(options.start, options.start + count)

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`dataset[i]`."""
        from smalti import open_dataset

        take: Callable[[int], Any] = open_dataset(str(folder)).__getitem__
        return take

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """Published through the catalogue, like any other version."""
        from smalti.catalog import Draft, load_manifest, new_write_id, publish

        written = load_manifest(str(source))
        (shard,) = written.shards
        write_id = new_write_id()
        names = [f"{write_id}/0/shard.{number:05d}.mds" for number in range(copies)]
        link_copies(source / shard.stored.basename, folder, self._linked(names, shard.samples))
        shards = tuple(replace(shard, raw=replace(shard.raw, basename=name)) for name in names)
        store = self._store(folder, dict.fromkeys(names, shard.stored.num_bytes))
        publish(store, Draft(write_id=write_id, schema=written.schema, shards=shards))

    def _linked(self, names: list[str], samples: int) -> list[str]:
        """Of these shards, of so many samples each, those whose files exist."""
        return names

    def _store(self, folder: Path, sizes: Mapping[str, int]) -> "Store":
        """Where the set is published."""
        from smalti.storage import open_store

        return open_store(str(folder))


class SourceSmalti(Smalti):
    """The same shards by Spark's own call."""

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """The data source at its defaults, apart from the compression, in a session that knows it."""
        from smalti.spark import register

        register(frame.sparkSession)
        writer = frame.write.format("mds").mode("append")
        if not options.is_default:
            writer = writer.option("compression", "zstd" if options.zstd else "none")
        writer.save(str(folder))


class TorchSmalti(Smalti):
    """The same dataset under torch's own DataLoader, which takes samples one by one."""

    imports = (*Smalti.imports, "torch.utils.data")

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Torch's loader in the place of Smalti's."""
        from torch.utils.data import DataLoader

        from smalti import StreamingDataset

        # Batches are torch's: the samples are decoded, as by the others.
        kind = decoded(StreamingDataset, "image") if options.decode else StreamingDataset
        dataset = kind(remote=str(folder), batch_size=options.batch_size, shuffle=options.shuffle)
        loader: Iterable[Any] = DataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader


class PlainSmalti(Smalti):
    """The same reader on a plain MDS set: an index file and nothing else."""

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """An index file as MosaicML Streaming writes it, with checksums."""
        from smalti.catalog import load_manifest

        (shard,) = load_manifest(str(source)).shards
        names = [f"shard.{number:05d}.mds" for number in range(copies)]
        link_copies(source / shard.stored.basename, folder, names)
        entries = [replace(shard, raw=replace(shard.raw, basename=name), partition=None).to_json() for name in names]
        (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}, sort_keys=True))


class SparseSmalti(Smalti):
    """A set of which only those files exist that are read at the start of the first epoch and at nine tenths of it."""

    def _linked(self, names: list[str], samples: int) -> list[str]:
        from smalti.order import default_canonical_nodes, plan_epoch

        total = samples * len(names)
        plan = plan_epoch(
            np.full(len(names), samples), seed=_SEED, epoch=0, canonical_nodes=default_canonical_nodes(total)
        )
        ahead = _READ_AHEAD * Workload("tiny", total).batch_size
        begins = (0, max(0, total * 9 // 10 - ahead))
        read = [plan.sample_ids(begin, min(begin + 2 * ahead, total)) // samples for begin in begins]
        return [names[number] for number in np.unique(np.concatenate(read)).tolist()]

    def _store(self, folder: Path, sizes: Mapping[str, int]) -> "Store":
        from smalti.storage import ObjectInfo
        from smalti.storage.local import LocalStore

        class Claiming(LocalStore):
            """Lists all shards as if they were there: a million files are no part of what is measured."""

            def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
                return (ObjectInfo(name, size, "") for name, size in sizes.items())

        return Claiming(folder)


class _Mapped:
    """Results of a function for each item, computed again in each iteration."""

    def __init__(self, items: Iterable[Any], function: Callable[[Any], Any]) -> None:
        self._items, self._function = items, function

    def __iter__(self) -> Iterator[Any]:
        return map(self._function, self._items)


def _loader(options: ReadOptions, **given: Any) -> Iterable[Any]:
    from smalti import StreamingDataLoader, StreamingDataset

    transform = None
    if options.decode:
        from smalti.images import DecodeImages

        transform = DecodeImages(size=224, crop="center")
    dataset = StreamingDataset(batch_size=options.batch_size, shuffle=options.shuffle, transform=transform, **given)
    loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
    return loader


def _mosaic_order(options: OrderOptions) -> Callable[[int], Ids]:
    from smalti.compat.streaming.order.partition import WorldShape
    from smalti.compat.streaming.order.planning import MosaicOptions, MosaicRun
    from smalti.compat.streaming.order.sampling import weigh_streams

    run = MosaicRun(
        weigh_streams([options.shard_sizes()]),
        WorldShape(batch_size=ORDER_BATCH),
        MosaicOptions(canonical_nodes=1, seed=_SEED, shuffle=True, shuffle_algo="py1e"),
    )
    plan = run.plan(0, options.start)
    return lambda count: plan.sample_ids(plan.start, plan.start + count)
