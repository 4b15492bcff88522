"""What a finished run comes to: figures, and everything that is wrong."""

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.soak.faults import Planted
from benchmarks.soak.job import Progress
from benchmarks.soak.judging import Proof, judge_errors, prove
from benchmarks.soak.processes import Held, slope
from benchmarks.soak.server import BUCKET
from benchmarks.soak.soaking import CATALOGUE, STEADY, Soak, journals
from benchmarks.soak.watch import leftovers
from smalti.catalog import history, verify
from smalti.cli import main as smalti
from smalti.errors import SmaltiError
from smalti.storage import open_store

_LINGER_SECONDS = 45.0
"""After a fault was healed, in which what it began may still end in an error: a shard's time, a message's way."""
_JUDGED_SECONDS = 300.0
"""A shorter run says nothing about what grows."""
_MOST_GROWTH = 0.01
"""Of memory, in ten minutes."""
_MOST_DESCRIPTORS = 4
"""More than before: sockets of the store's client come and go, one for each of up to 32 fetches at once."""
_WITHOUT_LOCK = {"cache_no_folder", "cache_no_cache"}
_LOCK_SECONDS = 5.0
"""How long a removed folder shows: until a copy has gone for the one that two processes let in at once."""
_TEN_MINUTES = 600.0
_MOST_LEFT = 100
"""Of 6 workers: leases in three folders, four fetches with a lock each, folders of leases."""


@dataclass
class Verdict:
    """What stands in the report."""

    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    """By kind: planted, survived exactly, survived by a typed error and a restart, lost, skipped."""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    by_load: int = 0
    """Timeouts that nothing explains but the machine's load."""
    kills: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    publishes: dict[str, int] = field(default_factory=dict)
    left: dict[str, list[str]] = field(default_factory=dict)
    set_bytes: int = 0
    limit: int = 0

    @property
    def samples(self) -> int:
        """Checked."""
        return sum(job["samples"] for job in self.jobs)

    @property
    def survived(self) -> int:
        """Faults that were survived one way or the other."""
        return sum(kind["exact"] + kind["restarted"] for kind in self.faults)

    @property
    def injected(self) -> int:
        """Faults that were planted."""
        return sum(kind["planted"] for kind in self.faults)

    def to_dict(self) -> dict[str, Any]:
        """JSON."""
        told = {"samples": self.samples, "survived": self.survived, "injected": self.injected}
        return {"ok": not self.problems, **told, **asdict(self)}


def judge(soak: Soak, shm: Path) -> Verdict:
    """Everything, from the records; the store still runs, and nothing else."""
    verdict = Verdict(seconds=soak.end - soak.begin, set_bytes=soak.set_bytes, limit=soak.limit)
    verdict.problems += soak.stalls
    verdict.kills = dict(Counter(f"{kill.what} of {kill.job}" for kill in soak.kills))
    everybody = {**{job.options.name: job.progress for job in soak.jobs}, STEADY: soak.steady}
    _judge_reading(verdict, soak, everybody)
    errors = [error for progress in everybody.values() for error in progress.errors]
    by_class, unexplained, verdict.by_load = judge_errors(errors, soak.planted, soak.kills, _LINGER_SECONDS, soak.loads)
    verdict.errors = dict(by_class.most_common())
    verdict.problems += [f"not explained by any fault: {text}" for text in unexplained]
    verdict.faults = count_faults(soak.planted, soak.skipped, everybody.values())
    verdict.problems += [
        f"{kind['lost']} times not survived: {kind['kind']}" for kind in verdict.faults if kind["lost"]
    ]
    _judge_ledgers(verdict, soak)
    _judge_bounds(verdict, soak)
    verdict.held, problems = judge_held(soak.held, verdict.seconds, settled_at(soak.planted))
    verdict.problems += problems
    _judge_versions(verdict, soak)
    _judge_store(verdict, soak)
    _judge_left(verdict, soak, shm)
    return verdict


def count_faults(planted: Sequence[Planted], skipped: Counter[str], everybody: Any) -> list[dict[str, Any]]:
    """By kind: survived exactly, by a typed error and a restart, or lost, where somebody never read on after it."""
    last = min((progress.last_seen for progress in everybody), default=0.0)
    found = []
    for fault in CATALOGUE:
        mine = [each for each in planted if each.kind == fault.kind]
        lost = [each for each in mine if each.end is None or last <= each.end]
        restarted = [each for each in mine if each.errors and each not in lost]
        found.append(
            {
                "kind": fault.kind,
                "text": fault.text,
                "planted": len(mine),
                "exact": len(mine) - len(lost) - len(restarted),
                "restarted": len(restarted),
                "lost": len(lost),
                "skipped": skipped[fault.kind],
                "errors": dict(Counter(error for each in mine for error in each.errors)),
            }
        )
    return found


