"""The ledger: which sample ids a run was trained on, written as it happens by every rank, and read back as one order.

    samples/<life>-rank<r>.jsonl   first line: where the life began; then one line per step

A life is one start of the run. A later life goes on from a checkpoint: steps that an earlier one did beyond it were
rolled back, and are superseded. What remains must be every sample of every finished epoch, once.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smalti.errors import TrainingError
from smalti.torch.train.events import Event, LineLog, read_lines

FOLDER = "samples"
_FILE = re.compile(r"(\d+)-rank(\d+)\.jsonl")
_HEAD = {"life": int, "start_step": int, "num_ranks": int, "epoch_size": int}
_STEP = {"life": int, "step": int, "epoch": int, "positions": list, "ids": list}
_ADVICE = "What the run was trained on cannot be told from a damaged ledger: restore the file."


class Ledger:
    """One rank's part of the ledger in one life."""

    def __init__(self, run_dir: Path, *, life: int, rank: int) -> None:
        self._log = LineLog(run_dir / FOLDER / f"{life}-rank{rank}.jsonl")
        self._life = life

    def begin(self, *, step: int, num_ranks: int, epoch_size: int) -> None:
        """Records that this life goes on after `step` steps, in epochs of `epoch_size` samples."""
        head = {"life": self._life, "start_step": step, "num_ranks": num_ranks, "epoch_size": epoch_size}
        self._log.append(head)

    def record(self, step: int, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Records the samples of one step, padding left out, before the step takes effect."""
        real = positions >= 0
        self._log.append(
            {
                "life": self._life,
                "step": step,
                "epoch": epoch,
                "positions": positions[real].tolist(),
                "ids": ids[real].tolist(),
            }
        )

    def close(self) -> None:
        """Closes the file."""
        self._log.close()


def read_sample_order(run_dir: str | Path) -> dict[int, list[int]]:
    """The sample ids that each epoch was trained on, in the epoch's global order, over all lives of the run.

    The last epoch may be unfinished; it then ends at the last position that was consumed.

    Raises:
        TrainingError: a position was consumed twice, or one is missing; or a line of the ledger is damaged.
    """
    folder = Path(run_dir) / FOLDER
    lives, steps = _collect(folder)
    if not lives:
        raise TrainingError(f"{folder} holds no ledger; train with `log_samples=True`.", run_dir=str(run_dir))
    order: dict[int, dict[int, int]] = defaultdict(dict)
    for record in steps:
        if _rolled_back(record, lives):
            continue
        for position, sample_id in zip(record["positions"], record["ids"], strict=True):
            _take(order[record["epoch"]], record, position, sample_id)
    whole = max(head["epoch_size"] for head in lives.values())
    last = max(order, default=0)
    return {
        epoch: _in_order(epoch, taken, size=whole if epoch < last else max(taken) + 1)
        for epoch, taken in sorted(order.items())
    }


def _collect(folder: Path) -> tuple[dict[int, Event], list[Event]]:
    """The first line of each life, and the records of all steps."""
    lives: dict[int, Event] = {}
    steps: list[Event] = []
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in files:
        if not _FILE.fullmatch(path.name):
            continue
        for number, record in enumerate(read_lines(path, advice=_ADVICE), 1):
            is_head = "start_step" in record
            _check_fields(record, _HEAD if is_head else _STEP, f"{path}, line {number}")
            if is_head:
                lives[record["life"]] = record
            else:
                steps.append(record)
    return lives, steps


def _check_fields(record: Event, kinds: Mapping[str, type], where: str) -> None:
    wrong = [name for name, kind in kinds.items() if type(record.get(name)) is not kind]
    if not wrong and kinds is _STEP:
        numbers = [*record["positions"], *record["ids"]]
        whole = all(type(number) is int for number in numbers) and len(record["positions"]) == len(record["ids"])
        wrong = [] if whole else ["positions", "ids"]
    if wrong:
        raise TrainingError(f"{where} is damaged: it has no valid {' and '.join(wrong)}. {_ADVICE}", where=where)


def _rolled_back(record: Event, lives: dict[int, Event]) -> bool:
    return any(life > record["life"] and head["start_step"] < record["step"] for life, head in lives.items())


def _take(taken: dict[int, int], record: Event, position: int, sample_id: int) -> None:
    if position in taken:
        raise TrainingError(
            f"position {position} of epoch {record['epoch']} was consumed twice: as sample "
            f"{taken[position]} and, in life {record['life']} at step {record['step']}, as sample {sample_id}.",
            epoch=record["epoch"],
            position=position,
            sample_ids=(taken[position], sample_id),
        )
    taken[position] = sample_id


def _in_order(epoch: int, taken: dict[int, int], *, size: int) -> list[int]:
    num_missing = size - sum(0 <= position < size for position in taken)
    if num_missing:
        # A damaged ledger may name any size: the positions are not all listed.
        missing = tuple(islice((position for position in range(size) if position not in taken), 100))
        raise TrainingError(
            f"epoch {epoch} lacks {num_missing} of {size} positions, the first is {missing[0]}: samples "
            "were skipped, or a rank's ledger is missing.",
            epoch=epoch,
            missing=missing,
        )
    return [taken[position] for position in sorted(taken)]
