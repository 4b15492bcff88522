"""The S3 server of a measurement: a process of its own over the files of a set, and what its log tells."""

import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.link.place import BYTES_PER_SECOND, LATENCY_SECONDS, Place
from benchmarks.task import Task
from benchmarks.trees import children, cpu_seconds
from tests.faultstore import FaultStore, Logged, Toxic

_SHARDS = (".mds", ".bin")  # as Smalti and MosaicML name them, and as LitData does


class LinkServer:
    """A context manager; while it is open, the environment of this process and its children has the credentials."""

    def __init__(self, task: Task) -> None:
        before = set(children(os.getpid()))
        self._store = FaultStore(folder=task.set_folder, own_process=True)
        (self.pid,) = set(children(os.getpid())) - before
        task.aside_file.write_text(str(self.pid))
        self._store.plant(Toxic("latency", seconds=LATENCY_SECONDS), Toxic("bandwidth", rate=BYTES_PER_SECOND))
        self._environment = dict(os.environ)
        os.environ.update(self._store.environment)
        os.environ.update({"AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"})

    def __enter__(self) -> "LinkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        self._store.close()

    def place(self, cache: Path) -> Place:
        """The set, with that folder for what is fetched."""
        return Place(f"s3://{self._store.bucket}", self._store.url, cache)

    def cpu_seconds(self) -> float:
        """That the server has taken so far."""
        return cpu_seconds(self.pid)

    def forget(self) -> None:
        """Begin the log anew."""
        self._store.forget()

    def settle(self, seconds: float = 1.0, at_most: float = 60.0) -> None:
        """Returns when nothing was asked for so long: what was fetched ahead is no part of the next measurement."""
        count, deadline = -1, time.monotonic() + at_most
        while count != (count := len(self.log())) and time.monotonic() < deadline:
            time.sleep(seconds)

    def log(self) -> list[Logged]:
        """All requests since."""
        return self._store.log()


def num_bytes_sent(log: Iterable[Logged]) -> int:
    """Bytes of all replies to reading requests."""
    return sum(entry.num_bytes for entry in log if entry.method == "GET" and entry.status in {200, 206})


def of_shards(log: Iterable[Logged]) -> list[Logged]:
    """The requests for shards."""
    return [entry for entry in log if entry.method == "GET" and entry.key.endswith(_SHARDS)]


def shard_bytes(folder: Path) -> int:
    """Bytes of all shards of a set."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.name.endswith(_SHARDS))


def rounds(began: Sequence[float], latency: float = LATENCY_SECONDS) -> int:
    """How many of these requests can have waited for each other, one after another: the round trips.

    A reply takes the latency at least; a request that came before that cannot have waited for it.
    """
    count, reply = 0, float("-inf")
    for moment in sorted(began):
        if moment >= reply:
            count, reply = count + 1, moment + latency
    return count


def rounds_to_first(log: Sequence[Logged], num_bytes: int | None = None) -> int:
    """Round trips until a reader could ask for the last of the bytes that its first batch is in, and that request.

    Args:
        log: Until that batch was there.
        num_bytes: It lies in so many bytes at the beginning of the first shard; None where it may lie anywhere.
    """
    wanted = of_shards(log)
    if wanted and num_bytes is not None:
        first = min(entry.key for entry in wanted)
        wanted = [entry for entry in wanted if entry.key == first and _begin(entry) < num_bytes]
    last = max((entry.began for entry in wanted), default=float("inf"))
    return rounds([entry.began for entry in log if entry.began <= last])


def _begin(entry: Logged) -> int:
    """The first byte that was asked for."""
    found = re.fullmatch(r"bytes=(\d+)-\d*", entry.headers.get("range", ""))
    return int(found[1]) if found else 0
