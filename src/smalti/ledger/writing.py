"""Writing a ledger: each rank appends to its own file, without locks and without communication."""

import os
import re
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from smalti.cursor import WINDOW
from smalti.errors import ArgumentError, StoreError, StoreExists
from smalti.ledger import records
from smalti.ledger.records import Ids, PassStart, SkippedSample, Sum
from smalti.world import World

_STEPS_PER_SUM = 64  # summed together: numpy's calls cost more than the numbers of one step
MODES = ("steps", "digest")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/|dbfs:", re.IGNORECASE)  # a Path has one slash of two
LIFE_FOLDER = re.compile(r"life-(\d{5,9})")


def claim_life(folder: str | Path) -> int:
    """Create the folder of a new life of the run, and return its number, which is unique and counts from 1.

    One process of a run claims the number and shares it with the other ranks.

    Args:
        folder: Folder of the ledger.

    Raises:
        StoreError: the folder cannot be written.

    Examples:
        >>> claim_life("runs/7/ledger"), claim_life("runs/7/ledger")
        (1, 2)
    """
    check_folder(folder)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        life = max((int(m[1]) for m in map(LIFE_FOLDER.fullmatch, os.listdir(folder)) if m), default=0)  # noqa: PTH208 - only names are needed
        while True:
            life += 1
            with suppress(FileExistsError):  # another process was faster
                _life_folder(folder, life).mkdir()
                return life
    except OSError as fault:
        raise StoreError(f"ledger {folder}: no life can be claimed there: {fault.strerror}.") from fault


def check_folder(folder: str | Path) -> None:
    """Check that a ledger's place is a path: as a path, the address of a store would be a folder in this one.

    Raises:
        StoreError: it is an address.
    """
    if _ADDRESS.match(str(folder)):
        raise StoreError(
            f"the ledger {folder} is an address, and a ledger is written and checked in a local folder: give a path. "
            "`smalti ledger check` fetches a ledger from a store; runs of `launch` and `train` with `log_samples` put "
            "theirs there."
        )


class LedgerWriter:
    """A writer of one rank's file of one life; not thread-safe. A context manager.

    Lines are passed to the operating system before a call returns: they survive the death of this process, but not a
    crash of the machine.

    Args:
        folder: the run's ledger, which all ranks may share.
        life: number of this start of the run, the same on all ranks; see `claim_life`.
        world: the world of the run, and the place of this rank in it.
        mode: `steps` writes a line for each step; `digest` keeps a running sum of 128 bits, and writes it at `mark` and
            at an epoch's end. It proves the same, but does not show which sample was wrong.

    Raises:
        StoreExists: this rank's file of that life exists.
        StoreError: the file cannot be written.

    Examples:
        >>> dataset = StreamingDataset(remote="s3://bucket/users", shuffle=True)
        >>> with LedgerWriter("runs/7/ledger", life=claim_life("runs/7/ledger"), world=World()) as ledger:
        ...     steps = len(list(StreamingDataLoader(dataset, batch_size=5, ledger=ledger)))
        >>> check_ledger("runs/7/ledger").ok
        True
    """

    def __init__(self, folder: str | Path, *, life: int, world: World, mode: str = "steps") -> None:
        if mode not in MODES:
            raise ArgumentError(f"`mode` must be one of {', '.join(MODES)}, found {mode!r}.")
        check_folder(folder)
        life_folder = _life_folder(Path(folder), life)
        self.path = life_folder / f"rank-{world.rank:05d}.jsonl"
        self._is_digest = mode == "digest"
        self.num_passes = 0
        """Number of passes begun."""
        self._steps = 0
        self._sum = Sum()
        self._unsummed: list[tuple[int, Ids, Ids]] = []
        self._descriptor = -1
        try:
            life_folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as fault:
            raise StoreExists(
                f"ledger {self.path}: rank {world.rank} has written life {life} before; each start of a run needs a "
                "number of its own, from `claim_life`.",
                path=str(self.path),
            ) from fault
        except OSError as fault:
            raise self._failed(fault) from fault
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._append(records.head_line(life, world))

    def begin_pass(self, start: PassStart) -> None:
        """Record that an iteration begins. It supersedes samples after its cursor that were taken before.

        Raises:
            ValueError: the mode is `digest` and the order is MosaicML's, whose positions depend on the world.
        """
        if self._is_digest and start.cursor.algorithm != WINDOW:
            raise ArgumentError(
                f"mode 'digest' is not for MosaicML's order {start.cursor.algorithm!r}: a sum of its positions proves "
                "nothing; use mode 'steps'."
            )
        self._append(records.pass_line(self.num_passes, start))
        self.num_passes += 1
        self._steps, self._sum, self._unsummed = 0, Sum(), []

    def record(self, step: int, epoch: int, positions: Ids, ids: Ids, skipped: Sequence[SkippedSample] = ()) -> None:
        """Record the samples of one step, before the step takes effect.

        Args:
            step: steps since the pass began, 0-based.
            epoch: epoch of the pass.
            positions: int64, shape (n,): positions in the epoch's order, -1 for a repeat.
            ids: int64, shape (n,): sample ids.
            skipped: planned samples of the step that were not read; none of them is among `positions`.
        """
        positions, ids = np.asarray(positions), np.asarray(ids)
        if not self.num_passes or positions.ndim != 1 or positions.shape != ids.shape:
            raise ArgumentError(
                f"`positions` and `ids` of a step must be vectors of one length, after `begin_pass`; found shapes "
                f"{positions.shape} and {ids.shape}, and {self.num_passes} passes begun."
            )
        line = records.skipped_line(step, epoch, skipped) if skipped else b""
        if self._is_digest:
            if skipped:
                self._append(line)
                positions = np.append(positions, np.array([each.position for each in skipped], np.int64))
                ids = np.append(ids, np.array([each.sample_id for each in skipped], np.int64))
            self._steps = step + 1
            self._unsummed.append((epoch, positions.copy(), ids.copy()))  # the caller may reuse the arrays
            if len(self._unsummed) == _STEPS_PER_SUM:
                self._update_sum()
        else:
            self._append(line + records.step_line(step, epoch, positions, ids))

    def mark(self) -> None:
        """Write the running sum in mode `digest`; call it on every rank after a step whose state is saved."""
        if self._is_digest and self._steps:
            self._update_sum()
            self._append(records.sum_line(self._steps, self._sum))

    def end_pass(self) -> None:
        """Record that the iteration reached the end of its epoch."""
        self.mark()
        self._append(records.end_line(self.num_passes - 1))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._close()
        self._descriptor = -1

    def __enter__(self) -> "LedgerWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _update_sum(self) -> None:
        """Add the steps that were recorded since the last call to the sum."""
        for epoch in {epoch for epoch, _, _ in self._unsummed}:
            parts = [(positions, ids) for its_epoch, positions, ids in self._unsummed if its_epoch == epoch]
            positions, ids = map(np.concatenate, zip(*parts, strict=True))
            self._sum += records.sum_of(epoch, positions, ids)
        self._unsummed = []

    def _append(self, line: bytes) -> None:
        unwritten = memoryview(line)
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
        except OSError as fault:
            raise self._failed(fault) from fault

    def _failed(self, fault: OSError) -> StoreError:
        return StoreError(
            f"ledger {self.path}: cannot be written: {fault.strerror}. Make room, or train without a ledger.",
            path=str(self.path),
        )


def _life_folder(folder: Path, life: int) -> Path:
    return folder / f"life-{life:05d}"
