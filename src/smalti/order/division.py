"""Division: the positions of an epoch's global order that one rank takes at each step.

Global step s after cursor k is the span [k + s*B, k + (s+1)*B) for the global batch B. Position p goes to host p % H;
a host's n-th position since the cursor goes to its rank n % R. So every rank's positions are an arithmetic progression,
and resuming is arithmetic. With H = 2 hosts, R = 2 ranks each, cursor k = 0 and 1 sample per rank and step:

    position      0        1        2        3     |  4        5        6        7
    goes to     h0 r0    h1 r0    h0 r1    h1 r1   | h0 r0    h1 r0    h0 r1    h1 r1
                ------------- step 0 ------------- | ------------- step 1 ------------

All ranks take the same number of steps, always.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.errors import ArgumentError
from smalti.world import World

TAILS = ("pad", "short", "drop")


@dataclass(frozen=True)
class StepBatch:
    """The positions that one rank reads at one step."""

    step: int
    """Steps since the cursor, 0-based."""
    lookup: NDArray[np.int64]
    """Positions to read, each inside the epoch, including repeats."""
    positions: NDArray[np.int64]
    """The same positions, with -1 where the sample is a repeat that only pads the step."""
    epoch: int = 0
    """The epoch that they are positions of."""


@dataclass(frozen=True)
class Division:
    """The part of an epoch that one rank reads, from a cursor to the epoch's end. Pure.

    Examples:
        >>> division = Division(epoch_size=100, start=0, batch_size=8, world=World.flat(rank=0, num_ranks=4))
        >>> division.num_steps, division.num_repeats
        (4, 28)
    """

    epoch_size: int
    """Samples of the epoch, N."""
    start: int
    """Cursor: samples of the epoch consumed before."""
    batch_size: int
    """Samples per rank and step."""
    world: World
    tail: str = "pad"
    """Treatment of an incomplete last step: `pad` fills it with the fewest repeats, from the epoch's start; `short`
    leaves it short (a rank without samples gets one marked repeat); `drop` leaves it out."""
    epoch: int = 0
    """The number of the epoch, which nothing here depends on."""

    def __post_init__(self) -> None:
        check_choice("tail", self.tail, TAILS)
        if self.batch_size < 1:
            raise ArgumentError(f"`batch_size` must be at least 1, found {self.batch_size}.")
        if not 0 <= self.start <= self.epoch_size:
            raise ArgumentError(f"`start` must lie in [0, {self.epoch_size}], found {self.start}.")

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks, B."""
        return self.batch_size * self.world.num_ranks

    @property
    def num_steps(self) -> int:
        """Steps from the cursor to the epoch's end, equal on all ranks."""
        left = self.epoch_size - self.start
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    @property
    def num_repeats(self) -> int:
        """Samples over all ranks that are read again to fill the last step with `pad`."""
        return max(0, self.num_steps * self.global_batch - (self.epoch_size - self.start)) if self.tail == "pad" else 0

    def steps(self, first: int, stop: int, stride: int = 1) -> list[StepBatch]:
        """Return this rank's positions at steps range(first, stop, stride), up to the epoch's end."""
        world = self.world
        first_of_host = self.start + (world.host - self.start) % world.num_hosts
        first_position = first_of_host + world.host_rank * world.num_hosts
        numbers = np.arange(first, min(stop, self.num_steps), stride, dtype=np.int64)
        taken = numbers[:, None] * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        virtual = first_position + taken * world.num_ranks
        inside = virtual < self.epoch_size
        lookup = np.where(inside, virtual, (virtual - self.epoch_size) % max(1, self.epoch_size))
        positions = np.where(inside, virtual, -1)
        kept = np.full(numbers.size, self.batch_size)
        if self.tail != "pad":
            kept = np.maximum(1, inside.sum(axis=1))
        return [
            StepBatch(int(step), lookup[row, :count], positions[row, :count], self.epoch)
            for row, (step, count) in enumerate(zip(numbers, kept, strict=True))
        ]
