"""Datasets over a cache with a limit, and what they must leave on disk at any moment."""

import threading
import time
import warnings
from pathlib import Path

from smalti.dataset import StreamingDataset
from tests.shard_sets import write_set

SAMPLES = 200


def remote_set(folder: Path, count: int = SAMPLES, **options) -> Path:
    """A set that is fetched, not read in place: its shards are compressed."""
    return Path(write_set(folder, count, compression=options.pop("compression", "zstd"), **options))


def reader(remote: Path, local: Path, *, batch_size: int = 8, shuffle: bool = True, **options) -> StreamingDataset:
    """A dataset with deadlines fit for tests."""
    return StreamingDataset(
        remote=str(remote),
        local=str(local),
        batch_size=batch_size,
        shuffle=shuffle,
        tail="short",
        download_timeout=options.pop("download_timeout", 20.0),
        **options,
    )


def read_all(dataset: StreamingDataset) -> list[int]:
    """The samples of an epoch, by their own numbers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`cache_limit` is")  # too small on purpose
        return sorted(int(number) for batch in dataset.batches() for number in batch["id"])


def copies(local: Path) -> dict[Path, int]:
    """Whole copies and what was put aside, in bytes: all that the limit is about."""
    found = {}
    for path in local.rglob("*"):
        is_ours = path.name.startswith(".") and path.suffix in {".lock", ".part"}
        if not is_ours and path.parent.name != ".leases":
            try:
                found |= {path: path.stat().st_size} if path.is_file() else {}
            except FileNotFoundError:
                continue
    return found


def shard_bytes(dataset: StreamingDataset) -> list[int]:
    """What each shard takes here."""
    return [info.raw.num_bytes for info in dataset.stream.shards]


class Watch:
    """Looks all the time at how many bytes the copies take."""

    def __init__(self, local: Path) -> None:
        self.local, self.most, self.looks = local, 0, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._done.set()
        self._thread.join(10)

    def _look(self) -> None:
        while not self._done.is_set():
            self.most = max(self.most, self._now())
            self.looks += 1
            time.sleep(0.0005)

    def _now(self) -> int:
        # A shard that goes while another one comes would be counted with it: what is there before and after counts.
        before = copies(self.local)
        after = copies(self.local)
        return sum(size for path, size in before.items() if path in after)