def _judge_reading(verdict: Verdict, soak: Soak, everybody: dict[str, Progress]) -> None:
    by_name = {job.options.name: job for job in soak.jobs}
    longest = soak.options.deadline
    for name, progress in everybody.items():
        job = by_name.get(name)
        verdict.jobs.append(
            {
                "name": name,
                "num_wrong": progress.num_wrong,
                "samples": progress.samples,
                "bytes": progress.sample_bytes,
                "epochs": progress.epochs,
                "lives": job.lives if job else 1,
                "ends": dict(job.restarts) if job else {},
                "errors": len(progress.errors),
                "longest_wait": progress.longest_wait,
                "longest_gap": progress.longest_gap,
                "fetched": sum(each["bytes_fetched"] for each in progress.stats.values()),
                "least": sum(each["least_bytes"] or 0 for each in progress.stats.values()),
                "evictions": sum(each["evictions"] for each in progress.stats.values()),
            }
        )
        if progress.num_wrong:
            verdict.problems.append(f"{name}: {progress.num_wrong} wrong samples, such as: {progress.wrong[0]}")
        if progress.longest_gap > longest:
            verdict.problems.append(f"{name}: {progress.longest_gap:.0f} s without a step, allowed are {longest:.0f}")
        if not progress.samples:
            verdict.problems.append(f"{name}: read nothing")
    for job in soak.jobs:
        died = [why for why in job.restarts if why.startswith("died")]
        explained = any(error["who"].startswith(f"{job.options.name},") for error in job.progress.errors)
        if died and not explained:
            verdict.problems.append(f"{job.options.name}: {', '.join(died)}, and nobody said why")


def _judge_ledgers(verdict: Verdict, soak: Soak) -> None:
    os.environ.update(
        {"S3_ENDPOINT_URL": soak.store.url, "AWS_ACCESS_KEY_ID": "AKIDSOAK", "AWS_SECRET_ACCESS_KEY": "x"}
    )
    work = soak.options.work
    ledgers = [(job.options.name, work / job.options.name / "ledger", job.options.reads.streams) for job in soak.jobs]
    steady = sorted((work / STEADY).glob("ledger-*"))
    ledgers += [(f"{STEADY}, version {path.name.partition('-')[2]}", path, [("news", 0)]) for path in steady]
    for name, folder, streams in ledgers:
        data = [word for stream, _ in streams for word in ("--data", f"s3://{BUCKET}/{stream}")]
        said, complaints = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaints):
            smalti(["ledger", "check", str(folder), *data, "--json"])
        try:
            report = json.loads(said.getvalue())
        except ValueError:
            verdict.problems.append(f"{name}: no ledger can be checked: {complaints.getvalue()[-500:]}")
            continue
        proof = prove(name, folder, journals(folder.parent), report)
        verdict.proofs.append(proof)
        verdict.problems += proof.problems


def _judge_bounds(verdict: Verdict, soak: Soak) -> None:
    for name, bound in soak.bounds.items():
        told = {"limit": bound.limit, "most": bound.most, "most_coming": bound.most_coming, "looks": bound.looks}
        over = [look for look in bound.over if not _has_lost_its_lock(soak, look[0])]
        verdict.bounds[name] = {**told, "over": len(over), "over_without_a_lock": len(bound.over) - len(over)}
        if over:
            at, most = max(over, key=lambda look: look[1])
            beside = ", ".join(each.kind for each in soak.planted if each.begin <= at <= each.begin + _LOCK_SECONDS)
            verdict.problems.append(
                f"cache of {name}: {most:,} bytes, the limit is {bound.limit:,}; {len(over)} looks, beside {beside}"
            )


def _has_lost_its_lock(soak: Soak, at: float) -> bool:
    """Whether the folder had just been removed, and with it the lock of those who were making room."""
    return any(each.kind in _WITHOUT_LOCK and each.begin <= at <= each.begin + _LOCK_SECONDS for each in soak.planted)


def settled_at(planted: Sequence[Planted]) -> float:
    """When every kind of fault had been there once; what a process imports and keeps for one is no leak."""
    first: dict[str, float] = {}
    for each in planted:
        first.setdefault(each.kind, each.begin)
    return max(first.values(), default=0.0)


