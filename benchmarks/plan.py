"""From rows to tasks: which processes are started, in which order, and which of them several rows share."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.row import LARGE, Entrant, Row
from benchmarks.scale import Scale
from benchmarks.task import Task

_NEEDS_SET = {"read", "access", "system-calls", "open", "resume", "cold", "first-batch", "warm", "ranks"}


@dataclass(frozen=True)
class Planned:
    """One measurement of one participant, to be repeated."""

    task: Task
    label: str
    runs: int

    @property
    def key(self) -> str:
        """The same for the same measurement, whichever row asks for it."""
        return key_of(self.task)


def key_of(task: Task) -> str:
    """A task without the folder that it works in."""
    return json.dumps({**task.to_json(), "work_dir": ""}, sort_keys=True)


def task_of(row: Row, entrant: Entrant, scale: Scale, work_dir: str) -> Task:
    """What a child process is asked for this participant of the row."""
    samples = scale.samples[row.workload]
    options = {**row.options, **entrant.options}
    if row.copies is not None:
        samples = scale.linked_samples
        options["copies"] = scale.large_copies if row.copies == LARGE else row.copies
    if row.samples is not None:
        samples = row.samples // scale.divisor
        if row.copies is not None:
            options["copies"] = row.copies // scale.divisor
    if entrant.max_samples is not None:
        samples = min(samples, entrant.max_samples)
    if row.measure == "read":
        options["seconds"] = scale.seconds
    if row.measure == "images":
        options["seconds"] = 2 * scale.seconds
    if row.measure == "access":
        options["reads"] = scale.reads
    return Task(row.measure, entrant.peer, row.workload, samples, work_dir, options)


def planned(row: Row, scale: Scale, runs: int, work_dir: str, peers: Sequence[str]) -> list[Planned]:
    """The measurements of one row, of the chosen participants."""
    return [
        Planned(task_of(row, entrant, scale, work_dir), entrant.label, min(runs, entrant.max_runs or runs))
        for entrant in row.entrants
        if entrant.peer in peers
    ]


def interleaved(measurements: Sequence[Planned]) -> Iterator[tuple[Planned, int]]:
    """Every participant once, then every one again: what changes on the machine changes for all of them."""
    for run in range(max((each.runs for each in measurements), default=0)):
        for each in measurements:
            if run < each.runs:
                yield each, run


def preparations(measurements: Iterable[Planned], *, fresh: bool) -> list[Task]:
    """The sets that these measurements read, each once; a linked set comes after the one that it is made of."""
    found: dict[str, Task] = {}
    for each in measurements:
        task = each.task
        if task.measure == "frame":
            options = {key: value for key, value in task.options.items() if key == "source"}
            source = replace(task, measure="prepare-frame", peer="source", options=options)
            found.setdefault(key_of(source), source)
        if task.measure not in _NEEDS_SET:
            continue
        # A set of ours is written anew: the code that wrote the last one may be of this morning.
        # Photos are kept: they are large, and it is their way here that is measured.
        options = {"fresh": True} if fresh and task.writer.startswith("smalti") and task.workload != "photos" else {}
        options |= {key: value for key, value in task.options.items() if key == "shard_bytes"}
        source = replace(task, measure="prepare", peer=task.writer, options=options)
        found.setdefault(key_of(source), source)
        if "copies" in task.options:
            links = replace(task, measure="multiply", options={"copies": task.options["copies"]})
            found.setdefault(key_of(links), links)
        if task.measure == "warm" and task.options.get("place") != "local":
            filling = replace(task, measure="fill", options={"workers": 2, "shuffle": False})
            found.setdefault(key_of(filling), filling)
        if task.measure == "resume":
            saving = replace(task, measure="save-state")
            found.setdefault(key_of(saving), saving)
    return list(found.values())
