"""Reading a ledger: the files of all ranks, the passes of a run over all its lives, and the part of each that counts.

A file is read twice: first its passes, without parsing steps, then its steps. An incomplete last line does not count:
its process was killed while it wrote. Any other invalid line is damage. A damaged step is skipped; after any other
damaged line the rest of the file is ignored.

    life 1   |== epoch 0 =========|== epoch 1 =====....x   killed; its newest checkpoint is at the first dot
    life 2                                        |====|== epoch 2 ==
                                                  ^ the cursor of life 2: the later samples of life 1 are superseded

A pass counts up to the earliest cursor from which any later pass began. Repeats fill an epoch's last step, so they
count only if no later pass begins in that epoch or an earlier one.

Also here: the report of a ledger's check, values for programs, with messages for people.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import WINDOW, Cursor, Weights
from smalti.errors import FormatError, StoreError, StoreNotFound, TrainingError
from smalti.ledger import records
from smalti.ledger.records import LIFE_FOLDER, SEGMENT, Ids, PassStart, RecordedStep, SkippedSample, Sum, check_folder
from smalti.world import World

MAX_LISTED = 20  # problems of one kind that are listed; all are counted


@dataclass(frozen=True)
class Problem:
    """One contradiction to the claim that each planned sample was taken once."""

    kind: str
    """gap, double, wrong_id, outside, damaged, missing_file, sum, unmarked, unprovable or contradiction."""
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Epoch, position, sample ids, ranks and lives, as far as known."""


@dataclass(frozen=True)
class EpochReport:
    """The samples of one epoch, over all lives of the run and without superseded steps."""

    epoch: int
    size: int
    """Samples of the whole epoch."""
    expected: int
    """Samples that must have been taken: all, or those before the last complete step of an open epoch."""
    taken: int
    """Number of distinct positions whose samples were read."""
    repeats: int
    """Samples that were read again to fill the last step."""
    is_finished: bool
    skipped: int = 0
    """Number of positions whose samples could not be read; a repeat was read in the place of each."""


