"""Writing a ledger: each rank appends to a file of its own; nothing is locked, and nothing is said to other ranks."""

import os
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import StoreError, StoreExists
from smalti.ledger.records import MOSAIC_ORDERS, PassStart, end_line, head_line, pass_line, step_line, sum_line
from smalti.ledger.sums import Ids, Sum, sum_of
from smalti.world import World

_SUMMED_AT_ONCE = 64  # steps
MODES = ("steps", "digest")
LIFE_FOLDER = re.compile(r"life-(\d{5,9})")


def claim_life(folder: str | Path) -> int:
    """The number of this start of the run, counting from 1, which no other start will get.

    One process claims it and tells the other ranks; a run's ranks must agree.

    Raises:
        StoreError: the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        life = max((int(m[1]) for m in map(LIFE_FOLDER.fullmatch, os.listdir(folder)) if m), default=0) + 1  # noqa: PTH208 - names are all that is wanted
        while not _made(_life_folder(folder, life)):
            life += 1
    except OSError as fault:
        raise StoreError(f"ledger {folder}: no life can be claimed there: {fault.strerror}.") from fault
    return life


class LedgerWriter:
    """One rank's file of one life; not thread-safe. A context manager.

    A line is with the operating system when a call returns: it survives the death of this process, though not of the
    machine.

    Args:
        folder: the run's ledger, on a disk that all ranks may share.
        life: number of this start of the run, the same on all ranks; see `claim_life`.
        world: who this rank is.
        mode: `steps` writes a line for each step; `digest` keeps a running sum of 128 bits, and writes it at `mark` and
            at an epoch's end. It proves the same, but cannot say which sample was wrong.

    Raises:
        StoreExists: this rank has written that life before.
        StoreError: the file cannot be written.
    """

    def __init__(self, folder: str | Path, *, life: int, world: World, mode: str = "steps") -> None:
        if mode not in MODES:
            raise ValueError(f"`mode` must be one of {', '.join(MODES)}, found {mode!r}.")
        within = _life_folder(Path(folder), life)
        self.path = within / f"rank-{world.rank:05d}.jsonl"
        self._sums = mode == "digest"
        self._passes = self._steps = 0
        self._sum = Sum()
        self._unsummed: list[tuple[int, Ids, Ids]] = []
        self._descriptor = -1
        try:
            within.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as fault:
            raise StoreExists(
                f"ledger {self.path}: rank {world.rank} has written life {life} before; each start of a run needs a "
                "number of its own, from `claim_life`.",
                path=str(self.path),
            ) from fault
        except OSError as fault:
            raise self._failed(fault) from fault
        self._close = weakref.finalize(self, os.close, self._descriptor)  # also where nobody closes it
        self._append(head_line(life, world))

    @property
    def num_passes(self) -> int:
        """Passes begun; the last of them stands open."""
        return self._passes

    def begin_pass(self, start: PassStart) -> None:
        """Records that an iteration begins; what was taken before beyond its cursor is superseded by it.

        Raises:
            ValueError: the mode is `digest` and the order MosaicML's, in which each world has positions of its own.
        """
        if self._sums and start.cursor.algorithm in MOSAIC_ORDERS:
            raise ValueError(
                f"mode 'digest' is not for MosaicML's order {start.cursor.algorithm!r}: a sum of its positions proves "
                "nothing; use mode 'steps'."
            )
        self._append(pass_line(self._passes, start))
        self._passes += 1
        self._steps, self._sum, self._unsummed = 0, Sum(), []

    def record(self, step: int, epoch: int, positions: Ids, ids: Ids) -> None:
        """Records what one step takes, before the step has an effect.

        Args:
            step: steps since the pass began, 0-based.
            epoch: epoch of the pass.
            positions: int64, shape (n,): places in the epoch's order, -1 for a repeat.
            ids: int64, shape (n,): sample ids.
        """
        positions, ids = np.asarray(positions), np.asarray(ids)
        if not self._passes or positions.ndim != 1 or positions.shape != ids.shape:
            raise ValueError(
                f"`positions` and `ids` of a step must be vectors of one length, after `begin_pass`; found shapes "
                f"{positions.shape} and {ids.shape}, and {self._passes} passes begun."
            )
        if self._sums:
            self._steps = step + 1
            self._unsummed.append((epoch, positions.copy(), ids.copy()))  # whoever made them may use them again
            if len(self._unsummed) == _SUMMED_AT_ONCE:
                self._settle()
        else:
            self._append(step_line(step, epoch, positions, ids))

    def mark(self) -> None:
        """Writes the running sum, on every rank after the same step, where a state is saved from which to go on."""
        if self._sums and self._steps:
            self._settle()
            self._append(sum_line(self._steps, self._sum))

    def end_pass(self) -> None:
        """Records that the iteration came to its epoch's end."""
        self.mark()
        self._append(end_line(self._passes - 1))

    def close(self) -> None:
        """Closes the file; calling it twice is harmless."""
        self._close()
        self._descriptor = -1

    def __enter__(self) -> "LedgerWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _settle(self) -> None:
        """Sums what was recorded since; together, for numpy's calls cost more than a step's numbers."""
        for epoch in {epoch for epoch, _, _ in self._unsummed}:
            parts = [(positions, ids) for of, positions, ids in self._unsummed if of == epoch]
            positions, ids = map(np.concatenate, zip(*parts, strict=True))
            self._sum += sum_of(epoch, positions, ids)
        self._unsummed = []

    def _append(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as fault:
            raise self._failed(fault) from fault

    def _failed(self, fault: OSError) -> StoreError:
        return StoreError(
            f"ledger {self.path}: cannot be written: {fault.strerror}. Make room, or leave the ledger off.",
            path=str(self.path),
        )


def _life_folder(folder: Path, life: int) -> Path:
    return folder / f"life-{life:05d}"


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True
