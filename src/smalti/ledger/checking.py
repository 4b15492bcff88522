"""The check: every planned sample of every finished epoch was taken exactly once, over all lives of a run.

Files are read one after the other; what is kept is a bit for each position, so 10^9 samples take 125 MB. Where a
position was taken twice, the files are read once more to say by whom.

Passes that were recorded as running sums: what all ranks took together must be what the plan holds, to the bit.

From what was taken to what is missing: each epoch of a run, finished or open, and its gaps.

What the check needs of an order: the sample ids at some positions.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from smalti.cursor import Cursor
from smalti.errors import CursorError, FormatError
from smalti.ledger.coverage import Coverage
from smalti.ledger.reading import Claims, PassSpan, RankFile, order_passes, owner_of, read_claims, read_files
from smalti.ledger.report import MOST, EpochReport, LedgerReport
from smalti.ledger.sums import Ids, Sum, sum_of


def judge_epochs(
    report: LedgerReport, spans: list[PassSpan], coverage: Mapping[int, Coverage], repeats: Counter[int]
) -> None:
    """Adds each epoch, and its gaps, to the report.

    Args:
        report: what is told so far.
        spans: all passes, oldest first.
        coverage: epoch to the positions that count.
        repeats: epoch to the repeats that count.
    """
    counting = [span for span in spans if span.limit > span.start.cursor.samples or span.is_last]
    if not counting:
        return
    origin = counting[0].start.cursor
    if origin.epoch or origin.samples:
        report.notes.append(f"the ledger begins at sample {origin.samples} of epoch {origin.epoch}; not before.")
    by_epoch: dict[int, list[PassSpan]] = {}
    for span in counting:
        by_epoch.setdefault(span.epoch, []).append(span)
    epochs = sorted(by_epoch)
    for before, after in pairwise(epochs):
        if after > before + 1:
            size = by_epoch[before][-1].start.cursor.epoch_size
            message = f"epochs {before + 1} to {after - 1} were never begun."
            report.add("gap", message, times=(after - before - 1) * size, epoch=before + 1)
    for epoch in epochs:
        begin = origin.samples if epoch == origin.epoch else 0
        found = coverage.get(epoch, Coverage())
        _judge(report, by_epoch[epoch], found, begin=begin, repeats=repeats[epoch])


def _judge(report: LedgerReport, spans: list[PassSpan], found: Coverage, *, begin: int, repeats: int) -> None:
    last = spans[-1]
    epoch, size = last.epoch, last.start.cursor.epoch_size
    end = _expected_end(last)
    if last.by_sample and (last.is_open or begin):
        # Which samples lie before a cursor is known to nobody but a plan for that world: only doubles can be told.
        report.notes.append(f"epoch {epoch}: MosaicML's order, and not whole here: gaps are not looked for.")
        report.epochs.append(EpochReport(epoch, size, found.count, found.count, repeats, is_finished=False))
        return
    missing, gaps = found.gaps(begin, end, MOST)
    report.epochs.append(EpochReport(epoch, size, end - begin, found.count, repeats, not last.is_open))
    if last.start.tail == "drop" and not last.is_open and end < size:
        report.notes.append(f"epoch {epoch}: its last {size - end} samples are left out, as `tail='drop'` asks.")
    for gap in gaps:
        _tell_gap(report, spans, gap)
    report.count("gap", missing - sum(stop - start for start, stop in gaps))


def _tell_gap(report: LedgerReport, spans: list[PassSpan], gap: tuple[int, int]) -> None:
    start, stop = gap
    span = next((one for one in reversed(spans) if one.start.cursor.samples <= start), spans[-1])
    what, rank = ("sample" if span.by_sample else "position"), owner_of(span, start)
    where = f"{what} {start}" if stop == start + 1 else f"{what}s {start} to {stop - 1}"
    who = "" if rank is None else f" by rank {rank}" if stop == start + 1 else f", the first by rank {rank}"
    due = "" if span.by_sample else f"; due in life {span.life}{who}"
    facts = {"epoch": span.epoch, "begin": start, "end": stop, "life": span.life, "rank": rank}
    report.add("gap", f"{where} of epoch {span.epoch}: never taken{due}.", times=stop - start, **facts)


def _expected_end(last: PassSpan) -> int:
    """How far an epoch must have been taken: to its end, or to the last step that all ranks recorded."""
    size, begin = last.start.cursor.epoch_size, last.start.cursor.samples
    if last.is_open:
        return min(size, begin + last.complete_steps * last.global_batch)
    if last.start.tail == "drop" and not last.by_sample:
        return size - (size - begin) % last.global_batch
    return size


_KEPT = 3  # an epoch's plan holds its windows


class Plan(Protocol):
    """An epoch's order, such as `smalti.order.plan_epoch` gives it."""

    def ids_at(self, positions: Ids, /) -> Ids:
        """Sample ids at these positions."""

    def __len__(self) -> int:
        """Positions of the epoch."""


