"""HF datasets, map-style: Arrow files that are mapped into memory, one take per batch."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.decoding import decode
from benchmarks.peers.interface import Ids, OrderOptions, Peer, ReadOptions, Unsupported, WriteOptions, link_copies
from benchmarks.workloads import TOKENS, Data, Workload


class HuggingFace(Peer):
    """datasets."""

    imports = ("datasets", "torch.utils.data")
    order_imports = ("datasets",)

    def prepare_input(self, data: Data, options: WriteOptions) -> Any:
        """Rows."""
        if options.zstd:
            raise Unsupported("no compression with a checksum")
        return data.rows

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Through its `ArrowWriter`, which is what `from_generator` drives."""
        from datasets import Features, List, Value
        from datasets.arrow_writer import ArrowWriter

        features = {
            "tiny": {"id": Value("int64"), "data": Value("binary")},
            "jpeg": {"image": Value("binary"), "label": Value("int64"), "name": Value("string")},
            "tokens": {"tokens": List(Value("int32"), length=TOKENS)},
        }[workload.name]
        with ArrowWriter(path=f"{folder}/data.arrow", features=Features(features)) as writer:
            for sample in samples:
                writer.write(sample)
            writer.finalize()

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Under torch's DataLoader, whose sampler shuffles truly."""
        from torch.utils.data import DataLoader

        dataset = _open(folder, workload)
        if options.decode:
            dataset = dataset.with_transform(_decode_columns)
        loader: Iterable[Any] = DataLoader(
            dataset, batch_size=options.batch_size, shuffle=options.shuffle, num_workers=options.workers
        )
        return loader

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """`Dataset.shuffle` on a table without values, its table of indices kept in memory; a start is sliced off."""
        import pyarrow as pa
        from datasets import Dataset

        rows = Dataset(pa.table({"none": pa.nulls(options.samples)}))
        indices: Any = rows.shuffle(seed=1, keep_in_memory=True)._indices  # the ids have no other door
        return lambda count: indices.column(0).slice(options.start, count).to_numpy()

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`dataset[i]`."""
        take: Callable[[int], Any] = _open(folder, workload).__getitem__
        return take

    def multiply(self, source: Path, folder: Path, copies: int) -> None:
        """Many Arrow files, joined when opened."""
        link_copies(source / "data.arrow", folder, [f"data-{number:05d}.arrow" for number in range(copies)])


def _open(folder: Path, workload: Workload) -> Any:
    from datasets import Dataset, concatenate_datasets, disable_progress_bars

    disable_progress_bars()
    parts = [Dataset.from_file(str(path)) for path in sorted(folder.glob("*.arrow"))]
    dataset = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
    return dataset.with_format("torch") if workload.name == "tokens" else dataset


def _decode_columns(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "image": [np.ascontiguousarray(decode(data)) for data in columns["image"]]}
