"""MosaicML Streaming at its defaults: no checksum, shuffle py1e."""

import copy
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.decoding import decoded
from benchmarks.peers.interface import Peer, ReadOptions, WriteOptions, link_copies
from benchmarks.workloads import Workload

# It imports names from torchvision, whose builds match no CPU build of torch here; the stand-in is never called.
_STUBS = str(Path(__file__).resolve().parents[1] / "stubs")


class Mosaicml(Peer):
    """mosaicml-streaming."""

    imports = ("streaming", "torch.utils.data")

    def __init__(self) -> None:
        if _STUBS not in sys.path:
            sys.path.append(_STUBS)

    def write(self, samples: Any, workload: Workload, folder: Path, options: WriteOptions) -> None:
        """Rows, as its own writer takes them."""
        from streaming import MDSWriter

        compressed = {"compression": "zstd:3", "hashes": ["xxh64"]} if options.zstd else {}
        with MDSWriter(out=str(folder), columns=workload.columns, **compressed) as writer:
            for sample in samples:
                writer.write(sample)

    def loader(self, folder: Path, workload: Workload, options: ReadOptions) -> Iterable[Any]:
        """Its dataset under torch's DataLoader."""
        from streaming import StreamingDataset
        from torch.utils.data import DataLoader

        kind = decoded(StreamingDataset, "image") if options.decode else StreamingDataset
        dataset = kind(local=str(folder), shuffle=options.shuffle, batch_size=options.batch_size)
        loader: Iterable[Any] = DataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
        return loader

    def sampler(self, folder: Path, workload: Workload) -> Callable[[int], Any]:
        """`dataset[i]`."""
        from streaming import StreamingDataset

        take: Callable[[int], Any] = StreamingDataset(local=str(folder), batch_size=1).__getitem__
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