@dataclass
class LedgerReport:
    """The outcome of a check."""

    folder: str
    lives: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[EpochReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """The first `MAX_LISTED` of each kind; `counts` has the total numbers."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of problems by kind; for gaps, of positions."""
    notes: list[str] = field(default_factory=list)
    """Observations that are not problems."""
    superseded: int = 0
    """Number of samples in steps that a later life or pass took again."""
    in_flight: int = 0
    """Number of samples in steps that not all ranks had begun when the last life ended."""
    compared: int = 0
    """Number of sample ids that were compared with the plan."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """The first `MAX_LISTED` skipped samples, with epoch, position, sample id, shard, cause, rank and life."""

    @property
    def ok(self) -> bool:
        """True if each planned sample was taken exactly once, or skipped with its cause, as far as the run went."""
        return not self.counts

    def add(self, kind: str, message: str, *, times: int = 1, **facts: Any) -> None:
        """Count a problem, and list it if it is among the first of its kind."""
        self.count(kind, times)
        if sum(problem.kind == kind for problem in self.problems) < MAX_LISTED:
            self.problems.append(Problem(kind, message, facts))

    def count(self, kind: str, times: int) -> None:
        """Count problems that are not listed."""
        if times:
            self.counts[kind] = self.counts.get(kind, 0) + times

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {"ok": self.ok, **asdict(self)}


_RANK_FILE = re.compile(r"rank-(\d{5,9})\.jsonl")
_SKIPPED = b'{"skipped":'
_PARSERS = {b'{"step":': records.parse_step, _SKIPPED: records.parse_skipped}
_STEP = re.compile(rb'\{"step":(\d{1,18}),')
_CHUNK_SAMPLES = 1 << 16  # checked together: enough to make numpy's calls cheap, little memory
_NO_LIMIT = 1 << 62  # above every position
_MAX_RANKS_COMPARED = 1 << 20  # bounds the work for a damaged head
# Fields that may differ between the cursors of one run; an epoch's size and a mixture only where weights changed.
_VARIABLE_FIELDS = ("epoch", "samples", "initial_hosts", "epoch_size", "mixture")
_MAX_MISSING_LISTED = 100  # positions in an error's facts


@dataclass
class RankPass:
    """One pass in one rank's file."""

    start: PassStart
    num_steps: int = 0
    """Number of the last recorded step plus one."""
    has_ended: bool = False
    sums: dict[int, Sum] = field(default_factory=dict)
    """Running sums by number of steps, in mode `digest`; there are then no lines for steps."""


@dataclass
class RankFile:
    """One rank's file of one life, without its steps."""

    path: Path
    life: int
    world: World
    passes: list[RankPass] = field(default_factory=list)
    num_bytes: int = 0
    """Bytes up to the end of the last valid line."""
    is_truncated: bool = False
    """True if the last line is incomplete."""
    damage: str | None = None
    """The line at which reading stopped, and the reason."""


@dataclass(frozen=True)
class Claims:
    """The samples that a rank recorded in some steps of one pass."""

    file: RankFile
    pass_number: int
    steps: Ids
    """Step of each position."""
    positions: Ids
    ids: Ids
    skipped: Mapping[int, SkippedSample]
    """Samples that were skipped instead of read, by their place in `positions`."""
    repeats: tuple[tuple[int, int], ...]
    """Steps with repeats, and the number of repeats."""
    damage: tuple[str, ...]
    """Lines that were skipped, and the reasons."""


@dataclass(frozen=True)
class PassSpan:
    """One pass of one life over all ranks, and the part of it that counts."""

    life: int
    number: int
    start: PassStart
    worlds: tuple[World, ...]
    """Worlds of the ranks that left a file."""
    complete_steps: int
    """Number of steps that every rank recorded."""
    has_ended: bool
    """True if it reached the end of its epoch."""
    sums: tuple[tuple[int, dict[int, Sum]], ...] = ()
    """Ranks and their running sums, in mode `digest`."""
    limit: int = _NO_LIMIT
    """End of the positions that count; 0 if a later pass began before this one."""
    repeats_count: bool = True
    """True if the repeats of its last step count."""
    is_last: bool = False
    """True for the last pass of the run."""

    @property
    def epoch(self) -> int:
        """The epoch that was read."""
        return self.start.cursor.epoch

    @property
    def by_sample(self) -> bool:
        """True if samples, not positions, must be taken once: in MosaicML's orders, which earlier releases recorded."""
        return self.start.cursor.algorithm != WINDOW

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return max(1, self.start.batch_size * self.worlds[0].num_ranks // self.start.replication)

    @property
    def is_open(self) -> bool:
        """True if the run may have stopped in it, at a step that some ranks had begun and others not."""
        return self.is_last and not self.has_ended


def read_files(folder: Path, report: LedgerReport) -> list[RankFile]:
    """Scan the files of all lives, in order; problems go into the report.

    Raises:
        StoreNotFound: there is no ledger.
        StoreError: the ledger cannot be read.
    """
    check_folder(folder)
    files: list[RankFile] = []
    try:
        for life, life_folder in _numbered(folder, LIFE_FOLDER, report):
            names = os.listdir(life_folder)  # noqa: PTH208 - only names are needed
            for rank, path in _numbered(life_folder, _RANK_FILE, report):
                files += _scan(path, life, rank, report)
                if missing := records.missing_segment(path.name, names):
                    report.add("damaged", f"{path}: its segment {missing} is missing.", life=life, rank=rank)
            for name in sorted({match[1] for each in names if (match := SEGMENT.fullmatch(each))} - set(names)):
                report.add("damaged", f"{life_folder / name} is missing, and segments of it are there.", life=life)
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
    """Return all passes, oldest first; contradictions between ranks or between lives go into the report."""
    lives: dict[int, list[RankFile]] = {}
    for file in files:
        lives.setdefault(file.life, []).append(file)
    found = [span for life in sorted(lives) for span in _passes_of(life, lives[life], report)]
    for before, after in pairwise(found):
        _compare_orders(before, after, report)
    spans: list[PassSpan] = []
    earliest = (_NO_LIMIT, _NO_LIMIT)  # epoch and position of the earliest cursor of a later pass
    for at, span in reversed(list(enumerate(found))):
        epoch = span.epoch
        limit = _NO_LIMIT if earliest[0] > epoch else earliest[1] if earliest[0] == epoch else 0
        spans.append(replace(span, limit=limit, repeats_count=earliest[0] > epoch, is_last=at == len(found) - 1))
        earliest = min(earliest, (epoch, span.start.cursor.samples))
    return spans[::-1]


def read_claims(file: RankFile) -> Iterator[Claims]:
    """Yield the samples in the file's steps, pass by pass, some tens of thousands at a time."""
    number, size = -1, 0  # samples and lines
    steps, damage = list[RecordedStep](), list[str]()
    left = file.num_bytes
    for line_number, line in enumerate(records.read_lines(file.path), 1):
        left -= len(line)
        if left < 0:
            break
        begins = line.startswith(b'{"pass":')
        parse = next((parser for prefix, parser in _PARSERS.items() if line.startswith(prefix)), None)
        if parse is not None:
            size += 1
            try:
                step, epoch = parse(line), file.passes[number].start.cursor.epoch
                if step.epoch != epoch:
                    raise FormatError(f"a step of epoch {step.epoch} in a pass of epoch {epoch}.")
            except FormatError as fault:
                damage.append(f"{file.path}, line {line_number}: {fault}")
            else:
                steps.append(step)
                size += step.ids.size
        if number >= 0 and (size >= _CHUNK_SAMPLES or begins):
            yield _claims_of(file, number, steps, damage)
            steps, damage, size = [], [], 0
        number += begins
    if number >= 0:
        yield _claims_of(file, number, steps, damage)


def _claims_of(file: RankFile, number: int, steps: Sequence[RecordedStep], damage: Sequence[str]) -> Claims:
    sizes, empty = [step.ids.size for step in steps], [np.empty(0, dtype=np.int64)]
    begins = [0, *accumulate(sizes)]
    return Claims(
        file=file,
        pass_number=number,
        steps=np.repeat(np.array([step.step for step in steps], dtype=np.int64), sizes),
        positions=np.concatenate([step.positions for step in steps] or empty),
        ids=np.concatenate([step.ids for step in steps] or empty),
        skipped={at: each for begin, step in zip(begins, steps) for at, each in enumerate(step.skipped, begin)},  # noqa: B905 - one begin more
        repeats=tuple((step.step, step.num_repeats) for step in steps if step.num_repeats),
        damage=tuple(damage),
    )


def scan_file(path: Path, *, life: int, rank: int) -> RankFile:
    """Read the head and the passes of a file.

    Raises:
        FormatError: the file is not this rank's file of a ledger.
        StoreError: the file cannot be read.
    """
    file: RankFile | None = None
    for number, line in enumerate(records.read_lines(path), 1):
        if not line.endswith(b"\n"):
            if file is None:
                raise FormatError(f"{path}: its first line is cut off; the rank died before it began.")
            file.is_truncated = len(line) <= records.MAX_LINE_BYTES
            if not file.is_truncated:
                file.damage = f"{path}, line {number}: longer than {records.MAX_LINE_BYTES} bytes."
            return file
        try:
            if file is None:
                file = RankFile(path, life, records.parse_head(line, life=life, rank=rank))
            else:
                _add_line(file, line)
        except FormatError as fault:
            if file is None:
                raise FormatError(f"{path}: {fault}", path=str(path)) from fault
            file.damage = f"{path}, line {number}: {fault}"
            return file
        file.num_bytes += len(line)
    if file is None:
        raise FormatError(f"{path} is empty; the rank died before it began.", path=str(path))
    return file


def _add_line(file: RankFile, line: bytes) -> None:
    last = file.passes[-1] if file.passes else None
    if line.startswith(b'{"pass":'):
        file.passes.append(RankPass(records.parse_pass(line, number=len(file.passes))))
    elif last is None:
        raise FormatError("a line before the first pass.")
    elif (step := _STEP.match(line)) is not None and not last.sums:
        last.num_steps = max(last.num_steps, int(step[1]) + 1)
    elif line.startswith(b'{"sum":') and (last.sums or not last.num_steps):
        last.num_steps, total = records.parse_sum(line)
        last.sums[last.num_steps] = total
    elif line.startswith(b'{"end":'):
        number = len(file.passes) - 1
        if records.parse_line(line) != {"end": number}:
            raise FormatError(f"a line that ends another pass than {number}, which is open.")
        last.has_ended = True
    elif not line.startswith(_SKIPPED):  # those are parsed with the steps
        raise FormatError("a line that is none of a ledger's, or steps and sums in one pass.")


def _numbered(folder: Path, pattern: re.Pattern[str], report: LedgerReport) -> list[tuple[int, Path]]:
    numbered = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - only names are needed
        match = pattern.fullmatch(name)
        if match is None and SEGMENT.fullmatch(name):
            continue  # read with its file
        if match is None:
            report.notes.append(f"{folder / name} is not part of a ledger: ignored.")
        else:
            numbered.append((int(match[1]), folder / name))
    return sorted(numbered)


def _scan(path: Path, life: int, rank: int, report: LedgerReport) -> list[RankFile]:
    """Return the file of a rank unless its head is damaged; problems go into the report."""
    try:
        file = scan_file(path, life=life, rank=rank)
    except FormatError as fault:
        report.add("damaged", str(fault), life=life, rank=rank)
        return []
    if file.is_truncated:
        report.notes.append(f"{path}: its last line is cut off, as by a kill; it does not count.")
    if file.damage is not None:
        report.add("damaged", f"{file.damage} The rest of the file is ignored.", life=life, rank=rank)
    return [file]


def _passes_of(life: int, files: list[RankFile], report: LedgerReport) -> list[PassSpan]:
    world = files[0].world
    ranks = {file.world.rank for file in files}
    report.lives.append({"life": life, "num_ranks": world.num_ranks, "num_hosts": world.num_hosts})
    if any(file.world.num_ranks != world.num_ranks for file in files):
        found = sorted({file.world.num_ranks for file in files})
        report.add("contradiction", f"life {life}: its ranks recorded different numbers of ranks, {found}.", life=life)
    worlds = tuple(file.world for file in files)
    spans = []
    for number in range(max(len(file.passes) for file in files)):
        by_rank = [file.passes[number] for file in files if len(file.passes) > number]
        if any(other.start != by_rank[0].start for other in by_rank):
            report.add("contradiction", f"life {life}, pass {number}: its ranks began at different cursors.", life=life)
        complete = 0  # steps that all ranks recorded; of running sums, those up to the last sum on all ranks
        if len(by_rank) == world.num_ranks and any(each.sums for each in by_rank):
            complete = max(set.intersection(*(set(each.sums) for each in by_rank)), default=0)
        elif len(by_rank) == world.num_ranks:
            complete = min(each.num_steps for each in by_rank)
        has_ended = any(each.has_ended for each in by_rank)
        sums = tuple((file.world.rank, file.passes[number].sums) for file in files if len(file.passes) > number)
        if not any(sums_of_rank for _, sums_of_rank in sums):
            sums = ()
        spans.append(PassSpan(life, number, by_rank[0].start, worlds, complete, has_ended, sums))
    missing = sorted(set(range(min(world.num_ranks, _MAX_RANKS_COMPARED))) - ranks)
    if missing and any(each.num_steps for file in files for each in file.passes):
        report.add(
            "missing_file",
            f"life {life}: {len(missing)} of {world.num_ranks} ranks left no file, the first is rank {missing[0]}.",
            life=life,
            ranks=missing[:20],
        )
    return spans


def _compare_orders(before: PassSpan, after: PassSpan, report: LedgerReport) -> None:
    then, now = before.start.cursor, after.start.cursor
    differing = [
        name
        for name in Cursor.__dataclass_fields__
        if name not in _VARIABLE_FIELDS and getattr(then, name) != getattr(now, name)
    ]
    if not _mixture_follows(then, now):
        differing.append("mixture")
    begins_epoch = now.epoch != then.epoch or now.samples == 0
    if then.epoch_size != now.epoch_size and (now.mixture is None or not begins_epoch):
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
        weights = ", ".join("-" if each is None else f"{each[0]}={each[1]!r}" for each in now.mixture.weights.values)
        report.notes.append(
            f"life {after.life}: the streams' weights changed at sample {now.samples} of epoch {now.epoch}; they are "
            f"{weights} from there on."
        )


def _mixture_follows(then: Cursor, now: Cursor) -> bool:
    """Return whether `now` may continue a run that began with `then`: equal streams, and weights changed only there."""
    if then.mixture == now.mixture:
        return True
    if now.mixture is None:
        return False
    before = then.mixture
    if before is None:  # a single stream of which every sample is read once has no mixture
        if len(now.mixture.streams) != 1:
            return False
        before = replace(now.mixture, history=(Weights(0, 0, (None,), None),))
    if now.samples == 0 or now.epoch != then.epoch:  # an epoch keeps the batch size that it began with
        before = replace(before, global_batch=now.mixture.global_batch, local_batch=now.mixture.local_batch)
    return before.is_followed_by(now.mixture, now.epoch, now.samples)


def read_sample_order(folder: str | Path) -> dict[int, list[int]]:
    """Return the sample ids that each epoch was trained on, in the epoch's order, over all lives of the run.

    Steps that a later life took again count once, and steps that not all ranks had begun when the run was killed do not
    count. Samples that were skipped are left out. The last epoch may be unfinished; it then ends at its last position.
    The ledger must hold steps (not sums) of an order whose positions do not depend on the world, read without
    replication.

    Args:
        folder: Folder of the ledger.

    Raises:
        StoreNotFound: there is no ledger.
        StoreError: the ledger cannot be read.
        TrainingError: a position was taken twice or never, or the ledger is damaged.

    Examples:
        >>> dataset = StreamingDataset(remote="s3://bucket/users", shuffle=True)
        >>> loader = StreamingDataLoader(dataset, batch_size=5, ledger="runs/7/ledger")
        >>> steps = len(list(loader))
        >>> order = read_sample_order("runs/7/ledger")
        >>> sorted(order[0]) == list(range(15))
        True
    """
    report = LedgerReport(str(folder))
    files = read_files(Path(folder), report)
    passes = {(span.life, span.number): span for span in order_passes(files, report)}
    if report.problems:
        raise _damaged(report.problems[0].message)
    if any(span.sums or span.by_sample or span.start.replication != 1 for span in passes.values()):
        raise TrainingError(
            f"{folder} holds sums, an order of MosaicML's or replicated samples, from which no order of samples can be "
            "read: use `check_ledger`.",
            folder=str(folder),
        )
    taken: dict[int, list[tuple[Ids, Ids, NDArray[np.bool_]]]] = defaultdict(list)
    for claims in chain.from_iterable(map(read_claims, files)):
        if claims.damage:
            raise _damaged(claims.damage[0])
        span = passes[claims.file.life, claims.pass_number]
        counts = claims.positions < span.limit
        if span.is_open:
            counts &= claims.steps < span.complete_steps
        is_read = np.ones(counts.size, bool)
        is_read[list(claims.skipped)] = False
        if counts.any():
            taken[span.epoch].append((claims.positions[counts], claims.ids[counts], is_read[counts]))
    epoch_size = max((span.start.cursor.epoch_size for span in passes.values()), default=0)
    sizes = {epoch: epoch_size if epoch < max(taken) else None for epoch in sorted(taken)}
    return {epoch: _in_order(epoch, taken[epoch], size) for epoch, size in sizes.items()}


def _in_order(epoch: int, parts: list[tuple[Ids, Ids, NDArray[np.bool_]]], size: int | None) -> list[int]:
    """Return the ids of the samples that were read, by their positions: those of an epoch, without `size` of a part."""
    positions, ids, is_read = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(positions, kind="stable")
    positions, ids, is_read = positions[order], ids[order], is_read[order]
    twice = np.flatnonzero(np.diff(positions) == 0)
    if twice.size:
        position, sample_ids = int(positions[twice[0]]), tuple(ids[twice[0] : twice[0] + 2].tolist())
        raise TrainingError(
            f"position {position} of epoch {epoch} was taken twice: as sample {sample_ids[0]} and as sample "
            f"{sample_ids[1]}.",
            epoch=epoch,
            position=position,
            sample_ids=sample_ids,
        )
    size = int(positions[-1]) + 1 if size is None else size
    ends = np.concatenate(([-1], positions[positions < size], [size]))
    num_missing = size - (ends.size - 2)
    if num_missing:
        # A damaged ledger may contain any size, so missing positions are not all listed.
        holes = (range(ends[at] + 1, ends[at + 1]) for at in np.flatnonzero(np.diff(ends) > 1).tolist())
        missing = tuple(map(int, islice(chain.from_iterable(holes), _MAX_MISSING_LISTED)))
        raise TrainingError(
            f"epoch {epoch} lacks {num_missing} of {size} positions, the first is {missing[0]}: samples "
            "were skipped, or a rank's file is missing.",
            epoch=epoch,
            missing=missing,
        )
    in_order: list[int] = ids[is_read].tolist()
    return in_order


def _damaged(problem: str) -> TrainingError:
    return TrainingError(f"{problem} The order of samples cannot be read from a damaged ledger: restore the file.")
