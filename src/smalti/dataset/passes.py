"""What a dataset and the loaders' views of it share: the chosen order, where iterations stand, what was opened."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from smalti.cursor import WINDOW, Cursor
from smalti.stream import OpenStreams, Version
from smalti.world import World

DEFAULT_SEED = 9176  # MosaicML Streaming's default, so that a notebook that names none means the same


@dataclass(frozen=True)
class OrderOptions:
    """What the user chose about the order; None lets the saved cursor, or else the default, decide."""

    shuffle: bool = False
    seed: int = DEFAULT_SEED
    canonical_nodes: int | None = None
    block_size: int | None = None
    tail: str | None = None
    """What becomes of an incomplete last step; None for `pad`, with MosaicML's orders `short`."""
    algorithm: str = WINDOW
    """Our order, or one of MosaicML's."""
    partition: str = "relaxed"
    """How MosaicML's orders are dealt to hosts."""
    replication: int = 1
    """Consecutive ranks that read the same samples."""

    @property
    def last_step(self) -> str:
        """`tail`, or the default for it."""
        return self.tail or ("pad" if self.algorithm == WINDOW else "short")

    def asked(self, name: str) -> Any:
        """What the user asked for; None for nothing, and for the default seed."""
        value = getattr(self, name)
        return None if name == "seed" and value == DEFAULT_SEED else value


@dataclass(frozen=True)
class Place:
    """Where the iterations of a dataset stand."""

    next_epoch: int = 0
    """Epoch of the next iteration, unless `resume` says another place."""
    resume: Cursor | None = None
    """Where the next iteration begins, after a state was loaded."""
    adopted: Cursor | None = None
    """The loaded state, whose seed, canonical nodes and block size hold for all epochs that follow."""
    begun: Cursor | None = None
    """Where the latest iteration began; None after a state was loaded or an epoch chosen."""
    versions: tuple[Version, ...] = ()
    """The version of each stream that is read; empty before the first use."""

    def at_epoch(self, epoch: int) -> "Place":
        """Return the place after the user chose an epoch."""
        return replace(self, next_epoch=epoch, resume=None, begun=None)

    def resumed(self, cursor: Cursor, versions: tuple[Version, ...]) -> "Place":
        """Return the place after a state was loaded."""
        return replace(self, resume=cursor, adopted=cursor, begun=None, versions=versions)

    def after_begin(self, start: Cursor) -> "Place":
        """Return the place after an iteration began at `start`."""
        return replace(self, next_epoch=start.epoch + 1, resume=None, begun=start)


class Progress:
    """The place of a dataset, shared by the dataset and the views that loaders make of it."""

    def __init__(self) -> None:
        self._place = Place()

    def get(self) -> Place:
        """Return the current place."""
        return self._place

    def set(self, place: Place) -> None:
        """Replace the place, as the user asked."""
        self._place = place

    def enter(self) -> int | None:
        """Register an iteration that is about to begin; its number, or None where no number is needed."""
        return None

    def begin(self, settle: Callable[[Place], Cursor], number: int | None = None) -> tuple[Cursor, bool]:
        """Begin an iteration.

        Args:
            settle: returns where the iteration begins, given the place before it.
            number: what `enter` returned.

        Returns:
            Where it begins, and whether this call decided that (and not another worker of the same iteration).
        """
        del number
        start = settle(self._place)
        self._place = self._place.after_begin(start)
        return start, True

    def agree(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Record the versions that were opened, and return those that were recorded first."""
        if not self._place.versions:
            self._place = replace(self._place, versions=versions)
        return self._place.versions


@dataclass
class Opened:
    """The shard sets of a dataset and of all its views, opened once, by whichever needs them first."""

    stream: OpenStreams | None = None


@dataclass(frozen=True)
class Pass:
    """One iteration over (the rest of) an epoch: where it begins and who divides it."""

    start: Cursor
    world: World
    """Every rank, those included that read the same samples."""