def judge_held(
    held: dict[str, list[Held]], seconds: float, settled: float = 0.0
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Memory and descriptors of processes that lived all the time: after a quarter, and at the end.

    Where every kind of fault has been there later than that, from then on, but for the last half in any case.
    """
    found, problems = {}, []
    for name, looks in held.items():
        if len(looks) < 8:
            continue
        begin = min(max(looks[len(looks) // 4].at, settled), looks[len(looks) // 2].at)
        warm = [look for look in looks if look.at >= begin]
        first, last = warm[: len(warm) // 3], warm[-(len(warm) // 3) :]
        memory = median(each.anonymous for each in warm)
        per_minute = slope([((each.at - warm[0].at) / 60, float(each.anonymous)) for each in warm])
        growth = per_minute * _TEN_MINUTES / 60 / memory
        before, after = (int(median(each.descriptors for each in part)) for part in (first, last))
        is_judged = seconds >= _JUDGED_SECONDS and name == STEADY
        found[name] = {
            "descriptors_before": before,
            "descriptors_after": after,
            "anonymous": int(memory),
            "resident": int(median(each.resident for each in warm)),
            "bytes_per_minute": per_minute,
            "growth_in_ten_minutes": growth,
            "judged": is_judged,
            "megabytes": [round(look.anonymous / 1e6, 1) for look in looks],
        }
        if is_judged and after > before + _MOST_DESCRIPTORS:
            problems.append(f"{name}: {before} descriptors after a quarter of the time, {after} at the end")
        if is_judged and growth > _MOST_GROWTH:
            problems.append(f"{name}: memory grows by {growth:.1%} in ten minutes")
    return found, problems


def _judge_versions(verdict: Verdict, soak: Soak) -> None:
    outcomes = Counter(each["kind"] for each in soak.publishes)
    verdict.publishes = dict(outcomes)
    for each in soak.publishes:
        meets = [
            fault for fault in soak.planted if fault.begin <= each["end"] and (fault.end or 0) >= each["begin"] - 1
        ]
        if not each["typed"] or (each["kind"] != "published" and not meets):
            verdict.problems.append(f"write {each['write']}: {each['kind']}: {each.get('message', '')[:300]}")
    store = open_store(f"s3://{BUCKET}/news", soak.store.options)
    try:
        versions = [info.version for info in history(store)]
        for version in versions:
            report = verify(store, version=version)
            if not report.ok:
                verdict.problems.append(f"news: {report.summary()}")
    except SmaltiError as error:
        verdict.problems.append(f"news: {type(error).__name__}: {error}")
    else:
        if len(versions) < 1 + outcomes["published"]:
            verdict.problems.append(f"news: {outcomes['published']} versions published, {len(versions)} are there")


def _judge_store(verdict: Verdict, soak: Soak) -> None:
    soak.store.count()
    requests = soak.store.requests
    verdict.store = {
        "starts": soak.store.starts,
        "bytes_sent": soak.store.bytes_sent,
        "anonymous": soak.store.anonymous,
        "requests": {name: requests[name] for name in sorted(requests)},
    }
    if soak.store.anonymous:
        verdict.problems.append(f"{soak.store.anonymous} requests to the store that nobody signed")


def _judge_left(verdict: Verdict, soak: Soak, shm: Path) -> None:
    if "leaked-part" in soak.options.plants:
        (soak.cache / soak.roots[0] / ".shard.00000.mds").write_bytes(b"left")
    # What the last workers were fetching as they ended, and lists of what they needed, go with the next reader: a few.
    before = leftovers(soak.cache)
    if len(before) > _MOST_LEFT:
        verdict.problems.append(f"{len(before)} things wait in the cache for the next reader, allowed are {_MOST_LEFT}")
    with contextlib.redirect_stdout(io.StringIO()):
        smalti(["cache", "scrub", "--local", str(soak.cache)])
    verdict.left = {
        "processes": soak.left_commands,
        "cache, until somebody reads again": before,
        "cache after `smalti cache scrub`": leftovers(soak.cache),
        "shared memory": left_memory(shm) if soak.options.is_private else [],
        "temporary": sorted(path.name for path in Path(os.environ["TMPDIR"]).iterdir()),
    }
    for kind in ("processes", "cache after `smalti cache scrub`", "shared memory"):
        if verdict.left[kind]:
            verdict.problems.append(f"left behind, {kind}: {', '.join(verdict.left[kind][:5])}")


def left_memory(folder: Path) -> list[str]:
    """Shared memory that nobody needs, but for the semaphores that Python itself leaves when all of a job is killed."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("sem.mp-"))
