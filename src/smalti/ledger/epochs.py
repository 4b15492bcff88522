"""From what was taken to what is missing: each epoch of a run, finished or open, and its gaps."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from smalti.ledger.coverage import Coverage
from smalti.ledger.lives import PassSpan, owner_of
from smalti.ledger.report import MOST, EpochReport, LedgerReport


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
