"""What a dataset and the loaders' views of it share: the chosen order, where iterations stand, what was opened.

Plain values; a saved cursor is compared here with the dataset that should continue from it. Nothing is read.
"""

from dataclasses import dataclass
from typing import Any

from smalti.cursor import WINDOW, Cursor
from smalti.errors import CursorError
from smalti.stream import Stream
from smalti.world import World

DEFAULT_SEED = 9176  # MosaicML Streaming's default, so that a notebook that names none means the same

_OPEN_THE_SAME = "open the version and split that the state was saved with (`version=`, `split=`)"
_MUST_AGREE = {
    "data set digest": ("digest", _OPEN_THE_SAME),
    "split": ("split", _OPEN_THE_SAME),
    "epoch size": ("epoch_size", _OPEN_THE_SAME),
    "shuffle": ("shuffle", "give `shuffle={saved!r}`"),
    "order algorithm": ("algorithm", "give `shuffle_algo={saved!r}`"),
    "order algorithm version": ("algorithm_version", "use the Smalti that saved it"),
}
"""What a saved cursor and the dataset have in common, as messages name it: the cursor's field, and what to do."""
_MAY_BE_ASKED = {"shuffle_seed": "seed", "num_canonical_nodes": "canonical_nodes", "shuffle_block_size": "block_size"}
"""What is taken over from a saved cursor unless the user asked for it, and the field of both."""


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
    """The shard set of a dataset and of all its views, opened once, by whichever needs it first."""

    stream: Stream | None = None


@dataclass(frozen=True)
class Pass:
    """One iteration over (the rest of) an epoch: where it begins and who divides it."""

    start: Cursor
    world: World
    """Every rank, those included that read the same samples."""


def check_same_order(saved: Cursor, here: Cursor, options: OrderOptions) -> None:
    """Refuses a cursor that would silently continue in another order.

    Args:
        saved: the cursor to continue from.
        here: a fresh one of the dataset, for the same epoch.
        options: what the user asked for; what was not asked for is taken over from the saved run.

    Raises:
        CursorError: they differ; the message names the first difference, with both sides.
    """
    for what, (name, remedy) in _MUST_AGREE.items():
        _check(what, getattr(saved, name), getattr(here, name), remedy)
    for what, name in _MAY_BE_ASKED.items():
        asked, then = options.asked(name), getattr(saved, name)
        _check(what, then, then if asked is None else asked, f"give `{what}={{saved!r}}`, or leave it out")


def _check(what: str, saved: Any, found: Any, remedy: str) -> None:
    if saved != found:
        raise CursorError(
            f"cannot resume from this state: it was saved with {what} {saved!r}, and this dataset has {found!r}. To go "
            f"on with that run, {remedy.format(saved=saved)}; to begin an epoch anew with what this dataset has, "
            "call `set_epoch` instead.",
            what=what,
            saved=saved,
            found=found,
        )
