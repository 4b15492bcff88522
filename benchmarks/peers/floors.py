"""What the machine can do at most, with none of a format's duties: the limits that libraries are held against.

`sol` and `solb` are the "speed of light" of torch's DataLoader: over a list in memory, and over a memory map with one
fetch per batch. Their file is the values, joined, with their ends beside it.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.decoding import SIZE, decode
from benchmarks.peers.interface import ImageOptions, Peer, ReadOptions, WriteOptions
from benchmarks.workloads import ROWS_PER_BATCH, Data, Workload

_PAYLOAD = {"tiny": "data", "jpeg": "image", "tokens": "tokens"}
_BLOCK_BYTES = 1 << 26  # as large as a shard


class MemoryMap(Peer):
    """solb: writes joined batches; reads by one gather per batch out of a memory map."""

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Every column of each few thousand rows joined and written, without a checksum."""
        column = _PAYLOAD[workload.name]
        sizes: list[int] = []
        others = [name for name in workload.columns if name != column]
        with (folder / "data.bin").open("wb", buffering=0) as file, (folder / "others.bin").open("wb") as beside:
            for rows in self._groups(samples):
                values = [row[column] for row in rows]
                file.write(b"".join(values))
                for name in others:
                    beside.write(np.array([row[name] for row in rows]).tobytes())
                sizes += map(len, values) if workload.name != "tokens" else [value.nbytes for value in values]
        np.save(folder / "ends.npy", np.cumsum(sizes))

    def _groups(self, samples: Any) -> Iterator[list[dict[str, Any]]]:
        """Slices of the list of all samples."""
        for begin in range(0, len(samples), ROWS_PER_BATCH):
            yield samples[begin : begin + ROWS_PER_BATCH]

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """torch's DataLoader with a dataset that is asked for whole batches."""
        return _torch_loader(_Mapped(folder, workload, options), options, collate_fn=_unchanged)

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """One slice of the map."""
        data, ends = np.memmap(folder / "data.bin", np.uint8, "r"), [0, *np.load(folder / "ends.npy").tolist()]
        return lambda sample_id: data[ends[sample_id] : ends[sample_id + 1]].tobytes()


class RowByRow(MemoryMap):
    """solb as a writer that is given one row by each call, as users call one: the calls and a list, and no check."""

    def _groups(self, samples: Any) -> Iterator[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []

        def take(row: dict[str, Any]) -> bool:
            rows.append(row)
            return len(rows) == ROWS_PER_BATCH

        for sample in samples:
            if take(sample):
                yield rows
                rows.clear()
        if rows:
            yield rows


class InMemory(MemoryMap):
    """sol: a list of samples, one at a time, joined by torch's default collate."""

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """torch's DataLoader over the list."""
        from torch.utils.data import default_collate

        mapped = _Mapped(folder, workload, options)
        rows: Any = [dict(zip(columns, row, strict=True)) for columns, row in mapped.rows()]
        return _torch_loader(_Decoded(rows) if options.decode else rows, options, collate_fn=default_collate)


class _Mapped:
    """A memory map of the values; torch's fetcher calls `__getitems__` with a batch of ids."""

    def __init__(self, folder: Path, workload: Workload, options: ReadOptions) -> None:
        self._name, self._options = workload.name, options
        self._ends = np.load(folder / "ends.npy")
        self._data: NDArray[Any] = np.memmap(folder / "data.bin", np.uint8, "r")
        if self._name != "jpeg":
            self._data = self._data.reshape(len(self._ends), -1)
        if self._name == "tokens":
            self._data = self._data.view(np.int32)
        self._cuts = [0, *self._ends.tolist()]
        self._numbers = np.arange(len(self._ends))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitems__(self, ids: list[int]) -> dict[str, Any]:
        import torch

        if self._name == "tokens":
            return {"tokens": torch.from_numpy(self._data[ids])}
        if self._name == "tiny":
            return {"id": torch.from_numpy(self._numbers[ids]), "data": torch.from_numpy(self._data[ids])}
        label = torch.from_numpy(self._numbers[ids])
        files = [self._data[self._cuts[i] : self._cuts[i + 1]].tobytes() for i in ids]
        if self._options.decode:
            return {"image": torch.from_numpy(np.stack([decode(file) for file in files])), "label": label}
        return {"image": files, "label": label}

    def rows(self) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
        """Column names and values of every sample, in memory."""
        import torch

        for i in range(len(self)):
            if self._name == "tokens":
                yield ("tokens",), (torch.from_numpy(self._data[i].copy()),)
            elif self._name == "tiny":
                yield ("id", "data"), (i, self._data[i].tobytes())
            else:
                yield ("image", "label"), (self._data[self._cuts[i] : self._cuts[i + 1]].tobytes(), i)


class _Decoded:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, sample_id: int) -> dict[str, Any]:
        row = self._rows[sample_id]
        return {**row, "image": decode(row["image"])}


