"""Epochs over the link: from an empty cache, from a full one, by two ranks; and how long the first batch takes.

The clock starts when everything is imported and nothing is open, and stops when the last batch is there. Samples are
told by the number in their name, each must come once, and raw photos must hold the same number.
"""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.link.place import BYTES_PER_SECOND, LATENCY_SECONDS, RemoteOptions
from benchmarks.link.server import LinkServer, num_bytes_sent, of_shards, rounds_to_first, shard_bytes
from benchmarks.peers import KNOWN, Peer, ReadOptions, find
from benchmarks.photos import number_in
from benchmarks.task import Figures, Task
from benchmarks.trees import cpu_seconds

_RANKS = 2
_ALLOWED_ROUNDS = 3
_MINUTE = 60.0


class Use:
    """What something takes from here on, on the clock and on the processors: ours, and the server's apart."""

    def __init__(self, server: LinkServer | None) -> None:
        self._server = server
        self._before = self._spent()
        self._begin = time.perf_counter()

    def _spent(self) -> tuple[float, float]:
        pid = None if self._server is None else self._server.pid
        return cpu_seconds(os.getpid(), without=pid), 0.0 if self._server is None else self._server.cpu_seconds()

    def figures(self, num_bytes: int) -> Figures:
        """So far, for so many bytes of shards."""
        seconds = time.perf_counter() - self._begin
        ours, servers = (now - before for now, before in zip(self._spent(), self._before, strict=True))
        return {
            "seconds": seconds,
            "mb_per_s": num_bytes / seconds / 1e6,
            "of_200": num_bytes / seconds / BYTES_PER_SECOND,
            "client_cpu_s": ours,
            "server_cpu_s": servers,
            "client_cpu_s_per_gb": ours / num_bytes * 1e9,
            "cores_busy": (ours + servers) / seconds / (os.cpu_count() or 1),
        }


def measure_cold(task: Task) -> Figures:
    """One epoch from an empty cache; of a floor, all bytes."""
    peer, options = _imported(task)
    num_bytes = shard_bytes(task.set_folder)
    with LinkServer(task) as server:
        place = server.place(task.scratch / "cache")
        if KNOWN[task.peer].is_floor:
            keys = [path.relative_to(task.set_folder).as_posix() for path in _shards(task.set_folder)]
            use = Use(server)
            read = peer.read_all(place, keys)
            if read != num_bytes:
                raise ValueError(f"{task.peer} read {read} bytes of {num_bytes}")
            return use.figures(num_bytes) | _told(server, num_bytes)
        use = Use(server)
        loader = peer.remote_loader(place, task.kind, options, _remote(task, num_bytes))
        first = _read_epoch(loader, peer, task)
        return (
            use.figures(num_bytes)
            | {"first_batch_s": first}
            | _told(server, num_bytes)
            | dict(peer.cache_facts(loader))
        )


def measure_first_batch(task: Task) -> Figures:
    """Until the first batch is there, and once more with another dataset and another empty cache in this process."""
    peer, options = _imported(task)
    shards = _shards(task.set_folder)
    prefix = _end_of(shards[0], options.batch_size)
    with LinkServer(task) as server:
        found = [_first_batch(task, peer, options, server, prefix, again) for again in (False, True)]
    (first, seconds), (second, again) = found
    allowed = _ALLOWED_ROUNDS * LATENCY_SECONDS + prefix / BYTES_PER_SECOND
    return first | {
        "seconds": seconds,
        "again_s": again,
        "again_round_trips": second["round_trips"],
        "allowed_s": allowed,
        "of_allowed": seconds / allowed,
        "again_of_allowed": again / allowed,
        "shard_s": max(path.stat().st_size for path in shards) / BYTES_PER_SECOND,
    }


def _first_batch(
    task: Task, peer: Peer, options: ReadOptions, server: LinkServer, prefix: int, again: bool
) -> tuple[Figures, float]:
    place = server.place(task.scratch / f"cache-{again}")
    server.forget()
    begin = time.perf_counter()
    batches = iter(peer.remote_loader(place, task.kind, options, RemoteOptions()))
    batch = next(batches)
    seconds, now = time.perf_counter() - begin, time.time()
    log = [entry for entry in server.log() if entry.began <= now]
    _check(batch, peer, raw=True)
    del batches
    server.settle()
    trips = rounds_to_first(log, None if options.shuffle else prefix)
    return {"round_trips": trips, "requests": len(log), "sent_mb": num_bytes_sent(log) / 1e6}, seconds


def _end_of(shard: Path, samples: int) -> int:
    """Bytes from the beginning of a shard to the end of so many samples: its offsets are its first words."""
    with shard.open("rb") as file:
        (stored,) = struct.unpack("<I", file.read(4))
        file.seek(4 * (1 + min(samples, stored)))
        (end,) = struct.unpack("<I", file.read(4))
    return int(end)


