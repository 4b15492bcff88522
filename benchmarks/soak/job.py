"""A training job as its supervisor sees it: starts ranks, hears of their ends, goes on from the checkpoint."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak.journal import Tail
from benchmarks.soak.processes import children, kill_group, send
from benchmarks.soak.told import ENDED, TYPED, Reads, Told

_GRACE_SECONDS = 4.0
"""That the other ranks have to tell why they end, too."""
_PAUSE_SECONDS = 0.3


@dataclass
class Progress:
    """What the journals of a job, or of the steady reader, have told so far."""

    samples: int = 0
    """Checked."""
    sample_bytes: int = 0
    wrong: list[str] = field(default_factory=list)
    num_wrong: int = 0
    epochs: int = 0
    longest_wait: float = 0.0
    last_seen: float = 0.0
    longest_gap: float = 0.0
    """Seconds between two steps of anybody of it, restarts and faults included."""
    gap_at: float = 0.0
    errors: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last ones of each life."""

    def take(self, event: dict[str, Any], who: str) -> None:
        """One event more."""
        kind = event["event"]
        if kind == "seen":
            self.samples += len(event["ids"])
            self.sample_bytes += event["num_bytes"]
            self.longest_wait = max(self.longest_wait, event["waited"])
            self._seen(event["at"])
        elif kind == "wrong":
            self.num_wrong += event["number"]
            self.wrong += event["problems"][: max(0, 10 - len(self.wrong))]
        elif kind == "epoch":
            self.epochs += 1
            self._seen(event["at"])
        elif kind == "error":
            self.errors.append({**event, "who": who})
        elif kind == "stats":
            self.stats[who] = event

    def _seen(self, at: float) -> None:
        if self.last_seen and at - self.last_seen > self.longest_gap:
            self.longest_gap, self.gap_at = at - self.last_seen, at
        self.last_seen = max(self.last_seen, at)


class Launcher:
    """The process that forks ranks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak.launcher"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._said = self._process.stdout
        assert self._said is not None
        if not self._said.readline():
            raise RuntimeError("the launcher of ranks did not start")
        os.set_blocking(self._said.fileno(), False)
        self._waiting = b""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def start(self, job: str, ranks: list[Told]) -> None:
        """Starts the ranks of one life."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, "ranks": list(map(asdict, ranks))}).encode() + b"\n")
        self._process.stdin.flush()

    def said(self) -> list[dict[str, Any]]:
        """What it told since the last look."""
        assert self._said is not None
        data = self._said.read()
        if data == b"":
            raise RuntimeError(f"the launcher of ranks ended with status {self._process.wait(10)}")
        *lines, self._waiting = (self._waiting + (data or b"")).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Ends it, and ranks that are left."""
        for pipe in (self._process.stdin, self._said):
            if pipe is not None:
                pipe.close()
        self._process.wait(30)


@dataclass
class Life:
    """One start of a job."""

    number: int
    worlds: int
    tails: list[Tail]
    pids: dict[int, int] = field(default_factory=dict)
    """By rank, as far as it is started."""
    ended: dict[int, int] = field(default_factory=dict)
    """By rank, the exit status."""
    first_end: float = 0.0
    killed: str = ""
    """What was killed of it, if anything was."""


@dataclass(frozen=True)
class JobOptions:
    """What a job is."""

    name: str
    sizes: list[int]
    """Numbers of ranks, one of which each life has; the first one the first life."""
    reads: Reads
    save_every: int
    deadline: float


class Job:
    """A job, from its first life to its last."""

    def __init__(self, options: JobOptions, folder: Path, launcher: Launcher, own: random.Random) -> None:
        self.options, self.folder, self._launcher, self._random = options, folder, launcher, own
        self.progress = Progress()
        self.lives = 0
        self.restarts: Counter[str] = Counter()
        """By what ended the life before."""
        self.life: Life | None = None
        self._next = 0.0
        self._is_ending = False
        folder.mkdir(parents=True)

    def start(self) -> None:
        """One more life."""
        self.lives += 1
        options = self.options
        size = options.sizes[0] if self.lives == 1 else self._random.choice(options.sizes)
        told = [
            Told(str(self.folder), self.lives, rank, size, options.save_every, options.deadline, options.reads)
            for rank in range(size)
        ]
        self.life = Life(self.lives, size, [Tail(each.journal) for each in told])
        self._launcher.start(options.name, told)

    def hear(self, said: dict[str, Any]) -> None:
        """What the launcher told."""
        life = self.life
        if life is None:
            return
        if said.get("job") == self.options.name and said["life"] == life.number:
            life.pids[said["rank"]] = said["pid"]
        elif "status" in said:
            for rank, pid in life.pids.items():
                if pid == said["pid"]:
                    life.ended[rank] = said["status"]
                    life.first_end = life.first_end or time.time()

    def look(self) -> None:
        """Takes what the journals tell; ends a life that lost a rank, and begins the next one."""
        life = self.life
        if life is None:
            if not self._is_ending and time.time() >= self._next:
                self.start()
            return
        self._take(life)
        is_over = len(life.ended) == life.worlds
        if life.ended and not is_over and time.time() - life.first_end > _GRACE_SECONDS:
            self._kill_all(life)
        if is_over:
            for pid in life.pids.values():
                kill_group(pid)  # workers of ranks that are gone
            self._take(life)
            self.restarts[self._why(life)] += 1
            self.life, self._next = None, time.time() + _PAUSE_SECONDS

    def pids(self) -> list[int]:
        """Of the ranks that live."""
        life = self.life
        return [] if life is None else [pid for rank, pid in life.pids.items() if rank not in life.ended]

    def workers(self) -> list[int]:
        """Of their loader workers."""
        return [worker for pid in self.pids() for worker in children(pid)]

    def kill(self, what: str, choose: Callable[[list[int]], int]) -> bool:
        """Kills a `worker`, a `rank` or the whole `job`; whether there was one."""
        life = self.life
        victims = self.workers() if what == "worker" else self.pids()
        if life is None or not victims or life.ended:
            return False
        life.killed = what
        if what == "job":
            self._kill_all(life)
            return True
        return send(choose(victims), signal.SIGKILL)

    def end(self) -> None:
        """Asks the ranks to end; no life follows."""
        self._is_ending = True
        for pid in self.pids():
            send(pid, signal.SIGTERM)

    @property
    def is_over(self) -> bool:
        """Whether nobody runs any more."""
        return self.life is None

    def _take(self, life: Life) -> None:
        for rank, tail in enumerate(life.tails):
            for event in tail.new():
                self.progress.take(event, f"{self.options.name}, life {life.number}, rank {rank}")

    def _kill_all(self, life: Life) -> None:
        for pid in life.pids.values():
            kill_group(pid)

    def _why(self, life: Life) -> str:
        statuses = set(life.ended.values())
        if life.killed:
            return f"{life.killed} killed"
        if statuses == {ENDED}:
            return "asked"
        if TYPED in statuses:
            return "typed error"
        return "died: " + ", ".join(map(str, sorted(statuses)))