class Plans:
    """The plans of a run's passes, made when first asked for."""

    def __init__(self, make: Callable[[Cursor], Plan] | None) -> None:
        self._make = make
        self._made: dict[tuple[int, int], Plan] = {}

    def of(self, span: PassSpan) -> Plan | None:
        """The order of a pass.

        None if nobody knows it, or if it was planned for a world, which a cursor does not hold.

        Raises:
            CursorError: it has not as many positions as the ledger says.
        """
        if self._make is None or span.by_sample:
            return None
        key = (span.life, span.number)
        if key not in self._made:
            if len(self._made) >= _KEPT:
                self._made.clear()
            self._made[key] = self._checked(self._make(span.start.cursor), span)
        return self._made[key]

    @staticmethod
    def _checked(plan: Plan, span: PassSpan) -> Plan:
        told = span.start.cursor.epoch_size
        if len(plan) != told:
            raise CursorError(
                f"the ledger says that epoch {span.epoch} has {told} samples, and the plan has {len(plan)}: it is the "
                "plan of other data, or the ledger is damaged.",
                epoch_size=told,
                planned=len(plan),
            )
        return plan


_AT_ONCE = 1 << 18  # positions


def settle_sums(report: LedgerReport, span: PassSpan, member: int, plan: Plan | None, covered: Coverage) -> int:
    """Compares what counts of a pass with the plan, covers its positions, and returns the repeats that count.

    Without a plan only the number of samples is compared.
    """
    begin, where = span.start.cursor.samples, f"life {span.life}, pass {span.number}"
    steps, end = _extent(span)
    if not steps:
        return 0
    if span.by_sample:
        report.add("sum", f"{where}: a sum of positions proves nothing in MosaicML's orders.", life=span.life)
        return 0
    total = Sum()
    for rank, sums in span.sums:
        if rank % span.start.replication != member % span.start.replication:
            continue
        if steps not in sums:
            report.add(
                "unmarked",
                f"{where}: rank {rank} wrote no sum after step {steps}, up to which the pass counts; call `mark` on "
                "every rank when a state is saved.",
                life=span.life,
                rank=rank,
                steps=steps,
            )
            return 0
        total += sums[steps]
    facts = {"life": span.life, "epoch": span.epoch, "begin": begin, "end": end}
    if total.samples != end - begin:
        message = (
            f"{where}: {total.samples} samples were taken of positions {begin} to {end - 1} of epoch {span.epoch}."
        )
        report.add("sum", message, **facts)
    elif plan is not None and total.value != _planned(report, span.epoch, begin, end, plan).value:
        message = f"{where}: other samples were taken than positions {begin} to {end - 1} of epoch {span.epoch} have."
        report.add("sum", message, **facts)
    report.count("double", covered.add_span(begin, end))
    return total.repeats if span.repeats_count else 0


