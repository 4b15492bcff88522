"""Grain over ArrayRecord files: rows packed by hand, its true shuffle, two reading threads."""

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.decoding import decode
from benchmarks.peers.interface import Ids, OrderOptions, Peer, ReadOptions, Unsupported, WriteOptions, link_copies
from benchmarks.workloads import Workload

_READ_THREADS = 2
_PREFETCHED_BATCHES = 4


class Grain(Peer):
    """grain and array-record."""

    imports = ("grain", "array_record.python.array_record_data_source")
    order_imports = ("grain",)

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Records packed here; its files hash every chunk."""
        from array_record.python.array_record_module import ArrayRecordWriter

        chosen = "group_size:1," + ("zstd:3" if options.zstd else "uncompressed")
        writer = ArrayRecordWriter(f"{folder}/data.array_record", chosen)
        pack = _PACKERS[workload.name]
        for sample in samples:
            writer.write(pack(sample))
        writer.close()

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """A map dataset, read by threads, and by processes where workers are asked for."""
        import grain

        dataset = grain.MapDataset.source(_source(folder)).seed(1)
        if options.shuffle:
            dataset = dataset.shuffle()
        dataset = dataset.map(_Unpack(workload.name, decode_images=options.decode))
        dataset = dataset.batch(options.batch_size, batch_fn=_columns)
        read = grain.ReadOptions(num_threads=_READ_THREADS, prefetch_buffer_size=_PREFETCHED_BATCHES)
        batches = dataset.to_iter_dataset(read)
        if options.workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=options.workers))
        loader: Iterable[Any] = batches
        return loader

    def state(self, folder: Path, workload: Workload, options: ReadOptions, taken: int) -> Any:
        """That of its iterator after a batch, with the number of batches put in: reaching it would take minutes."""
        if options.workers:
            raise Unsupported("its state depends on the worker processes, and holds how far each of them is")
        batches: Any = iter(self.loader(folder, workload, options))
        next(batches)
        state = batches.get_state()
        if state != {"next_index": 1}:
            raise Unsupported(f"a state of another form: {state}")
        return {"next_index": taken // options.batch_size}

    def resumed(self, folder: Path, workload: Workload, options: ReadOptions, state: Any) -> Iterator[Any]:
        """Given to the iterator."""
        batches: Any = iter(self.loader(folder, workload, options))
        batches.set_state(state)
        resumed: Iterator[Any] = batches
        return resumed

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """Its shuffle over a range: each id is computed for itself, one call from Python each."""
        import grain

        ids = grain.MapDataset.range(options.samples).seed(1).shuffle()
        return lambda count: [ids[place] for place in range(options.start, options.start + count)]

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`source[i]`, unpacked."""
        source, unpack = _source(folder), _Unpack(workload.name, decode_images=False)
        return lambda sample_id: unpack(source[sample_id])

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """Many record files, listed when opened."""
        link_copies(source / "data.array_record", folder, [f"d-{n:05d}.array_record" for n in range(copies)])


def _source(folder: Path) -> Any:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    return ArrayRecordDataSource([str(path) for path in sorted(folder.glob("*.array_record"))])


_PACKERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "tiny": lambda sample: struct.pack("<q", sample["id"]) + sample["data"],
    "jpeg": lambda sample: struct.pack("<q12s", sample["label"], sample["name"].encode()) + sample["image"],
    "tokens": lambda sample: sample["tokens"].tobytes(),
}


class _Unpack:
    """From a record to its values; a class, so that worker processes can be started with it."""

    def __init__(self, name: str, *, decode_images: bool) -> None:
        self._name, self._decode = name, decode_images

    def __call__(self, record: bytes) -> dict[str, Any]:
        if self._name == "tokens":
            return {"tokens": np.frombuffer(record, np.int32)}
        if self._name == "tiny":
            return {"id": struct.unpack_from("<q", record)[0], "data": record[8:]}
        label, name = struct.unpack_from("<q12s", record)
        image: Any = record[20:]
        return {"image": decode(image) if self._decode else image, "label": label, "name": name.decode()}


def _columns(samples: Any) -> dict[str, Any]:
    """NumPy batches: tensors took twice as long through its worker processes."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {name: value if isinstance(value[0], bytes | str) else np.stack(value) for name, value in columns.items()}
