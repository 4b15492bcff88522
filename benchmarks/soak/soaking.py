"""The run: jobs and a steady reader, faults and kills by a seeded plan, everything looked at, and its end."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.soak.cache_faults import CACHE_FAULTS
from benchmarks.soak.faults import Fault, Impossible, Planted
from benchmarks.soak.job import Job, JobOptions, Launcher, Progress
from benchmarks.soak.journal import Tail
from benchmarks.soak.judging import Kill
from benchmarks.soak.process_faults import PROCESS_FAULTS
from benchmarks.soak.processes import Held, command_of, held, marked, send
from benchmarks.soak.samples import write_set
from benchmarks.soak.scale import CACHE_PART, Options, mixture, news
from benchmarks.soak.server import BUCKET, StoreProcess
from benchmarks.soak.store_faults import STORE_FAULTS
from benchmarks.soak.told import Reads
from benchmarks.soak.watch import Bound
from smalti.catalog import Manifest, load_manifest
from tests.faultstore import Toxic

CATALOGUE: list[Fault] = [*STORE_FAULTS, *CACHE_FAULTS, *PROCESS_FAULTS]
_STACKS_SECONDS = 0.5
_TICK_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_TELL_SECONDS = 5.0
_KILLS = ("worker", "rank", "job")
STEADY = "steady"


class Soak:
    """One run of the soak; `run`, then judge what it holds."""

    def __init__(self, options: Options, say: Callable[[str], None], run: str) -> None:
        self.options, self._say, self._run = options, say, run
        self.random = random.Random(options.seed)
        self.objects, self.cache = options.work / "objects", options.cache
        self.cache.mkdir(exist_ok=True)
        self.has_own_disk = options.is_private
        self.manifests = self._write_sets()
        self.set_bytes = sum(map(raw_bytes, self.manifests))
        self.limit = int(self.set_bytes * CACHE_PART)
        self.roots = [manifest.digest for manifest in self.manifests]
        self.toxics: list[Toxic] = []
        self.planted: list[Planted] = []
        self.skipped: Counter[str] = Counter()
        self.kills: list[Kill] = []
        self.publishes: list[dict[str, Any]] = []
        self.stalls: list[str] = []
        self.held: dict[str, list[Held]] = {STEADY: [], "store": []}
        self.bounds = {"mixture": Bound(self.limit, self.roots)}
        self.steady = Progress()
        self.begin = self.end = 0.0
        self.loads: list[tuple[float, float]] = []
        """When, and how many processes wanted to run on each processor in the minute before."""
        self.left: list[int] = []
        self._publisher: subprocess.Popen[str] | None = None
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._writes = 1
        self._queue: list[Fault] = []
        self._told: dict[str, float] = {}

    # ------------------------------------------------------------------ what faults need (`faults.Field`)

    def readers(self) -> list[int]:
        """Ranks and their workers."""
        return self.ranks() + self.workers()

    def ranks(self) -> list[int]:
        """Of all jobs."""
        return [pid for job in self.jobs for pid in job.pids()]

    def workers(self) -> list[int]:
        """Of all jobs."""
        return [pid for job in self.jobs for pid in job.workers()]

    def publish(self) -> None:
        """A writer begins."""
        of = news(small=self.options.small)
        self._writes += 1
        told = {"url": f"s3://{BUCKET}/{of.name}", "count": of.count, "size_limit": of.size_limit}
        told |= {"write": self._writes, "store": self.store.options}
        self._publisher = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak.publish", json.dumps(told)], stdout=subprocess.PIPE, text=True
        )
        self._published_at = time.time()

    def is_publishing(self) -> bool:
        """Whether the writer is still at it."""
        return self._publisher is not None

    def run(self, command: list[str]) -> None:
        """A program beside the readers."""
        self._helpers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        )

    # ------------------------------------------------------------------ the run

    def soak(self) -> None:
        """From the first process to the last."""
        self.store = StoreProcess(self.objects, self.options.seed)
        self.launcher = Launcher()
        self.jobs: list[Job] = []
        try:
            self._start()
            self._until(lambda: all(each.last_seen for each in self._all()), "the first batches of all jobs")
            self.begin = time.time()
            self._plant_and_kill()
            self._settle()
            self._end_all()
        finally:
            self.end = time.time()
            self._clean_up()

    def close(self) -> None:
        """Ends the store."""
        self.store.close()

    def _write_sets(self) -> list[Manifest]:
        for of in (*mixture(small=self.options.small), news(small=self.options.small)):
            write_set(of, str(self.objects / of.name))
        return [load_manifest(self.objects / of.name) for of in mixture(small=self.options.small)]

    def _start(self) -> None:
        options = self.options
        streams = [(of.name, of.count) for of in mixture(small=options.small)]
        common: dict[str, Any] = {"bucket": BUCKET, "cache": str(self.cache), "timeout": options.timeout}
        common |= {"store": self.store.options, "plants": list(options.plants)}
        process = {"worker_kind": "process", "num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}
        process |= {"timeout": options.deadline / 2}
        block = sum(count for _, count in streams) // 10
        training = common | {"streams": streams, "cache_limit": self.limit, "block": block}
        first = Reads(**training, seed=options.seed, batch_size=8, loader=process)
        spawned = process | {"multiprocessing_context": "spawn", "num_workers": 1 if options.small else 2}
        second = Reads(**training, seed=options.seed + 1, batch_size=16, loader=spawned)
        for name, sizes, reads in (("A", [2, 1, 2, 3], first), ("B", [1], second)):
            told = JobOptions(name, sizes, reads, save_every=5, deadline=options.deadline / 2)
            self.jobs.append(Job(told, options.work / name, self.launcher, self.random))
            self.jobs[-1].start()
        of = news(small=options.small)
        limit = int(raw_bytes(load_manifest(self.objects / of.name)) * CACHE_PART)
        steady = Reads(
            **common, streams=[(of.name, of.count)], cache_limit=limit, seed=options.seed, block=of.count // 24,
            batch_size=8, version=None, loader={"num_workers": 2, "timeout": options.deadline / 2},
        )  # fmt: skip
        folder = options.work / STEADY
        folder.mkdir()
        self._tail = Tail(folder / "journal.jsonl")
        self._steady = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak.steady", str(folder), json.dumps(asdict(steady))],
            # glibc keeps a heap for each thread that allocated beside others: how many a stall made is no leak.
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        )
        self.news_limit = limit

    def _plant_and_kill(self) -> None:
        options, faults, kills = self.options, 1, 1
        while (passed := time.time() - self.begin) < options.seconds:
            if passed >= faults * options.fault_every:
                self._plant()
                faults += 1
            if passed >= kills * options.kill_every:
                kills += self._kill()
            self._tick()

    def _settle(self) -> None:
        """All faults are healed, and everybody reads on."""
        for planted in self.planted:
            self._heal(planted, force=True)
        self._until(lambda: self._publisher is None and not self._helpers, "writers and commands")
        healed = time.time()
        self._until(lambda: all(each.last_seen > healed for each in self._all()), "progress after the last fault")

    def _end_all(self) -> None:
        for job in self.jobs:
            job.end()
        send(self._steady.pid, 15)
        self._until(
            lambda: all(job.is_over for job in self.jobs) and self._steady.poll() is not None, "the end of all jobs"
        )

    def _until(self, is_met: Callable[[], bool], what: str) -> None:
        end = time.time() + self.options.deadline
        while not is_met():
            self._tick()
            if time.time() > end:
                self.stalls.append(f"waited {self.options.deadline:.0f} s for {what}, in vain")
                self._show_stacks()
                return

    def _tick(self) -> None:
        for said in self.launcher.said():
            for job in self.jobs:
                job.hear(said)
        for job in self.jobs:
            job.look()
        for event in self._tail.new():
            self.steady.take(event, STEADY)
            if event["event"] == "begin":
                version = f"news {event['version']}"
                self.bounds.setdefault(version, Bound(self.news_limit, [event["digest"]]))
        for planted in self.planted:
            self._heal(planted)
        self._hear_publisher()
        self._helpers = [helper for helper in self._helpers if helper.poll() is None]
        if self._is_due("look", _LOOK_SECONDS):
            self._look()
        if self._is_due("tell", _TELL_SECONDS):
            self._tell()
        if self.begin:
            self._watch_for_stalls()
        time.sleep(_TICK_SECONDS)

    def _plant(self) -> None:
        for _ in range(len(CATALOGUE)):
            if not self._queue:
                self._queue = self.random.sample(CATALOGUE, len(CATALOGUE))
            fault = self._queue.pop()
            if fault.needs_own_disk and not self.has_own_disk:
                self.skipped[fault.kind] += 1
                continue
            if any(each.kind == fault.kind and each.end is None for each in self.planted):
                continue
            if self._is_store_down():
                continue
            now = time.time()
            try:
                heal = fault.plant(self)
            except Impossible:
                self.skipped[fault.kind] += 1
                continue
            self.planted.append(Planted(fault.kind, now, fault.explains, now + fault.seconds, heal=heal))
            return

    def _is_store_down(self) -> bool:
        return any(each.kind in {"unreachable", "silent"} and each.end is None for each in self.planted)

    def _heal(self, planted: Planted, *, force: bool = False) -> None:
        if planted.end is None and (force or time.time() >= planted.planned_end) and not self._is_blocked(planted):
            if planted.heal is not None:
                planted.heal()
            planted.end = time.time()

    def _is_blocked(self, planted: Planted) -> bool:
        """Whether the store cannot be told now."""
        return planted.kind not in {"unreachable", "silent"} and planted.heal is not None and self._is_store_down()

    def _kill(self) -> int:
        what, job = self.random.choice(_KILLS), self.random.choice(self.jobs)
        if not job.kill(what, self.random.choice):
            return 0  # again with the next tick
        self.kills.append(Kill(time.time(), what, job.options.name))
        return 1

    def _hear_publisher(self) -> None:
        if self._publisher is not None and self._publisher.poll() is not None:
            said, _ = self._publisher.communicate()
            lines = said.strip().splitlines()
            outcome = json.loads(lines[-1]) if lines else {"kind": f"exit {self._publisher.returncode}", "typed": False}
            self.publishes.append({"begin": self._published_at, "end": time.time(), "write": self._writes, **outcome})
            self._publisher = None

    # ------------------------------------------------------------------ looking

    def _all(self) -> list[Progress]:
        return [*(job.progress for job in self.jobs), self.steady]

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._told.get(what, -seconds) < seconds:
            return False
        self._told[what] = now
        return True

    def _look(self) -> None:
        now = time.time()
        self.loads.append((now, os.getloadavg()[0] / (os.cpu_count() or 1)))
        for bound in self.bounds.values():
            bound.sample(self.cache, now)
        for name, pid in ((STEADY, self._steady.pid), ("store", self.store.pid)):
            found = held(pid, now) if pid else None
            if found is not None:
                self.held[name].append(found)

    def _tell(self) -> None:
        if not self._is_store_down():
            self.store.count()
        passed = time.time() - self.begin if self.begin else 0.0
        active = ", ".join(each.kind for each in self.planted if each.end is None)
        parts = [f"{name} {each.samples}/{each.epochs}" for name, each in zip("AB*", self._all(), strict=True)]
        lives = "+".join(str(job.lives) for job in self.jobs)
        errors = sum(len(each.errors) for each in self._all())
        wrong = sum(each.num_wrong for each in self._all())
        self._say(
            f"{passed:5.0f} s  samples/epochs {'  '.join(parts)}  lives {lives}  faults {len(self.planted)}  "
            f"kills {len(self.kills)}  errors {errors}  wrong {wrong}  "
            f"cache {self.bounds['mixture'].most / self.limit:.0%}  {active}"
        )

    def _watch_for_stalls(self) -> None:
        now = time.time()
        for job in self.jobs:
            since = max(job.progress.last_seen, self._told.get(f"stall {job.options.name}", 0.0))
            if not job.is_over and now - since > self.options.deadline:
                self.stalls.append(f"job {job.options.name}: no step for {now - since:.0f} s")
                self._told[f"stall {job.options.name}"] = now
                self._show_stacks()
                time.sleep(_STACKS_SECONDS)  # or it is dead before it has told
                job.kill("job", self.random.choice)
        if now - max(self.steady.last_seen, self._told.get("stall", 0.0)) > self.options.deadline:
            self.stalls.append(f"{STEADY}: no step for more than {self.options.deadline:.0f} s")
            self._told["stall"] = now
            self._show_stacks()

    def _show_stacks(self) -> None:
        for pid in [*self.ranks(), self._steady.pid]:
            send(pid, 10)  # SIGUSR1: where each thread stands goes to a file beside the journal

    def _clean_up(self) -> None:
        """Ends what is left; who was left is told."""
        for helper in (*self._helpers, self._publisher, self._steady):
            if helper is not None and helper.poll() is None:
                helper.kill()
                helper.wait(30)
        if "leaked-process" in self.options.plants:
            self.run([sys.executable, "-c", "import time; time.sleep(60)"])
        self.launcher.close()
        time.sleep(1.5)  # workers look for their program once a second
        kept = {self.store.pid, os.getpid()}
        self.left = [pid for pid in marked(self._run) if pid not in kept]
        self.left_commands = [command_of(pid) for pid in self.left]
        for pid in self.left:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def raw_bytes(manifest: Manifest) -> int:
    """Bytes of the shards as they lie in a cache."""
    return sum(file.num_bytes for shard in manifest.shards for file in shard.raw_files)


def journals(folder: Path) -> list[Path]:
    """Of a job."""
    return sorted(folder.glob("*.jsonl"))