def _extent(span: PassSpan) -> tuple[int, int]:
    """The steps of a pass that count, and the position before which they end."""
    begin, size, batch = span.start.cursor.samples, span.start.cursor.epoch_size, span.global_batch
    if span.repeats_count and span.has_ended:
        left = size - begin
        if span.start.tail == "drop":
            return left // batch, size - left % batch
        return -(-left // batch), size
    if span.repeats_count:
        return span.complete_steps, min(size, begin + span.complete_steps * batch)
    steps = max(0, -(-(span.limit - begin) // batch))
    return steps, min(span.limit, begin + steps * batch)


def _planned(report: LedgerReport, epoch: int, begin: int, end: int, plan: Plan) -> Sum:
    total = Sum()
    for first in range(begin, end, _AT_ONCE):
        positions = np.arange(first, min(first + _AT_ONCE, end), dtype=np.int64)
        total += sum_of(epoch, positions, plan.ids_at(positions))
    report.compared += end - begin
    return total


_SIDE_BY_SIDE = 64  # files read in turn, so that a plan is asked for all ranks' parts of a window while it has it


def check_ledger(folder: str | Path, plan: Callable[[Cursor], Plan] | None = None) -> LedgerReport:
    """What the ledger in `folder` proves, and what contradicts it.

    Args:
        folder: the run's ledger.
        plan: gives the order that a cursor stands in; with it, every sample id is compared with the plan.

    Raises:
        StoreNotFound: there is no ledger.
        StoreError: it cannot be read.
        CursorError: `plan` gives the order of other data.
    """
    report = LedgerReport(str(folder))
    files = read_files(Path(folder), report)
    spans = order_passes(files, report) if files else []
    unprovable = [span for span in spans if span.by_sample and span.start.cursor.mixture is not None]
    if unprovable:
        report.add(
            "unprovable",
            f"life {unprovable[0].life}: a mixture in MosaicML's order {unprovable[0].start.cursor.algorithm!r} takes "
            "samples several times or not at all, at positions that depend on the world: nobody can tell from a ledger "
            "whether each was taken as planned. The `window` order can be proven.",
            life=unprovable[0].life,
        )
        return report
    groups = max((span.start.replication for span in spans), default=1)
    for member in sorted({file.world.rank % groups for file in files}):
        _Check(report, files, spans, member).run(Plans(plan))
    return report


class _Check:
    """One replica's part; without replication, all of it. Each replica must have taken every sample once."""

    def __init__(self, report: LedgerReport, files: list[RankFile], spans: list[PassSpan], member: int) -> None:
        self.report = report
        self.spans = {(span.life, span.number): span for span in spans}
        self.files = files
        self.member = member
        self.coverage: dict[int, Coverage] = defaultdict(Coverage)
        self.repeats: Counter[int] = Counter()
        self.doubles: dict[int, list[int]] = defaultdict(list)

    def run(self, plans: Plans) -> None:
        """Goes over all files, and adds what it finds to the report."""
        for claims in self._claims():
            for line in claims.damage:
                self.report.add("damaged", line, life=claims.file.life, rank=claims.file.world.rank)
            span = self.spans[claims.file.life, claims.pass_number]
            counting = self._counting(claims, span)
            if not self._cover(claims, span, counting):
                return
            self._count_repeats(claims, span)
            plan = plans.of(span)
            if plan is not None:
                self._compare(claims, counting, plan)
        for span in self.spans.values():
            if span.sums:
                covered = self.coverage[span.epoch]
                self.repeats[span.epoch] += settle_sums(self.report, span, self.member, plans.of(span), covered)
        judge_epochs(self.report, list(self.spans.values()), self.coverage, self.repeats)
        self._tell_doubles()

    def _claims(self) -> Iterator[Claims]:
        for first in range(0, len(self.files), _SIDE_BY_SIDE):
            turns = [read_claims(file) for file in self.files[first : first + _SIDE_BY_SIDE]]
            while turns:
                heard = [(turn, next(turn, None)) for turn in turns]
                turns = [turn for turn, claims in heard if claims is not None]
                for _, claims in heard:
                    if claims is not None and self._is_ours(claims):
                        yield claims

    def _is_ours(self, claims: Claims) -> bool:
        replication = self.spans[claims.file.life, claims.pass_number].start.replication
        return claims.file.world.rank % replication == self.member % replication

    def _counting(self, claims: Claims, span: PassSpan) -> Ids:
        """Indexes of the claims that still count."""
        counts = claims.positions < span.limit
        self.report.superseded += counts.size - int(np.count_nonzero(counts))
        if span.is_open:
            begun = counts & (claims.steps < span.complete_steps)
            self.report.in_flight += int(np.count_nonzero(counts)) - int(np.count_nonzero(begun))
            counts = begun
        outside = counts & (_keys(claims, span) >= span.start.cursor.epoch_size)
        for at in np.flatnonzero(outside)[:MOST].tolist():
            self._tell("outside", claims, at, f"the epoch has {span.start.cursor.epoch_size} samples")
        self.report.count("outside", max(0, int(np.count_nonzero(outside)) - MOST))
        return np.flatnonzero(counts & ~outside)

    def _cover(self, claims: Claims, span: PassSpan, counting: Ids) -> bool:
        try:
            again = self.coverage[span.epoch].add(_keys(claims, span)[counting])
        except FormatError as fault:
            self.report.add("damaged", f"{claims.file.path}: {fault}", life=span.life, rank=claims.file.world.rank)
            return False
        if again.size:
            known = self.doubles[span.epoch]
            known.extend(again[: max(0, MOST - len(known))].tolist())
            self.report.count("double", again.size)
        return True

    def _count_repeats(self, claims: Claims, span: PassSpan) -> None:
        for step, number in claims.repeats:
            if span.repeats_count and span.counts_step(step):
                self.repeats[span.epoch] += number

    def _compare(self, claims: Claims, counting: Ids, plan: Plan) -> None:
        expected = plan.ids_at(claims.positions[counting])
        self.report.compared += expected.size
        wrong = np.flatnonzero(expected != claims.ids[counting])
        for at in wrong[:MOST].tolist():
            self._tell("wrong_id", claims, int(counting[at]), f"the plan has sample {expected[at]} there")
        self.report.count("wrong_id", max(0, wrong.size - MOST))

    def _tell(self, kind: str, claims: Claims, at: int, why: str) -> None:
        claim = _claim(claims, at)
        epoch = self.spans[claims.file.life, claims.pass_number].epoch
        message = f"position {claim['position']} of epoch {epoch}: taken as {_said(claim)}; {why}."
        self.report.add(kind, message, epoch=epoch, **claim)

    def _tell_doubles(self) -> None:
        """Reads the files again, for who took the positions that were taken twice."""
        if not any(self.doubles.values()):
            return
        takers: dict[tuple[int, int], list[dict[str, int]]] = defaultdict(list)
        report, self.report = self.report, LedgerReport("")  # what is met on the way was told the first time
        for claims in self._claims():
            span = self.spans[claims.file.life, claims.pass_number]
            counting = self._counting(claims, span)
            keys = _keys(claims, span)
            for at in counting[np.isin(keys[counting], self.doubles.get(span.epoch, []))].tolist():
                takers[span.epoch, int(keys[at])].append(_claim(claims, at))
        self.report = report
        for (epoch, _), claimed in sorted(takers.items())[:MOST]:
            said = ", ".join(_said(claim) for claim in claimed)
            where = f"position {claimed[0]['position']} of epoch {epoch}"
            report.add(
                "double", f"{where} was taken {len(claimed)} times: as {said}.", times=0, epoch=epoch, claims=claimed
            )


def _keys(claims: Claims, span: PassSpan) -> Ids:
    """What must be taken once: positions, or samples where the order places them by the world."""
    return claims.ids if span.by_sample else claims.positions


def _claim(claims: Claims, at: int) -> dict[str, int]:
    return {
        "position": int(claims.positions[at]),
        "sample_id": int(claims.ids[at]),
        "rank": claims.file.world.rank,
        "life": claims.file.life,
        "step": int(claims.steps[at]),
    }


def _said(claim: dict[str, int]) -> str:
    return f"sample {claim['sample_id']} by rank {claim['rank']} at step {claim['step']} in life {claim['life']}"
