"""The check: every planned sample of every finished epoch was taken exactly once, over all lives of a run.

Files are read one after the other; what is kept is a bit for each position, so 10^9 samples take 125 MB. Where a
position was taken twice, the files are read once more to say by whom.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from smalti.cursor import Cursor
from smalti.errors import FormatError
from smalti.ledger.coverage import Coverage
from smalti.ledger.epochs import judge_epochs
from smalti.ledger.lives import PassSpan, order_passes, read_files
from smalti.ledger.plans import Plan, Plans
from smalti.ledger.reading import Claims, RankFile, read_claims
from smalti.ledger.report import MOST, LedgerReport
from smalti.ledger.sums import Ids
from smalti.ledger.totals import settle_sums

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
