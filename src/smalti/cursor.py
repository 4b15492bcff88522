"""Cursor: where a run stands in its data. Small, JSON, the same on every rank; it holds no order, only what fixes it.

A saved cursor is input: every field is checked before it is believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from smalti.errors import CursorError

CURSOR_VERSION = 1
WINDOW = "window"
"""The name of our own order; every other one is MosaicML's."""
ORDER_VERSIONS = {WINDOW: 2}
"""Versions of the orders that are not 1."""
MOST_CANONICAL_NODES = 1 << 20
"""Planning takes memory for each, and a state is input."""
MOST_SEED = (1 << 63) - 1
MOST_BLOCK = 1 << 62
"""A quarter more is still a number of 64 bits: MosaicML's `py1e` draws up to there."""


@dataclass(frozen=True)
class Cursor:
    """A place in the global order of one epoch, and everything that fixes that order."""

    epoch: int
    """Epoch, counting from 0."""
    samples: int
    """Samples of this epoch that all ranks together have consumed, padding not counted."""
    seed: int
    """Base seed of the run."""
    canonical_nodes: int
    """Runs that the order is woven from; it has nothing to do with the number of machines."""
    initial_hosts: int
    """Hosts of the run that began the epoch. Not used by the order; MosaicML's own state has it."""
    digest: str
    """Digest of the manifest that is read."""
    split: str | None
    """The split that is read, None for the whole set."""
    epoch_size: int
    """Samples of one epoch."""
    shuffle: bool
    """Whether the order is shuffled."""
    block_size: int
    """Samples within which shuffling mixes."""
    algorithm: str = WINDOW
    """Name of the order's algorithm."""
    algorithm_version: int = ORDER_VERSIONS[WINDOW]
    """Its version: another number may mean another order."""

    @property
    def end(self) -> int:
        """Samples after which all of the epoch were read.

        MosaicML's orders make their canonical nodes equally long, with repeats that stand before the last samples.
        """
        if self.algorithm == WINDOW:
            return self.epoch_size
        return -(-self.epoch_size // self.canonical_nodes) * self.canonical_nodes

    def advanced(self, samples: int) -> "Cursor":
        """This cursor after `samples` more; at the epoch's end it is the start of the next epoch."""
        place = self.samples + samples
        return self.next_epoch() if place >= self.end else replace(self, samples=place)

    def next_epoch(self) -> "Cursor":
        """The start of the epoch after this one."""
        return replace(self, epoch=self.epoch + 1, samples=0)

    def to_state(self) -> dict[str, Any]:
        """The cursor as a JSON-able dict: MosaicML's five keys, and one of ours that holds the rest."""
        return {
            "epoch": self.epoch,
            "sample_in_epoch": self.samples,
            "num_canonical_nodes": self.canonical_nodes,
            "shuffle_seed": self.seed,
            "initial_physical_nodes": self.initial_hosts,
            "smalti": {
                "cursor_version": CURSOR_VERSION,
                "digest": self.digest,
                "split": self.split,
                "epoch_size": self.epoch_size,
                "shuffle": self.shuffle,
                "shuffle_block_size": self.block_size,
                "algorithm": self.algorithm,
                "algorithm_version": self.algorithm_version,
            },
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Cursor":
        """The cursor that `to_state` wrote.

        Raises:
            CursorError: a field is missing, of another type, or out of range; the message names it.
        """
        own = _mapping(state).get("smalti")
        if not isinstance(own, Mapping):
            raise CursorError(f"saved state: 'smalti' is {own!r:.80}, expected what `state_dict()` puts there.")
        version = _whole(own, "cursor_version", low=1)
        if version > CURSOR_VERSION:
            raise CursorError(
                f"saved state: written as cursor version {version}, this Smalti reads up to {CURSOR_VERSION}; "
                "upgrade Smalti.",
                version=version,
            )
        cursor = cls(
            epoch=_whole(state, "epoch", low=0),
            samples=_whole(state, "sample_in_epoch", low=0),
            seed=_whole(state, "shuffle_seed", low=0),
            canonical_nodes=_whole(state, "num_canonical_nodes", low=1, high=MOST_CANONICAL_NODES),
            initial_hosts=_whole(state, "initial_physical_nodes", low=1),
            digest=_text(own, "digest"),
            split=None if own.get("split") is None else _text(own, "split"),
            epoch_size=_whole(own, "epoch_size", low=1),
            shuffle=_flag(own, "shuffle"),
            block_size=_whole(own, "shuffle_block_size", low=1, high=MOST_BLOCK),
            algorithm=_text(own, "algorithm"),
            algorithm_version=_whole(own, "algorithm_version", low=1),
        )
        if cursor.samples > cursor.end:
            raise CursorError(
                f"saved state: 'sample_in_epoch' is {cursor.samples}, but its epoch has only {cursor.epoch_size} "
                "samples; the state is damaged: use an older checkpoint.",
                samples=cursor.samples,
            )
        return cursor.advanced(0)

    @classmethod
    def from_mosaic_state(cls, state: Mapping[str, Any], fresh: "Cursor", *, num_ranks: int) -> "Cursor":
        """The cursor of a state that MosaicML Streaming wrote: five keys, or four in old checkpoints.

        Args:
            state: what its `state_dict` returned.
            fresh: a cursor of the data set and the options with which the run goes on; the state knows neither.
            num_ranks: ranks that read different samples here.

        Raises:
            CursorError: a field is missing, of another type, or out of range, or the order is not MosaicML's.
        """
        _mapping(state)
        if fresh.algorithm == WINDOW:
            raise CursorError(
                "saved state: no key 'smalti' in it, so MosaicML Streaming or something else wrote it, and this "
                "dataset reads in the `window` order, which is not MosaicML's. To continue that run, give its "
                "`shuffle_algo` (MosaicML's default is 'py1e') and its other options; to begin the epoch anew in our "
                "order, call `set_epoch` instead.",
                algorithm=fresh.algorithm,
            )
        epoch = _whole(state, "epoch", low=-1)
        hosts = fresh.initial_hosts
        if state.get("initial_physical_nodes") is not None:  # unknown to old checkpoints
            hosts = _whole(state, "initial_physical_nodes", low=1)
        cursor = replace(
            fresh,
            epoch=max(epoch, 0),  # MosaicML calls the time before the first epoch -1
            samples=0 if epoch < 0 else _whole(state, "sample_in_epoch", low=0),
            seed=_whole(state, "shuffle_seed", low=0),
            canonical_nodes=_whole(state, "num_canonical_nodes", low=1, high=MOST_CANONICAL_NODES),
            initial_hosts=hosts,
        )
        # An epoch's last steps repeat samples, so that its end may count more than there are; not twice the ranks'.
        if cursor.samples > cursor.end + 2 * num_ranks:
            raise CursorError(
                f"saved state: 'sample_in_epoch' is {cursor.samples}, but an epoch of this data set has only "
                f"{cursor.epoch_size} samples. Open the data set that the run read; if the state was saved at the "
                f"end of epoch {cursor.epoch} by many more ranks, call `set_epoch({cursor.epoch + 1})` instead.",
                samples=cursor.samples,
                epoch_size=cursor.epoch_size,
            )
        return cursor.advanced(0)


def _mapping(state: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise CursorError(
            f"saved state: expected a mapping as `state_dict()` returns it, found {type(state).__name__}."
        )
    return state


def _whole(state: Mapping[str, Any], key: str, *, low: int, high: int = MOST_SEED) -> int:
    value = state.get(key)
    if type(value) is not int or not low <= value <= high:
        raise CursorError(
            f"saved state: {key!r} is {value!r:.80}, expected a whole number from {low} to {high}; the state is "
            "damaged or was not written by `state_dict()`: use an older checkpoint.",
            key=key,
        )
    return value


def _text(state: Mapping[str, Any], key: str) -> str:
    value = state.get(key)
    if not isinstance(value, str) or len(value) > 1024:
        raise CursorError(
            f"saved state: {key!r} is {value!r:.80}, expected a text of at most 1024 characters.", key=key
        )
    return value


def _flag(state: Mapping[str, Any], key: str) -> bool:
    value = state.get(key)
    if not isinstance(value, bool):
        raise CursorError(f"saved state: {key!r} is {value!r:.80}, expected true or false.", key=key)
    return value
