"""Reading one rank's file: once over its passes, without parsing steps, and once for what the steps took.

A file may end in half a line, where its process was killed; that line does not count. Any other line that is not
ours is damage. A step's line that is damaged is passed over; nothing that follows another damaged line is believed.

The passes of a run over all its lives, in order, and which part of each still counts.

    life 1   |== epoch 0 =========|== epoch 1 =====....x   killed; its newest checkpoint stood at the dots
    life 2                                        |====|== epoch 2 ==
                                                  ^ the cursor of life 2: what life 1 took beyond is superseded

A pass counts up to the earliest cursor from which any later pass began. Repeats fill an epoch's last step, so they
count only if no later pass begins in that epoch or before.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from smalti.cursor import Cursor, Weights
from smalti.errors import FormatError, StoreError, StoreNotFound
from smalti.ledger.records import (
    MAX_LINE_BYTES,
    MOSAIC_ORDERS,
    PassStart,
    Step,
    parse_end,
    parse_head,
    parse_pass,
    parse_step,
    parse_sum,
)
from smalti.ledger.report import LedgerReport
from smalti.ledger.sums import Ids, Sum
from smalti.ledger.writing import LIFE_FOLDER
from smalti.world import World

_STEP = re.compile(rb'\{"step":(\d{1,18}),')
_CHUNK_SAMPLES = 1 << 16  # checked together: enough to make numpy's calls cheap, little memory


@dataclass
class RankPass:
    """One pass as one rank recorded it."""

    start: PassStart
    num_steps: int = 0
    """The last step recorded, and one."""
    ended: bool = False
    sums: dict[int, Sum] = field(default_factory=dict)
    """Running sums, by the steps that they are of; there are then no lines for steps."""


@dataclass
class RankFile:
    """One rank's file of one life, its steps not yet read."""

    path: Path
    life: int
    world: World
    passes: list[RankPass] = field(default_factory=list)
    num_bytes: int = 0
    """Bytes up to the end of the last line that is believed."""
    torn: bool = False
    """Whether the last line is cut off."""
    damage: str | None = None
    """The line at which reading stopped, and why."""


@dataclass(frozen=True)
class Claims:
    """What a rank says it took in some steps of one pass."""

    file: RankFile
    pass_number: int
    steps: Ids
    """Step of each position."""
    positions: Ids
    ids: Ids
    repeats: tuple[tuple[int, int], ...]
    """Steps with repeats, and their number."""
    damage: tuple[str, ...]
    """Lines that were passed over."""


def scan_file(path: Path, *, life: int, rank: int) -> RankFile:
    """The head and the passes of a file.

    Raises:
        FormatError: it is not this rank's file of a ledger.
        StoreError: it cannot be read.
    """
    with _opened(path) as file:
        found: RankFile | None = None
        for number, line in enumerate(_lines(file), 1):
            if not line.endswith(b"\n"):
                if found is None:
                    raise FormatError(f"{path}: its first line is cut off; the rank died before it began.")
                found.torn = len(line) <= MAX_LINE_BYTES
                found.damage = None if found.torn else f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes."
                return found
            try:
                if found is None:
                    found = RankFile(path, life, parse_head(line, life=life, rank=rank))
                else:
                    _take_line(found, line)
            except FormatError as fault:
                if found is None:
                    raise FormatError(f"{path}: {fault}", path=str(path)) from fault
                found.damage = f"{path}, line {number}: {fault}"
                return found
            found.num_bytes += len(line)
    if found is None:
        raise FormatError(f"{path} is empty; the rank died before it began.", path=str(path))
    return found


