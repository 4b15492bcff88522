"""Recording of a loader's steps in a ledger, when the consumer takes them.

Steps are planned a second time here instead of being sent by the workers.
"""

from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

from smalti.dataset.order import Planned, Reading
from smalti.errors import SmaltiError, StoreError, WorldMismatch
from smalti.ledger import LedgerWriter, PassStart, claim_life
from smalti.world import World

_STEPS_AT_ONCE = 64  # planned together: cheap per step, and little memory


def open_ledger(folder: str | Path, world: World, mode: str = "steps") -> LedgerWriter:
    """Return a writer of this rank's file of a new life of the run. Collective if a process group is running.

    Raises:
        StoreError: the folder cannot be written.
        WorldMismatch: there are several ranks and no process group in which they could agree on the life's number.
    """
    if dist.is_available() and dist.is_initialized():
        return LedgerWriter(folder, life=_agreed_life(folder), world=world, mode=mode)
    if world.num_ranks != 1:
        raise WorldMismatch(
            f"a ledger of {world.num_ranks} ranks without a process group: they cannot agree on the number of the "
            "run's life. Make the group first, or pass as `ledger` a LedgerWriter(folder, life=..., world=...) whose "
            "life one process got from `claim_life` and shared with the others.",
            num_ranks=world.num_ranks,
        )
    return LedgerWriter(folder, life=claim_life(folder), world=world, mode=mode)


class PassRecorder:
    """A recorder of one pass; call `take` once for each batch, in order."""

    def __init__(self, writer: LedgerWriter, reading: Reading) -> None:
        start, options = reading.this_pass.start, reading.options
        writer.begin_pass(PassStart(start, reading.batch_size, options.last_step, options.replication))
        self._writer, self._number = writer, writer.num_passes
        self._epoch, self._planned = start.epoch, _all_steps(reading)

    def take(self) -> None:
        """Record the next step's samples, before the step takes effect.

        Raises:
            SmaltiError: another iteration with the same ledger has begun since; a ledger records one at a time.
        """
        if self._writer.num_passes != self._number:
            raise SmaltiError(
                f"ledger {self._writer.path}: a step of epoch {self._epoch} was taken after another iteration began; "
                "a run with a ledger reads one epoch after the other. Give loaders that read in turns ledgers of their "
                "own.",
                epoch=self._epoch,
            )
        step, ids = next(self._planned)
        self._writer.record(step.step, self._epoch, step.positions, ids)

    def end(self) -> None:
        """Record that the epoch was read to its end."""
        self._writer.end_pass()


def _all_steps(reading: Reading) -> Iterator[Planned]:
    for first in range(0, reading.division.num_steps, _STEPS_AT_ONCE):
        yield from reading.steps(first, first + _STEPS_AT_ONCE)


def _agreed_life(folder: str | Path) -> int:
    """Return the number that rank 0 claims. Its failure is raised on every rank, as the others would wait for it."""
    outcome: list[int | str | None] = [None]
    if dist.get_rank() == 0:
        try:
            outcome = [claim_life(folder)]
        except StoreError as fault:
            outcome = [str(fault)]
    dist.broadcast_object_list(outcome, src=0)
    life = outcome[0]
    if not isinstance(life, int):
        raise StoreError(f"the first rank could not number this life of the run: {life}")
    return life
