"""What the records prove: ledgers beside what was seen, errors beside the faults that explain them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soak.faults import Planted
from smalti.errors import FormatError
from smalti.ledger.reading import read_claims, scan_file

_RANK = "rank-"
_MOST_TOLD = 10
_TORCHS = "DataLoader worker (pid"
_LATE = ("StoreTimeout",)
_MUCH_LOAD = 4.0
"""Processes that want to run on each processor: seconds of waiting are then the machine's."""


@dataclass
class Proof:
    """What one ledger proves."""

    name: str
    problems: list[str] = field(default_factory=list)
    lives: int = 0
    epochs: int = 0
    """Finished ones."""
    samples: int = 0
    """Positions that were taken once, in finished and open epochs."""
    superseded: int = 0
    compared: int = 0
    """Sample ids that were compared with the plan."""
    steps: int = 0
    """Steps of the ledger that were found among what was seen, with the same samples."""


def prove(name: str, ledger: Path, journals: Iterable[Path], report: dict[str, Any]) -> Proof:
    """What a ledger's check says, and that each step is what the reader saw: a ledger is not made from the batch.

    Args:
        name: Whose ledger it is.
        ledger: Its folder.
        journals: Of all ranks and lives.
        report: What `smalti ledger check --json` says of it.
    """
    proof = Proof(name)
    proof.problems += [f"{name}: {problem['kind']}: {problem['message']}" for problem in report["problems"]]
    if not report["ok"] and not report["problems"]:
        proof.problems.append(f"{name}: {report['counts']}")
    proof.lives, proof.superseded, proof.compared = len(report["lives"]), report["superseded"], report["compared"]
    proof.epochs = sum(epoch["is_finished"] for epoch in report["epochs"])
    proof.samples = sum(epoch["taken"] for epoch in report["epochs"])
    seen = _seen(journals, ledger.name)
    for path in sorted(ledger.glob(f"life-*/{_RANK}*.jsonl")):
        _compare(name, path, seen, proof)
    for key in sorted(seen):
        proof.problems.append(f"{name}: {key} was seen, and the ledger does not have it")
    if len(proof.problems) > _MOST_TOLD:
        proof.problems[_MOST_TOLD:] = [f"{name}: {len(proof.problems) - _MOST_TOLD} more of this kind"]
    return proof


Step = tuple[str, str, int, int]
"""Life, file, pass and step."""


def _seen(journals: Iterable[Path], ledger: str) -> dict[Step, tuple[list[int], list[int]]]:
    seen = {}
    for path in journals:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and b'"seen"' in line:
                event = json.loads(line)
                if event["event"] != "seen" or event["ledger"] != ledger:
                    continue  # the steady reader has one for each version
                real = [at for at, position in enumerate(event["positions"]) if position >= 0]
                key = (event["life"], event["file"], event["within"], event["step"])
                seen[key] = ([event["positions"][at] for at in real], [event["ids"][at] for at in real])
    return seen


def _compare(name: str, path: Path, seen: dict[Step, tuple[list[int], list[int]]], proof: Proof) -> None:
    """Every step of a rank's file must have been seen but the last one, which its death may have cost."""
    life, rank = int(path.parent.name.rpartition("-")[2]), int(path.stem.rpartition("-")[2])
    try:
        file = scan_file(path, life=life, rank=rank)
    except FormatError:
        return  # it died before it began; the ledger's check says so where it matters
    for claims in read_claims(file):
        for step in np.unique(claims.steps).tolist():
            mine = claims.steps == step
            key = (path.parent.name, path.name, claims.pass_number, step)
            found = seen.pop(key, None)
            is_last = claims.pass_number == len(file.passes) - 1 and step == file.passes[-1].num_steps - 1
            if found is None and not is_last:
                proof.problems.append(f"{name}: {key} stands in the ledger, and nobody saw its batch")
            elif found is not None and found != (claims.positions[mine].tolist(), claims.ids[mine].tolist()):
                proof.problems.append(f"{name}: {key}: the batch held other samples than the ledger says")
            else:
                proof.steps += found is not None


@dataclass(frozen=True)
class Kill:
    """A kill -9."""

    at: float
    what: str
    job: str


def judge_errors(
    errors: Sequence[dict[str, Any]],
    faults: Sequence[Planted],
    kills: Sequence[Kill],
    linger: float,
    loads: Sequence[tuple[float, float]] = (),
) -> tuple[Counter[str], list[str], int]:
    """Errors by class, those that nothing explains, and how many only the machine's load does.

    Args:
        errors: As readers told them: `who`, `kind`, `at`, `typed`, `message`.
        faults: What was planted; an error that one explains is noted with it.
        kills: A worker's death is a typed error of its rank; the death of a rank is an error of its peers.
        linger: Seconds after a fault was healed in which it may still raise.
        loads: When, and processes that wanted to run on each processor: what is late may be late for them.
    """
    by_class: Counter[str] = Counter()
    unexplained, by_load = [], 0
    lives: dict[str, list[dict[str, Any]]] = {}
    for error in errors:
        by_class[error["kind"]] += 1
        lives.setdefault(_life_of(error["who"]), []).append(error)
    for life, together in lives.items():
        explained = [error for error in together if _explain(error, life, faults, kills, linger)]
        late = [error for error in together if error["kind"] in _LATE and _is_loaded(error["at"], linger, loads)]
        by_load += sum(not any(error is each for each in explained) for error in late)
        explained += late
        for error in together:
            is_peer = not error["typed"] and (explained or _killed(life, error["at"], kills, linger))
            if not is_peer and not any(error is each for each in explained):
                unexplained.append(f"{error['who']}: {error['kind']}: {error['message'][:300]}")
    return by_class, unexplained, by_load


def _explain(error: dict[str, Any], life: str, faults: Sequence[Planted], kills: Sequence[Kill], linger: float) -> bool:
    # Torch tells of a worker's death by a signal, which may come while the rank is at work of its own.
    kind = "TrainingError" if error["message"].startswith(_TORCHS) else error["kind"]
    if not error["typed"] and kind == error["kind"]:
        return False
    found = [
        fault
        for fault in faults
        if fault.begin <= error["at"] <= (fault.end or fault.planned_end) + linger and kind in fault.explains
    ]
    for fault in found:
        fault.errors.append(kind)
    return bool(found) or (kind == "TrainingError" and _killed(life, error["at"], kills, linger))


def _is_loaded(at: float, before: float, loads: Sequence[tuple[float, float]]) -> bool:
    return any(load >= _MUCH_LOAD for when, load in loads if at - before <= when <= at)


def _killed(life: str, at: float, kills: Sequence[Kill], linger: float) -> bool:
    return any(kill.job == life.partition(",")[0] and 0 <= at - kill.at <= linger for kill in kills)


def _life_of(who: str) -> str:
    return who.rpartition(", rank")[0] or who
