"""The order of samples that a run was trained on, read back from its ledger."""

from collections import defaultdict
from itertools import islice
from pathlib import Path

from smalti.errors import TrainingError
from smalti.ledger.reading import order_passes, read_claims, read_files
from smalti.ledger.report import LedgerReport

_MAX_MISSING_LISTED = 100  # positions in an error's facts


def read_sample_order(folder: str | Path) -> dict[int, list[int]]:
    """Return the sample ids that each epoch was trained on, in the epoch's order, over all lives of the run.

    Steps that a later life took again count once, and steps that not all ranks had begun when the run was killed do not
    count. The last epoch may be unfinished; it then ends at its last position. The ledger must hold steps (not sums) of
    an order whose positions do not depend on the world, read without replication.

    Raises:
        StoreNotFound: there is no ledger.
        StoreError: the ledger cannot be read.
        TrainingError: a position was taken twice or never, or the ledger is damaged.
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
    taken: dict[int, dict[int, int]] = defaultdict(dict)
    for file in files:
        for claims in read_claims(file):
            if claims.damage:
                raise _damaged(claims.damage[0])
            span = passes[claims.file.life, claims.pass_number]
            counts = claims.positions < span.limit
            if span.is_open:
                counts &= claims.steps < span.complete_steps
            for position, sample_id in zip(claims.positions[counts].tolist(), claims.ids[counts].tolist(), strict=True):
                _add(taken[span.epoch], span.epoch, position, sample_id)
    epoch_size = max((span.start.cursor.epoch_size for span in passes.values()), default=0)
    last = max(taken, default=0)
    return {
        epoch: _in_order(epoch, ids, size=epoch_size if epoch < last else max(ids) + 1)
        for epoch, ids in sorted(taken.items())
    }


def _add(taken: dict[int, int], epoch: int, position: int, sample_id: int) -> None:
    if position in taken:
        raise TrainingError(
            f"position {position} of epoch {epoch} was taken twice: as sample {taken[position]} and as sample "
            f"{sample_id}.",
            epoch=epoch,
            position=position,
            sample_ids=(taken[position], sample_id),
        )
    taken[position] = sample_id


def _in_order(epoch: int, taken: dict[int, int], *, size: int) -> list[int]:
    num_missing = size - sum(position < size for position in taken)
    if num_missing:
        # A damaged ledger may contain any size, so missing positions are not all listed.
        missing = tuple(islice((place for place in range(size) if place not in taken), _MAX_MISSING_LISTED))
        raise TrainingError(
            f"epoch {epoch} lacks {num_missing} of {size} positions, the first is {missing[0]}: samples "
            "were skipped, or a rank's file is missing.",
            epoch=epoch,
            missing=missing,
        )
    return [taken[position] for position in sorted(taken)]


def _damaged(problem: str) -> TrainingError:
    return TrainingError(f"{problem} The order of samples cannot be read from a damaged ledger: restore the file.")
