"""LitData: at its defaults, whose shuffle keeps stored neighbours together, and with the full shuffle in each chunk."""

import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.link.place import Place, RemoteOptions
from benchmarks.peers.decoding import decode_sample
from benchmarks.peers.interface import Ids, OrderOptions, Peer, ReadOptions, Unsupported, WriteOptions, link_copies
from benchmarks.workloads import Workload


class Litdata(Peer):
    """litdata at its defaults."""

    imports = ("litdata",)
    remote_imports = ("boto3", "obstore.store")
    _options: ClassVar[dict[str, Any]] = {}

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Through `BinaryWriter`: the public `optimize()` adds the start of processes."""
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(
            cache_dir=str(folder), chunk_bytes=options.shard_bytes, compression="zstd" if options.zstd else None
        )
        for number, sample in enumerate(samples):
            writer.add_item(number, sample)
        writer.done()
        writer.merge(1)

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Its dataset under its own loader."""
        from litdata import StreamingDataLoader, StreamingDataset

        transform = decode_sample if options.decode else None
        dataset = StreamingDataset(
            str(folder), shuffle=options.shuffle, drop_last=False, transform=transform, **self._options
        )
        loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader

    def remote_loader(
        self, place: Place, workload: Workload, options: ReadOptions, remote: RemoteOptions
    ) -> Iterable[Any]:
        """The same, with its cache in a folder of its own."""
        from litdata import StreamingDataLoader, StreamingDataset

        if remote.block_size is not None or remote.cache_bytes is not None:
            raise Unsupported("no blocks to shuffle in, and no hard bound on its cache")
        # It fetches chunks by obstore, which refuses http unless told, and has no option of its own that tells it.
        import_module("litdata.streaming.downloader")._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        dataset = StreamingDataset(
            place.url, cache_dir=str(place.cache), shuffle=options.shuffle, drop_last=False,
            transform=decode_sample if options.decode else None,
            storage_options={"endpoint_url": place.endpoint}, **self._options,
        )  # fmt: skip
        loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader

    def state(self, folder: Path, workload: Workload, options: ReadOptions, taken: int) -> Any:
        """That of its loader after a batch, with the numbers of samples put in: reaching it would take minutes."""
        loader: Any = self.loader(folder, workload, options)
        next(iter(loader))
        workers = max(1, options.workers)
        saved = loader.dataset.state_dict(taken, options.workers, options.batch_size)
        return {**loader.state_dict(), "dataset": saved, "num_samples_yielded": taken, "latest_worker_idx": workers - 1}

    def resumed(self, folder: Path, workload: Workload, options: ReadOptions, state: Any) -> Iterator[Any]:
        """Given to the loader."""
        loader: Any = self.loader(folder, workload, options)
        loader.load_state_dict(state)
        return iter(loader)

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """Chunks are shuffled by its `FullShuffle` only for an open set, and samples when their chunk is opened."""
        raise Unsupported("draws the order chunk by chunk while it reads: see from nothing to a batch")

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`dataset[i]`."""
        from litdata import StreamingDataset

        take: Callable[[int], Any] = StreamingDataset(str(folder)).__getitem__
        return take

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """Its index file with one chunk per link."""
        index = json.loads((source / "index.json").read_text())
        (chunk,) = index["chunks"]
        names = [f"chunk-0-{number}.bin" for number in range(copies)]
        link_copies(source / chunk["filename"], folder, names)
        index["chunks"] = [{**chunk, "filename": name} for name in names]
        (folder / "index.json").write_text(json.dumps(index))


class LitdataFull(Litdata):
    """The same set, shuffled sample by sample within chunks."""

    _options: ClassVar[dict[str, Any]] = {"item_shuffle_window": 0, "batch_decode": 0}