def fill_cache(task: Task) -> Figures:
    """The cache that warm epochs are read from, by an epoch over the link."""
    peer, options = _imported(task)
    num_bytes = shard_bytes(task.set_folder)
    with LinkServer(task) as server:
        loader = peer.remote_loader(server.place(task.filled_cache), task.kind, options, RemoteOptions())
        _read_epoch(loader, peer, task)
        return _told(server, num_bytes)


def measure_warm(task: Task) -> Figures:
    """One epoch from a full cache, or of the set where it lies in a local folder (`place`)."""
    peer, options = _imported(task)
    num_bytes = shard_bytes(task.set_folder)
    if task.options.get("place") == "local":
        return _two_epochs(task, peer, num_bytes, None, lambda: peer.loader(task.set_folder, task.kind, options))
    with LinkServer(task) as server:
        place = server.place(task.filled_cache)
        opened = partial(peer.remote_loader, place, task.kind, options, RemoteOptions())
        figures = _two_epochs(task, peer, num_bytes, server, opened) | _told(server, num_bytes)
    if figures["fetched_share"]:
        raise ValueError(f"the cache was not full: {figures['fetched_share']:.2f} of the set came over the link")
    return figures


def _two_epochs(
    task: Task, peer: Peer, num_bytes: int, server: LinkServer | None, opened: Callable[[], Iterable[Any]]
) -> Figures:
    """The first epoch of a process, its opening included, and the next one (`later_mb_per_s`)."""
    use = Use(server)
    loader = opened()
    first = _read_epoch(loader, peer, task)
    figures = use.figures(num_bytes) | {"first_batch_s": first}
    later = Use(server)
    _read_epoch(loader, peer, task)
    return figures | {"later_mb_per_s": later.figures(num_bytes)["mb_per_s"]}


def measure_ranks(task: Task) -> Figures:
    """One epoch by two ranks of one host, a worker each, which share an empty cache."""
    num_bytes = shard_bytes(task.set_folder)
    with LinkServer(task) as server:
        use = Use(server)
        command = [
            sys.executable,
            "-m",
            "benchmarks.link.rank",
            json.dumps(task.to_json()),
            server.place(Path()).endpoint,
        ]
        ranks = [
            subprocess.Popen(command, cwd=ROOT, env=os.environ | _launched(rank), stdout=subprocess.PIPE, text=True)
            for rank in range(_RANKS)
        ]
        read: list[int] = []
        for rank in ranks:
            told, _ = rank.communicate(timeout=2 * _MINUTE)
            if rank.returncode:
                raise RuntimeError(f"a rank ended with status {rank.returncode}")
            read += json.loads(told)
        figures = use.figures(num_bytes) | _told(server, num_bytes)
    if sorted(read) != list(range(task.samples)):
        raise ValueError(f"{len(read)} samples, {len(set(read))} different ones, of {task.samples}")
    return figures


def _launched(rank: int) -> dict[str, str]:
    """As torchrun tells a process who it is."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(_RANKS), "LOCAL_WORLD_SIZE": str(_RANKS),
    }  # fmt: skip


def _imported(task: Task) -> tuple[Peer, ReadOptions]:
    peer = find(task.peer)
    for module in (*peer.imports, *peer.remote_imports):
        import_module(module)
    chosen = {key: value for key, value in task.options.items() if key in {"workers", "shuffle", "decode"}}
    return peer, ReadOptions(batch_size=task.kind.batch_size, **chosen)


def _remote(task: Task, num_bytes: int) -> RemoteOptions:
    share = task.options.get("cache_share")
    return RemoteOptions(task.options.get("block_size"), None if share is None else int(share * num_bytes))


def _shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".mds", ".bin"})


def _told(server: LinkServer, num_bytes: int) -> Figures:
    log = server.log()
    fetched = num_bytes_sent(of_shards(log))
    return {"fetched_mb": fetched / 1e6, "fetched_share": fetched / num_bytes, "requests": len(log)}


def _read_epoch(loader: Iterable[Any], peer: Peer, task: Task) -> float:
    """Seconds until the first batch; raises when a sample did not come, came twice, or is not what it should be."""
    raw, begin = not task.options.get("decode"), time.perf_counter()
    numbers: list[int] = []
    first = 0.0
    for batch in loader:
        first = first or time.perf_counter() - begin
        numbers += _check(batch, peer, raw=raw)
    if sorted(numbers) != list(range(task.samples)):
        raise ValueError(f"{len(numbers)} samples, {len(set(numbers))} different ones, of {task.samples}")
    return first


def _check(batch: Any, peer: Peer, *, raw: bool) -> list[int]:
    columns = peer.columns(batch)
    numbers = [int(name[:8]) for name in columns["name"]]
    if raw and [number_in(photo) for photo in columns["image"]] != numbers:
        raise ValueError("samples hold the data of others")
    return numbers
