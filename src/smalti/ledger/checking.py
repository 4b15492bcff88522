"""The check of a ledger: every planned sample of every finished epoch was taken exactly once, over all lives of a run.

Memory holds one bit per position, so 10^9 samples take 125 MB. If a position was taken twice, the files are read a
second time to find the ranks that took it. Passes that were recorded as running sums are compared as a whole: the sum
over all ranks must equal the sum of the planned samples.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise, repeat, zip_longest
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import Cursor
from smalti.errors import CursorError, FormatError
from smalti.ledger.reading import (
    MAX_LISTED,
    Claims,
    EpochReport,
    LedgerReport,
    PassSpan,
    RankFile,
    order_passes,
    read_claims,
    read_files,
)
from smalti.ledger.records import Ids, Sum, sum_of

_BLOCK = 1 << 20  # positions, 128 KiB of bits
_FREE_BLOCKS = 256  # 32 MiB; more blocks are refused if they are nearly empty, as those of a damaged ledger

Bits = NDArray[np.uint8]
_MAX_PLANS = 3  # in memory: an epoch's plan caches its windows
_POSITIONS_AT_ONCE = 1 << 18  # compared with the plan together
_FILES_AT_ONCE = 64  # read in turn, so that a plan computes a window once for all ranks


class Plan(Protocol):
    """The order of an epoch, as `smalti.order.plan_epoch` returns it."""

    def ids_at(self, positions: Ids, /) -> Ids:
        """Return the sample ids at positions."""

    def __len__(self) -> int:
        """Return the number of positions of the epoch."""


def check_ledger(folder: str | Path, plan: Callable[[Cursor], Plan] | None = None) -> LedgerReport:
    """Check the ledger in `folder`, and return a report of what it proves and what contradicts it.

    Args:
        folder: Folder of the ledger.
        plan: Returns the order of a cursor's epoch, with which every sample id is then compared.

    Raises:
        StoreNotFound: there is no ledger.
        StoreError: the ledger cannot be read.
        CursorError: `plan` returns the order of other data.

    Examples:
        >>> dataset = StreamingDataset(remote="s3://bucket/users", shuffle=True)
        >>> loader = StreamingDataLoader(dataset, batch_size=5, ledger="runs/7/ledger")
        >>> steps = len(list(loader))
        >>> report = check_ledger("runs/7/ledger")
        >>> report.ok, report.epochs[0].taken
        (True, 15)
    """
    report = LedgerReport(str(folder))
    files = read_files(Path(folder), report)
    spans = order_passes(files, report) if files else []
    unprovable = [span for span in spans if span.by_sample and span.start.cursor.mixture is not None]
    if unprovable:
        report.add(
            "unprovable",
            f"life {unprovable[0].life}: a mixture in MosaicML's order {unprovable[0].start.cursor.algorithm!r} takes "
            "samples several times or not at all, at positions that depend on the world: a ledger cannot prove that "
            "each was taken as planned. The `window` order can be proven.",
            life=unprovable[0].life,
        )
        return report
    plan_at = None if plan is None else lru_cache(_MAX_PLANS)(plan)
    groups = max((span.start.replication for span in spans), default=1)
    for member in sorted({file.world.rank % groups for file in files}):
        _Check(report, files, spans, member, plan_at).run()
    return report


class Coverage:
    """A set of positions, one bit for each in blocks allocated on demand; reports duplicates and gaps."""

    def __init__(self) -> None:
        self._blocks: dict[int, Bits] = {}
        self._spans: list[tuple[int, int]] = []
        self.count = 0
        """Number of positions in the set."""

    def add(self, positions: Ids) -> Ids:
        """Add positions; return those that were in the set or occur more than once in `positions`, sorted and unique.

        Raises:
            FormatError: the positions are so scattered that no run can have taken them.
        """
        if not positions.size:
            return positions
        ordered = np.sort(positions, kind="stable")  # fast, as a rank's positions are nearly sorted
        first = np.diff(ordered, prepend=ordered[0] - 1) != 0
        duplicates, unique = [ordered[~first]], ordered[first]
        blocks, starts = np.unique(unique // _BLOCK, return_index=True)
        for number, within in zip(blocks.tolist(), np.split(unique, starts[1:]), strict=True):
            duplicates.append(self._add_to_block(number, within - number * _BLOCK) + number * _BLOCK)
        if len(self._blocks) > _FREE_BLOCKS + 64 * self.count // _BLOCK:
            raise FormatError(
                f"{self.count} positions are scattered over {len(self._blocks)} blocks of {_BLOCK}: no run reads "
                "so; the ledger's positions are damaged."
            )
        return np.unique(np.concatenate(duplicates))

    def add_span(self, begin: int, end: int) -> int:
        """Add the span [begin, end), after all single positions; return how many of them were in the set."""
        missing, _ = self.gaps(begin, end, 0)
        self._spans.append((begin, end))
        self.count += missing
        return end - begin - missing

    def gaps(self, begin: int, end: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of positions missing in [begin, end), and the first `most` spans of them."""
        missing, gaps, covered = 0, list[tuple[int, int]](), begin
        for start, stop in [*sorted(self._spans), (end, end)]:
            for low, high, number in self._stretches(covered, min(start, end)):
                count, holes = (high - low, [(low, high)]) if number is None else self._holes(number, low, high, most)
                missing += count
                gaps = _joined(gaps, holes, most)
            covered = max(covered, stop)
        return missing, gaps[:most]

    def _stretches(self, begin: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield the parts of [begin, end) in order: begin, end, and number of the block that has it, or None."""
        place = begin
        for number in sorted(self._blocks):
            low, high = max(begin, number * _BLOCK), min(end, (number + 1) * _BLOCK)
            if low < high:
                yield place, low, None
                yield low, high, number
                place = high
        if place < end:
            yield place, end, None

    def _add_to_block(self, number: int, within: Ids) -> Ids:
        block = self._blocks.setdefault(number, np.zeros(_BLOCK // 8, dtype=np.uint8))
        byte, bit = within >> 3, np.left_shift(np.uint8(1), (within & 7).astype(np.uint8))
        present: Ids = within[(block[byte] & bit) != 0]
        starts = np.flatnonzero(np.diff(byte, prepend=-1))
        block[byte[starts]] |= np.bitwise_or.reduceat(bit, starts)
        self.count += within.size - present.size
        return present

    def _holes(self, number: int, low: int, high: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        bits = np.unpackbits(self._blocks[number], bitorder="little")
        here = bits[low - number * _BLOCK : high - number * _BLOCK]
        missing = here.size - int(np.count_nonzero(here))
        if not missing:
            return 0, []
        # The difference of bools is "not equal"; bytes would wrap around.
        edges = np.flatnonzero(np.diff(here.astype(bool), prepend=True, append=True))[: 2 * most + 2] + low
        return missing, list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _joined(spans: list[tuple[int, int]], more: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return spans in order, adjacent ones merged; one more than `most` is kept, to merge with later ones."""
    for start, stop in more:
        if start >= stop:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        elif len(spans) <= most:
            spans.append((start, stop))
        else:
            break
    return spans


@dataclass
class _Epoch:
    """The part of one epoch that counts."""

    coverage: Coverage = field(default_factory=Coverage)
    repeats: int = 0
    skipped: int = 0
    duplicates: list[int] = field(default_factory=list)
    """The first positions that were taken more than once."""


@dataclass
class _Check:
    """The check of one member of every replica group, which must have taken every sample once.

    Without replication there is one member, and the check covers all files.
    """

    report: LedgerReport
    files: list[RankFile]
    spans: list[PassSpan]
    """All passes, oldest first."""
    member: int
    plan_at: Callable[[Cursor], Plan] | None
    epochs: dict[int, _Epoch] = field(default_factory=lambda: defaultdict(_Epoch))

    def run(self) -> None:
        """Check all files, and add what is found to the report."""
        for claims, span in self._claims():
            for line in claims.damage:
                self.report.add("damaged", line, life=span.life, rank=claims.file.world.rank)
            counting, epoch = self._counting(claims, span), self.epochs[span.epoch]
            if not span.sums:
                try:
                    duplicates = epoch.coverage.add(_keys(claims, span)[counting])
                except FormatError as fault:
                    rank = claims.file.world.rank
                    self.report.add("damaged", f"{claims.file.path}: {fault}", life=span.life, rank=rank)
                    return
                epoch.duplicates += duplicates[: max(0, MAX_LISTED - len(epoch.duplicates))].tolist()
                self.report.count("double", duplicates.size)
            self._count_others(claims, span, counting)
            if (plan := self._plan(span)) is not None:
                self._compare(claims, span, counting, plan)
        for span in self.spans:
            if span.sums:
                self._check_sums(span)
        self._add_epochs()
        self._add_duplicates()

    def _claims(self) -> Iterator[tuple[Claims, PassSpan]]:
        by_pass = {(span.life, span.number): span for span in self.spans}
        for first in range(0, len(self.files), _FILES_AT_ONCE):
            readers = map(read_claims, self.files[first : first + _FILES_AT_ONCE])
            for claims in chain.from_iterable(zip_longest(*readers)):
                if claims is not None:
                    span = by_pass[claims.file.life, claims.pass_number]
                    if self._is_of_member(claims.file.world.rank, span):
                        yield claims, span

    def _is_of_member(self, rank: int, span: PassSpan) -> bool:
        return rank % span.start.replication == self.member % span.start.replication

    def _plan(self, span: PassSpan) -> Plan | None:
        """Return the order of a pass, or None if it is unknown or depends on the world.

        Raises:
            CursorError: the plan and the ledger have different numbers of positions.
        """
        if self.plan_at is None or span.by_sample:
            return None
        plan, recorded = self.plan_at(span.start.cursor), span.start.cursor.epoch_size
        if len(plan) != recorded:
            raise CursorError(
                f"the ledger says that epoch {span.epoch} has {recorded} samples, and the plan has {len(plan)}: it is "
                "the plan of other data, or the ledger is damaged.",
                epoch_size=recorded,
                planned=len(plan),
            )
        return plan

    def _counting(self, claims: Claims, span: PassSpan) -> Ids:
        """Return the indexes of the claims that count."""
        counts = claims.positions < span.limit
        self.report.superseded += counts.size - int(np.count_nonzero(counts))
        if span.is_open:
            begun = counts & (claims.steps < span.complete_steps)
            self.report.in_flight += int(np.count_nonzero(counts)) - int(np.count_nonzero(begun))
            counts = begun
        outside = counts & (_keys(claims, span) >= span.start.cursor.epoch_size)
        reasons = repeat(f"the epoch has {span.start.cursor.epoch_size} samples")
        self._add_all("outside", claims, span, np.flatnonzero(outside), reasons)
        return np.flatnonzero(counts & ~outside)

    def _count_others(self, claims: Claims, span: PassSpan, counting: Ids) -> None:
        """Count the repeats and the skipped samples of claims that count."""
        epoch = self.epochs[span.epoch]
        if span.repeats_count:
            complete = span.complete_steps if span.is_open else math.inf
            epoch.repeats += sum(number for step, number in claims.repeats if step < complete)
        counts = set(counting.tolist()) if claims.skipped else set()
        for at, sample in claims.skipped.items():
            if at in counts:
                epoch.skipped += 1
                if span.repeats_count:  # the repeat in its place does not fill the last step
                    epoch.repeats -= 1
                if len(self.report.skipped) < MAX_LISTED:
                    facts = {"epoch": span.epoch, "shard": sample.shard, "cause": sample.cause, **_claim(claims, at)}
                    self.report.skipped.append(facts)

    def _compare(self, claims: Claims, span: PassSpan, counting: Ids, plan: Plan) -> None:
        expected = plan.ids_at(claims.positions[counting])
        self.report.compared += expected.size
        wrong = np.flatnonzero(expected != claims.ids[counting])
        reasons = (f"the plan has sample {planned} there" for planned in expected[wrong])
        self._add_all("wrong_id", claims, span, counting[wrong], reasons)

    def _add_all(self, kind: str, claims: Claims, span: PassSpan, places: Ids, reasons: Iterable[str]) -> None:
        """Count problems of claims at these places, and list the first of them, each with its reason."""
        for at, reason in zip(places[:MAX_LISTED].tolist(), reasons, strict=False):
            claim = _claim(claims, at)
            message = f"position {claim['position']} of epoch {span.epoch}: taken as {_describe(claim)}; {reason}."
            self.report.add(kind, message, epoch=span.epoch, **claim)
        self.report.count(kind, max(0, places.size - MAX_LISTED))

    def _add_duplicates(self) -> None:
        """Read the files again, for the ranks that took the positions that were taken more than once."""
        if not any(epoch.duplicates for epoch in self.epochs.values()):
            return
        takers: dict[tuple[int, int], list[dict[str, int]]] = defaultdict(list)
        report, self.report = self.report, LedgerReport("")  # other problems were added in the first pass
        for claims, span in self._claims():
            counting, keys = self._counting(claims, span), _keys(claims, span)
            for at in counting[np.isin(keys[counting], self.epochs[span.epoch].duplicates)].tolist():
                takers[span.epoch, int(keys[at])].append(_claim(claims, at))
        self.report = report
        for (epoch, _), claimed in sorted(takers.items())[:MAX_LISTED]:
            listed = ", ".join(_describe(claim) for claim in claimed)
            where = f"position {claimed[0]['position']} of epoch {epoch}"
            report.add(
                "double", f"{where} was taken {len(claimed)} times: as {listed}.", times=0, epoch=epoch, claims=claimed
            )

    # ------------------------------------------------------------------ running sums

    def _check_sums(self, span: PassSpan) -> None:
        """Compare the counting part of a pass with the plan, cover its positions, and count its repeats.

        Without a plan only the number of samples is compared.
        """
        begin, where = span.start.cursor.samples, f"life {span.life}, pass {span.number}"
        steps, end = _extent(span)
        if not steps:
            return
        if span.by_sample:
            self.report.add("sum", f"{where}: a sum of positions proves nothing in MosaicML's orders.", life=span.life)
            return
        total = Sum()
        for rank, sums in span.sums:
            if not self._is_of_member(rank, span):
                continue
            if steps not in sums:
                self.report.add(
                    "unmarked",
                    f"{where}: rank {rank} wrote no sum after step {steps}, up to which the pass counts; call `mark` "
                    "on every rank when a state is saved.",
                    life=span.life,
                    rank=rank,
                    steps=steps,
                )
                return
            total += sums[steps]
        facts = {"life": span.life, "epoch": span.epoch, "begin": begin, "end": end}
        positions = f"positions {begin} to {end - 1} of epoch {span.epoch}"
        plan = self._plan(span)
        if total.samples != end - begin:
            self.report.add("sum", f"{where}: {total.samples} samples were taken of {positions}.", **facts)
        elif plan is not None:
            planned = Sum()
            for first in range(begin, end, _POSITIONS_AT_ONCE):
                some = np.arange(first, min(first + _POSITIONS_AT_ONCE, end), dtype=np.int64)
                planned += sum_of(span.epoch, some, plan.ids_at(some))
            self.report.compared += end - begin
            if total.value != planned.value:
                self.report.add("sum", f"{where}: other samples were taken than {positions} have.", **facts)
        epoch = self.epochs[span.epoch]
        self.report.count("double", epoch.coverage.add_span(begin, end))
        epoch.repeats += total.repeats if span.repeats_count else 0

    # ------------------------------------------------------------------ epochs

    def _add_epochs(self) -> None:
        """Add each epoch, and its gaps, to the report."""
        counting = [span for span in self.spans if span.limit > span.start.cursor.samples or span.is_last]
        if not counting:
            return
        origin = counting[0].start.cursor
        if origin.epoch or origin.samples:
            self.report.notes.append(
                f"the ledger begins at sample {origin.samples} of epoch {origin.epoch}; not before."
            )
        by_epoch: dict[int, list[PassSpan]] = {}
        for span in counting:
            by_epoch.setdefault(span.epoch, []).append(span)
        for before, after in pairwise(sorted(by_epoch)):
            if after > before + 1:
                size = by_epoch[before][-1].start.cursor.epoch_size
                message = f"epochs {before + 1} to {after - 1} were never begun."
                self.report.add("gap", message, times=(after - before - 1) * size, epoch=before + 1)
        for epoch, spans in sorted(by_epoch.items()):
            self._add_epoch(spans, origin.samples if epoch == origin.epoch else 0)

    def _add_epoch(self, spans: list[PassSpan], begin: int) -> None:
        last, report = spans[-1], self.report
        cursor, found = last.start.cursor, self.epochs[last.epoch]
        epoch, size, taken = last.epoch, cursor.epoch_size, found.coverage.count
        counts = {"taken": taken - found.skipped, "repeats": found.repeats, "skipped": found.skipped}
        if last.by_sample and (last.is_open or begin):
            # Only a plan for that world knows which samples lie before a cursor, so only duplicates can be found.
            report.notes.append(f"epoch {epoch}: MosaicML's order, and incomplete here: gaps are not looked for.")
            report.epochs.append(EpochReport(epoch, size, taken, is_finished=False, **counts))
            return
        end = size
        if last.is_open:  # only up to the last complete step
            end = min(size, cursor.samples + last.complete_steps * last.global_batch)
        elif last.start.tail == "drop" and not last.by_sample:
            end = size - (size - cursor.samples) % last.global_batch
        missing, gaps = found.coverage.gaps(begin, end, MAX_LISTED)
        report.epochs.append(EpochReport(epoch, size, end - begin, is_finished=not last.is_open, **counts))
        if last.start.tail == "drop" and not last.is_open and end < size:
            report.notes.append(f"epoch {epoch}: its last {size - end} samples are left out, as `tail='drop'` asks.")
        for start, stop in gaps:
            self._add_gap(spans, start, stop)
        report.count("gap", missing - sum(stop - start for start, stop in gaps))

    def _add_gap(self, spans: list[PassSpan], start: int, stop: int) -> None:
        span = next((one for one in reversed(spans) if one.start.cursor.samples <= start), spans[-1])
        what, rank = ("sample" if span.by_sample else "position"), None
        world, begin = span.worlds[0], span.start.cursor.samples
        if not span.by_sample and span.start.replication == 1 and start >= begin:
            host = start % world.num_hosts
            # Number of the position among those of its host after the cursor.
            number = (start - begin - (host - begin) % world.num_hosts) // world.num_hosts
            owner = (host, number % world.ranks_on_host)  # had to take the position, if it left a file
            rank = next((other.rank for other in span.worlds if (other.host, other.host_rank) == owner), None)
        where = f"{what} {start}" if stop == start + 1 else f"{what}s {start} to {stop - 1}"
        who = "" if rank is None else f" by rank {rank}" if stop == start + 1 else f", the first by rank {rank}"
        due = "" if span.by_sample else f"; due in life {span.life}{who}"
        facts = {"epoch": span.epoch, "begin": start, "end": stop, "life": span.life, "rank": rank}
        self.report.add("gap", f"{where} of epoch {span.epoch}: never taken{due}.", times=stop - start, **facts)


def _keys(claims: Claims, span: PassSpan) -> Ids:
    """Return the values that must be taken once: positions, or sample ids if positions depend on the world."""
    return claims.ids if span.by_sample else claims.positions


def _claim(claims: Claims, at: int) -> dict[str, int]:
    return {
        "position": int(claims.positions[at]),
        "sample_id": int(claims.ids[at]),
        "rank": claims.file.world.rank,
        "life": claims.file.life,
        "step": int(claims.steps[at]),
    }


def _describe(claim: dict[str, int]) -> str:
    return f"sample {claim['sample_id']} by rank {claim['rank']} at step {claim['step']} in life {claim['life']}"


def _extent(span: PassSpan) -> tuple[int, int]:
    """Return the number of steps of a pass that count, and the end of their positions."""
    begin, size, batch = span.start.cursor.samples, span.start.cursor.epoch_size, span.global_batch
    if span.repeats_count and span.has_ended:
        left = size - begin
        return (left // batch, size - left % batch) if span.start.tail == "drop" else (-(-left // batch), size)
    if span.repeats_count:
        return span.complete_steps, min(size, begin + span.complete_steps * batch)
    steps = max(0, -(-(span.limit - begin) // batch))
    return steps, min(span.limit, begin + steps * batch)