def _unchanged(batch: Any) -> Any:
    return batch


def _torch_loader(dataset: Any, options: ReadOptions, collate_fn: Callable[[Any], Any]) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    loader: Iterable[Any] = DataLoader(
        dataset, options.batch_size, shuffle=options.shuffle, num_workers=options.workers, collate_fn=collate_fn
    )
    return loader


class PlainWrite(Peer):
    """Bytes that lie ready in memory, written to one file in blocks of a shard's size."""

    _sync = False

    def prepare_input(self, data: Data, options: WriteOptions) -> Any:
        """All values, joined."""
        return b"".join(data.values[_PAYLOAD[data.workload.name]])

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """One file per block, as a writer of shards makes them."""
        whole = memoryview(samples)
        for begin in range(0, len(whole), _BLOCK_BYTES):
            with (folder / f"block-{begin}").open("wb", buffering=0) as file:
                file.write(whole[begin : begin + _BLOCK_BYTES])
                if self._sync:
                    os.fsync(file.fileno())


class SyncedWrite(PlainWrite):
    """The same, each file durable on the disk before the next."""

    _sync = True


class Memcpy(PlainWrite):
    """The same bytes copied within memory, into pages that were touched before."""

    def prepare_input(self, data: Data, options: WriteOptions) -> Any:
        """Source and destination."""
        source = np.frombuffer(super().prepare_input(data, options), np.uint8)
        return source, np.ones_like(source)

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """One copy."""
        source, target = samples
        np.copyto(target, source)


class DecodeOnly(Peer):
    """Pictures in memory decoded by as many threads as there are workers, and nothing else."""

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Stacked batches of pixels."""
        return _Decoding(_Mapped(folder, workload, ReadOptions(1)), options)

    def images(self, folder: Path, options: ImageOptions) -> Iterable[Any]:
        """Lists of pixels as they are decoded, at the smallest fast scale and the fastest settings."""
        return _DecodingFiles(folder, options)


class _DecodingFiles:
    def __init__(self, folder: Path, options: ImageOptions) -> None:
        self._files = [path.read_bytes() for path in sorted((folder / "files").iterdir())]
        self._size, self._threads = options.batch_size, max(1, options.workers)

    def __iter__(self) -> Iterator[list[Any]]:
        groups = [self._files[begin : begin + self._size] for begin in range(0, len(self._files), self._size)]
        if self._threads == 1:
            yield from map(_decode_files, groups)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(_decode_files, groups)


def _decode_files(files: list[bytes]) -> list[Any]:
    from smalti.images import probe_image
    from smalti.images.pixels import decode_fast

    return [decode_fast(file, probe_image(file), min_size=SIZE, smooth=False) for file in files]


class _Decoding:
    def __init__(self, mapped: _Mapped, options: ReadOptions) -> None:
        self._files = [row[0] for _, row in mapped.rows()]
        self._options = options

    def __iter__(self) -> Iterator[dict[str, Any]]:
        size = self._options.batch_size
        groups = [range(begin, min(begin + size, len(self._files))) for begin in range(0, len(self._files), size)]
        with ThreadPoolExecutor(max(1, self._options.workers)) as pool:
            ahead = []
            for group in groups:
                ahead.append(pool.submit(self._decode, group))
                if len(ahead) > 2 * self._options.workers:
                    yield ahead.pop(0).result()
            for future in ahead:
                yield future.result()

    def _decode(self, group: range) -> dict[str, Any]:
        pixels = np.stack([decode(self._files[i]) for i in group])
        return {"image": pixels, "label": np.array(group)}