def read_claims(file: RankFile) -> Iterator[Claims]:
    """What the file's steps took, pass by pass, some tens of thousands of samples at a time."""
    number, waiting = -1, _Waiting()
    with _opened(file.path) as opened:
        left = file.num_bytes
        for line_number, line in enumerate(_lines(opened), 1):
            left -= len(line)
            if left < 0:
                break
            if line.startswith(b'{"step":'):
                waiting.take(line, f"{file.path}, line {line_number}", file.passes[number].start.cursor.epoch)
            begins = line.startswith(b'{"pass":')
            if number >= 0 and (waiting.is_full or begins):
                yield waiting.claims(file, number)
                waiting = _Waiting()
            number += begins
    if number >= 0:
        yield waiting.claims(file, number)


class _Waiting:
    """Steps that were read and not yet handed on."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._damage: list[str] = []
        self._weight = 0

    @property
    def is_full(self) -> bool:
        return self._weight >= _CHUNK_SAMPLES

    def take(self, line: bytes, where: str, epoch: int) -> None:
        try:
            step = parse_step(line)
            if step.epoch != epoch:
                raise FormatError(f"a step of epoch {step.epoch} in a pass of epoch {epoch}.")
        except FormatError as fault:
            self._damage.append(f"{where}: {fault}")
            self._weight += 1
            return
        self._steps.append(step)
        self._weight += 1 + step.ids.size

    def claims(self, file: RankFile, number: int) -> Claims:
        none = [np.empty(0, dtype=np.int64)]
        steps = np.array([step.step for step in self._steps], dtype=np.int64)
        return Claims(
            file=file,
            pass_number=number,
            steps=np.repeat(steps, [step.ids.size for step in self._steps]),
            positions=np.concatenate([step.positions for step in self._steps] or none),
            ids=np.concatenate([step.ids for step in self._steps] or none),
            repeats=tuple((step.step, step.num_repeats) for step in self._steps if step.num_repeats),
            damage=tuple(self._damage),
        )


def _take_line(file: RankFile, line: bytes) -> None:
    if line.startswith(b'{"pass":'):
        file.passes.append(RankPass(parse_pass(line, number=len(file.passes))))
        return
    if not file.passes:
        raise FormatError("a line before the first pass.")
    now, step = file.passes[-1], _STEP.match(line)
    if step is not None and not now.sums:
        now.num_steps = max(now.num_steps, int(step[1]) + 1)
    elif line.startswith(b'{"sum":') and (now.sums or not now.num_steps):
        now.num_steps, total = parse_sum(line)
        now.sums[now.num_steps] = total
    elif line.startswith(b'{"end":'):
        parse_end(line, number=len(file.passes) - 1)
        now.ended = True
    else:
        raise FormatError("a line that is none of a ledger's, or steps and sums in one pass.")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")


def _opened(path: Path) -> BinaryIO:
    # Not blocking, so that a pipe of that name cannot hold us up.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as fault:
        raise StoreError(f"ledger {path}: cannot be read: {fault.strerror}.", path=str(path)) from fault
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is not a plain file.", path=str(path))
    return os.fdopen(descriptor, "rb")


_RANK_FILE = re.compile(r"rank-(\d{5,9})\.jsonl")
# What may differ between the cursors of one run; an epoch's size and a mixture where weights changed.
_PLACE = ("epoch", "samples", "initial_hosts", "epoch_size", "mixture")
_ALL = 1 << 62


@dataclass(frozen=True)
class PassSpan:
    """One pass of one life, and what of it counts."""

    life: int
    number: int
    start: PassStart
    worlds: tuple[World, ...]
    """Of those ranks that left a file."""
    complete_steps: int
    """Steps that every rank recorded."""
    has_ended: bool
    """Whether it came to its epoch's end."""
    sums: tuple[tuple[int, dict[int, Sum]], ...] = ()
    """Ranks and their running sums, if the pass has such in place of steps."""
    limit: int = _ALL
    """Positions below it count; 0 if a later pass began before this one."""
    repeats_count: bool = True
    is_last: bool = False

    @property
    def epoch(self) -> int:
        """The epoch it reads."""
        return self.start.cursor.epoch

    @property
    def num_ranks(self) -> int:
        """Ranks of the life, with or without a file."""
        return self.worlds[0].num_ranks

    @property
    def by_sample(self) -> bool:
        """Whether what is taken once is a sample, not a position."""
        return self.start.cursor.algorithm in MOSAIC_ORDERS

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return max(1, self.start.batch_size * self.num_ranks // self.start.replication)

    @property
    def is_open(self) -> bool:
        """Whether the run may have been stopped in it, in a step that some ranks had begun and others not."""
        return self.is_last and not self.has_ended

    def counts_step(self, step: int) -> bool:
        """Whether a step is not merely in flight."""
        return not self.is_open or step < self.complete_steps


def read_files(folder: Path, report: LedgerReport) -> list[RankFile]:
    """The files of all lives, in order; what is wrong with them goes into the report.

    Raises:
        StoreNotFound: there is no ledger.
        StoreError: it cannot be read.
    """
    files: list[RankFile] = []
    try:
        for life, within in _numbered(folder, LIFE_FOLDER, report):
            for rank, path in _numbered(within, _RANK_FILE, report):
                _scan(path, life, rank, files, report)
    except StoreError:
        raise
    except FileNotFoundError as fault:
        raise StoreNotFound(f"{folder} holds no ledger: there is no such folder.") from fault
    except OSError as fault:
        raise StoreError(f"ledger {folder}: cannot be read: {fault.strerror}.") from fault
    if not files and not report.counts:
        raise StoreNotFound(f"{folder} holds no ledger: no life-00001/rank-00000.jsonl or later.")
    return files


def order_passes(files: list[RankFile], report: LedgerReport) -> list[PassSpan]:
    """All passes, oldest first; contradictions between ranks, or between lives, go into the report."""
    lives: dict[int, list[RankFile]] = {}
    for file in files:
        lives.setdefault(file.life, []).append(file)
    found = [span for life in sorted(lives) for span in _passes_of(life, lives[life], report)]
    for before, after in pairwise(found):
        _compare_orders(before, after, report)
    spans: list[PassSpan] = []
    cut = (_ALL, _ALL)
    for at, span in reversed(list(enumerate(found))):
        epoch = span.epoch
        limit = _ALL if cut[0] > epoch else cut[1] if cut[0] == epoch else 0
        spans.append(replace(span, limit=limit, repeats_count=cut[0] > epoch, is_last=at == len(found) - 1))
        cut = min(cut, (epoch, span.start.cursor.samples))
    return spans[::-1]


def owner_of(span: PassSpan, position: int) -> int | None:
    """The rank that had to take a position in a pass; None if it left no file, or ranks replicate each other."""
    world, begin = span.worlds[0], span.start.cursor.samples
    if span.by_sample or span.start.replication != 1 or position < begin:
        return None
    host = position % world.num_hosts
    nth = (position - begin - (host - begin) % world.num_hosts) // world.num_hosts  # of the host, since the cursor
    place = (host, nth % world.ranks_on_host)
    return next((other.rank for other in span.worlds if (other.host, other.host_rank) == place), None)


def _numbered(folder: Path, pattern: re.Pattern[str], report: LedgerReport) -> list[tuple[int, Path]]:
    numbered = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names are what the pattern is for
        match = pattern.fullmatch(name)
        if match is None:
            report.notes.append(f"{folder / name} is not a ledger's: left aside.")
        else:
            numbered.append((int(match[1]), folder / name))
    return sorted(numbered)


def _scan(path: Path, life: int, rank: int, files: list[RankFile], report: LedgerReport) -> None:
    try:
        file = scan_file(path, life=life, rank=rank)
    except FormatError as fault:
        report.add("damaged", str(fault), life=life, rank=rank)
        return
    files.append(file)
    if file.torn:
        report.notes.append(f"{path}: its last line is cut off, as by a kill; it does not count.")
    if file.damage is not None:
        report.add("damaged", f"{file.damage} Nothing after it is believed.", life=life, rank=rank)


def _passes_of(life: int, files: list[RankFile], report: LedgerReport) -> list[PassSpan]:
    world = files[0].world
    ranks = {file.world.rank for file in files}
    report.lives.append({"life": life, "num_ranks": world.num_ranks, "num_hosts": world.num_hosts})
    if any(file.world.num_ranks != world.num_ranks for file in files):
        told = sorted({file.world.num_ranks for file in files})
        report.add("contradiction", f"life {life}: its ranks tell of {told} ranks altogether.", life=life)
    worlds = tuple(file.world for file in files)
    spans = []
    for number in range(max(len(file.passes) for file in files)):
        having = [file.passes[number] for file in files if len(file.passes) > number]
        if any(other.start != having[0].start for other in having):
            report.add("contradiction", f"life {life}, pass {number}: its ranks began at different cursors.", life=life)
        complete = _complete_steps(having) if len(having) == world.num_ranks else 0
        ended = any(one.ended for one in having)
        sums = tuple((file.world.rank, file.passes[number].sums) for file in files if len(file.passes) > number)
        if not any(of_rank for _, of_rank in sums):
            sums = ()
        spans.append(PassSpan(life, number, having[0].start, worlds, complete, ended, sums))
    missing = sorted(set(range(min(world.num_ranks, 1 << 20))) - ranks)
    if missing and any(one.num_steps for file in files for one in file.passes):
        report.add(
            "missing_file",
            f"life {life}: {len(missing)} of {world.num_ranks} ranks left no file, the first is rank {missing[0]}.",
            life=life,
            ranks=missing[:20],
        )
    return spans


def _complete_steps(having: list[RankPass]) -> int:
    """Steps that all ranks recorded; of running sums, the last that all ranks wrote after the same step."""
    if not any(one.sums for one in having):
        return min(one.num_steps for one in having)
    return max(set.intersection(*(set(one.sums) for one in having)), default=0)


def _compare_orders(before: PassSpan, after: PassSpan, report: LedgerReport) -> None:
    then, now = before.start.cursor, after.start.cursor
    differing = [
        name for name in Cursor.__dataclass_fields__ if name not in _PLACE and getattr(then, name) != getattr(now, name)
    ]
    if not _mixture_follows(then, now):
        differing.append("mixture")
    begins_anew = now.epoch != then.epoch or now.samples == 0
    if then.epoch_size != now.epoch_size and (now.mixture is None or not begins_anew):
        differing.append("epoch_size")
    for name in differing:
        report.add(
            "contradiction",
            f"the order changed: life {before.life} had {name} {getattr(then, name)!r:.300}, life {after.life} has "
            f"{getattr(now, name)!r:.300}.",
            lives=(before.life, after.life),
            field=name,
        )
    if now.mixture is not None and now.mixture.history != (then.mixture and then.mixture.history):
        report.notes.append(
            f"life {after.life}: the streams' weights changed at sample {now.samples} of epoch {now.epoch}; they are "
            f"{_told(now.mixture.weights.values)} from there on."
        )


def _told(weights: Sequence[tuple[str, float] | None]) -> str:
    return ", ".join("-" if weight is None else f"{weight[0]}={weight[1]!r}" for weight in weights)


def _mixture_follows(then: Cursor, now: Cursor) -> bool:
    """Whether a run may go on from one to the other: the same streams, and weights that change where it goes on."""
    if then.mixture == now.mixture:
        return True
    if now.mixture is None:
        return False
    before = then.mixture
    if before is None:  # one stream, every sample once, is written without a mixture
        if len(now.mixture.streams) != 1:
            return False
        before = replace(now.mixture, history=(Weights(0, 0, (None,), None),))
    if now.samples == 0 or now.epoch != then.epoch:  # each epoch has the batch that it was begun with
        before = replace(before, global_batch=now.mixture.global_batch, local_batch=now.mixture.local_batch)
    return before.is_followed_by(now.mixture, now.epoch, now.samples)
