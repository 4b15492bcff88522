"""What a dataset and the loaders' views of it share: the chosen order, where iterations stand, what was opened."""

from dataclasses import dataclass
from typing import Any

from smalti.cursor import WINDOW, Cursor
from smalti.stream import OpenStreams
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


@dataclass
class Progress:
    """Where a dataset's iterations stand; shared by the views that loaders make of it."""

    next_epoch: int = 0
    resume: Cursor | None = None
    adopted: Cursor | None = None
    """The loaded state, whose seed, canonical nodes and block size hold for all epochs that follow."""
    begun: Cursor | None = None
    """Where the latest iteration began; None after a state was loaded or an epoch chosen."""
    set_by_user: bool = False


@dataclass
class Opened:
    """The shard sets of a dataset and of all its views, opened once, by whichever needs them first."""

    stream: OpenStreams | None = None
    closed: OpenStreams | None = None
    """What was opened before: who closes a dataset and goes on reads the same versions."""


@dataclass(frozen=True)
class Pass:
    """One iteration over (the rest of) an epoch: where it begins and who divides it."""

    start: Cursor
    world: World
    """Every rank, those included that read the same samples."""
