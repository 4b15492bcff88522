"""Smalti: hashed when written, verified when read, truly shuffled; nothing is switched off for a figure."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import Peer, ReadOptions, WriteOptions, link_copies
from benchmarks.workloads import Workload


class Smalti(Peer):
    """A set that Smalti wrote: versions and manifest."""

    imports = ("smalti.torch",)

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Rows or Arrow batches, with the writer's default checksum."""
        from smalti import MDSWriter

        compression = "zstd:3" if options.zstd else None
        with MDSWriter(out=str(folder), columns=workload.columns, compression=compression) as writer:
            take = writer.write_batch if options.form == "batches" else writer.write
            for item in samples:
                take(item)

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """The dataset under its own loader."""
        from smalti import StreamingDataLoader, StreamingDataset

        transform = None
        if options.decode:
            from smalti.images import DecodeImages

            transform = DecodeImages(size=224, crop="center")
        dataset = StreamingDataset(
            remote=str(folder), batch_size=options.batch_size, shuffle=options.shuffle, transform=transform
        )
        loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`dataset[i]`."""
        from smalti import open_dataset

        take: Callable[[int], Any] = open_dataset(str(folder)).__getitem__
        return take

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """Published through the catalogue, like any other version."""
        from smalti.catalog import Draft, load_manifest, new_write_id, publish
        from smalti.storage import open_store

        written = load_manifest(str(source))
        (shard,) = written.shards
        write_id = new_write_id()
        names = [f"{write_id}/0/shard.{number:05d}.mds" for number in range(copies)]
        link_copies(source / shard.stored.basename, folder, names)
        shards = tuple(replace(shard, raw=replace(shard.raw, basename=name)) for name in names)
        publish(open_store(str(folder)), Draft(write_id=write_id, schema=written.schema, shards=shards))


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
