"""WebDataset: tar files, a shuffle buffer of 1,000 samples."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.decoding import decode
from benchmarks.peers.interface import Peer, ReadOptions, Unsupported, WriteOptions, link_copies
from benchmarks.workloads import Data, Workload

_BUFFER = 1000  # samples; what its documentation uses


class Webdataset(Peer):
    """webdataset."""

    imports = ("webdataset", "torch.utils.data")

    def prepare_input(self, data: Data, options: WriteOptions) -> Any:
        """Samples under its keys and extensions, values as bytes where it asks for bytes."""
        if options.zstd:
            raise Unsupported("no compression with a checksum")
        return [_with_extensions(number, row) for number, row in enumerate(data.rows)]

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Tar files of about 64 MiB."""
        from webdataset import ShardWriter

        with ShardWriter(f"{folder}/shard-%05d.tar", maxcount=10**9, maxsize=1 << 26, verbose=0) as writer:
            for sample in samples:
                writer.write(sample)

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Its pipeline under its own loader."""
        import webdataset

        urls = [str(path) for path in sorted(folder.glob("*.tar"))]
        dataset = webdataset.WebDataset(
            urls,
            shardshuffle=len(urls) if options.shuffle else False,
            workersplitter=webdataset.split_by_worker,
            nodesplitter=webdataset.single_node_only,
            empty_check=False,
        )
        if options.shuffle:
            dataset = dataset.shuffle(_BUFFER)
        dataset = dataset.map(_Parse(workload.name, decode_images=options.decode))
        dataset = dataset.batched(options.batch_size, collation_fn=_columns)
        loader: Iterable[Any] = webdataset.WebLoader(dataset, batch_size=None, num_workers=options.workers)
        return loader

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """A list of tar files is all that a set is."""
        (tar,) = source.glob("*.tar")
        link_copies(tar, folder, [f"shard-{number:05d}.tar" for number in range(copies)])

    def columns(self, batch: Any) -> Mapping[str, Sequence[Any]]:
        """Columns already."""
        columns: Mapping[str, Sequence[Any]] = batch
        return columns


def _with_extensions(number: int, row: dict[str, Any]) -> dict[str, Any]:
    key = {"__key__": f"{number:08d}"}
    if "tokens" in row:
        buffer = io.BytesIO()
        np.save(buffer, row["tokens"])
        return {**key, "npy": buffer.getvalue()}
    if "image" in row:
        return {**key, "jpg": row["image"], "cls": str(row["label"]).encode()}
    return {**key, "bin": row["data"], "cls": str(row["id"]).encode()}


class _Parse:
    """From the files of a sample to its values; a class, so that worker processes can be started with it."""

    def __init__(self, name: str, *, decode_images: bool) -> None:
        self._name, self._decode = name, decode_images

    def __call__(self, files: dict[str, Any]) -> dict[str, Any]:
        if self._name == "tokens":
            return {"tokens": np.load(io.BytesIO(files["npy"]))}
        if self._name == "tiny":
            return {"id": int(files["cls"]), "data": files["bin"]}
        image = decode(files["jpg"]) if self._decode else files["jpg"]
        return {"image": image, "label": int(files["cls"]), "name": files["__key__"] + ".jpg"}


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    from torch.utils.data import default_collate

    columns: dict[str, Any] = default_collate(samples)
    return columns
