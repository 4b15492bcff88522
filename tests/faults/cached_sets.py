"""Datasets over a cache with a limit, and the copies that they have on disk."""

import threading
import time
import warnings
from pathlib import Path

from smalti.dataset import StreamingDataset
from tests.reading_options import grouped
from tests.shard_sets import write_set

SAMPLES = 200


def remote_set(folder: Path, count: int = SAMPLES, **options) -> Path:
    """Write a set that is fetched, not read in place: its shards are compressed."""
    return Path(write_set(folder, count, compression=options.pop("compression", "zstd"), **options))


def reader(remote: Path, local: Path, *, batch_size: int = 8, shuffle: bool = True, **options) -> StreamingDataset:
    """Open a dataset with deadlines fit for tests."""
    return StreamingDataset(
        remote=str(remote),
        batch_size=batch_size,
        shuffle=shuffle,
        **grouped(local=str(local), download_timeout=options.pop("download_timeout", 120.0), tail="short", **options),
    )


def read_all(dataset: StreamingDataset) -> list[int]:
    """Read an epoch and return the ids of its samples, sorted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`cache_limit` is")  # intended
        return sorted(int(number) for batch in dataset.batches() for number in batch["id"])


def copies(local: Path) -> dict[Path, int]:
    """Return the bytes of copies and quarantined files by path: all that counts towards the limit."""
    found = {}
    for path in local.rglob("*"):
        is_temporary = path.name.startswith(".") and path.suffix in {".lock", ".part"}
        if not is_temporary and path.parent.name != ".leases":
            try:
                found |= {path: path.stat().st_size} if path.is_file() else {}
            except FileNotFoundError:
                continue
    return found


def shard_bytes(dataset: StreamingDataset) -> list[int]:
    """Return the bytes of each unpacked shard."""
    return [info.raw.num_bytes for info in dataset.stream.shards]


class Watch:
    """A thread that keeps measuring the bytes of copies, in `most` and `looks`."""

    def __init__(self, local: Path) -> None:
        self.local, self.most, self.looks = local, 0, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._done.set()
        self._thread.join(60)

    def _look(self) -> None:
        while not self._done.is_set():
            self.most = max(self.most, self._now())
            self.looks += 1
            time.sleep(0.0005)

    def _now(self) -> int:
        # Only files that two listings have: one may be evicted while another one is published.
        before = copies(self.local)
        after = copies(self.local)
        return sum(size for path, size in before.items() if path in after)
