"""What a dataset and the loaders' views of it share: the chosen order, where iterations stand, what was opened.

Plain values; a saved cursor is compared here with the dataset that should continue from it. Nothing is read.
"""

from dataclasses import dataclass
from typing import Any

from smalti.cursor import Cursor
from smalti.errors import CursorError
from smalti.stream import Stream
from smalti.world import World

DEFAULT_SEED = 9176  # MosaicML Streaming's default, so that a notebook that names none means the same

_MUST_AGREE = {
    "data set digest": "digest",
    "split": "split",
    "epoch size": "epoch_size",
    "shuffle": "shuffle",
    "order algorithm": "algorithm",
    "order algorithm version": "algorithm_version",
}
"""What a saved cursor and the dataset have in common, as messages name it, and the cursor's field."""


@dataclass(frozen=True)
class OrderOptions:
    """What the user chose about the order; None lets the saved cursor, or else the default, decide."""

    shuffle: bool = False
    seed: int = DEFAULT_SEED
    canonical_nodes: int | None = None
    block_size: int | None = None
    tail: str = "pad"


@dataclass
class Progress:
    """Where a dataset's iterations stand; shared by the views that loaders make of it."""

    next_epoch: int = 0
    resume: Cursor | None = None
    adopted: Cursor | None = None
    """The loaded state, whose seed, canonical nodes and block size hold for all epochs that follow."""
    set_by_user: bool = False


@dataclass
class Opened:
    """The shard set of a dataset and of all its views, opened once, by whichever needs it first."""

    stream: Stream | None = None


@dataclass(frozen=True)
class Pass:
    """One iteration over (the rest of) an epoch: where it begins and who divides it."""

    start: Cursor
    world: World


def check_same_order(saved: Cursor, here: Cursor, options: OrderOptions) -> None:
    """Refuses a cursor that would silently continue in another order.

    Args:
        saved: the cursor to continue from.
        here: a fresh one of the dataset, for the same epoch.
        options: what the user asked for; what was not asked for is taken over from the saved run.

    Raises:
        CursorError: they differ; the message names the first difference, with both sides.
    """
    asked: list[tuple[str, Any, Any]] = [
        (what, getattr(saved, name), getattr(here, name)) for what, name in _MUST_AGREE.items()
    ]
    if options.seed != DEFAULT_SEED:
        asked.append(("shuffle_seed", saved.seed, options.seed))
    if options.canonical_nodes is not None:
        asked.append(("num_canonical_nodes", saved.canonical_nodes, options.canonical_nodes))
    if options.block_size is not None:
        asked.append(("shuffle_block_size", saved.block_size, options.block_size))
    for what, then, now in asked:
        if then != now:
            raise CursorError(
                f"cannot resume from this state: it was saved with {what} {then!r}, and this dataset has {now!r}. "
                "Open the version and give the options that the state was saved with, or start a new epoch with "
                "`set_epoch`.",
                what=what,
                saved=then,
                found=now,
            )
