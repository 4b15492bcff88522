"""Passes that were recorded as running sums: what all ranks took together must be what the plan holds, to the bit."""

import numpy as np

from smalti.ledger.coverage import Coverage
from smalti.ledger.lives import PassSpan
from smalti.ledger.plans import Plan
from smalti.ledger.report import LedgerReport
from smalti.ledger.sums import Sum, sum_of

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
