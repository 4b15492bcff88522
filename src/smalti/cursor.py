"""Cursor: where a run stands in its data. Small, JSON, the same on every rank; it holds no order, only what fixes it.

A saved cursor is input: every field is checked before it is believed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from smalti.errors import CursorError

CURSOR_VERSION = 1

# The five names that MosaicML Streaming uses for its own state, so that its tools can read ours.
_PEER_KEYS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")


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
    algorithm: str = "window"
    """Name of the order's algorithm."""
    algorithm_version: int = 2
    """Its version: another number may mean another order."""

    def advanced(self, samples: int) -> "Cursor":
        """This cursor after `samples` more; at the epoch's end it is the start of the next epoch."""
        place = self.samples + samples
        if place >= self.epoch_size:
            return replace(self, epoch=self.epoch + 1, samples=0)
        return replace(self, samples=place)

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
        if not isinstance(state, Mapping):
            raise CursorError(
                f"saved state: expected a mapping as `state_dict()` returns it, found {type(state).__name__}."
            )
        own = state.get("smalti")
        if not isinstance(own, Mapping):
            raise CursorError(
                "saved state: no key 'smalti' in it, so it was not written by Smalti's `state_dict()`; a run that "
                "MosaicML Streaming began cannot be continued in the `window` order."
            )
        version = _whole(own, "cursor_version", low=1)
        if version > CURSOR_VERSION:
            raise CursorError(
                f"saved state: written as cursor version {version}, this Smalti reads up to {CURSOR_VERSION}; "
                "upgrade Smalti.",
                version=version,
            )
        peer = {key: _whole(state, key, low=0) for key in _PEER_KEYS}
        cursor = cls(
            epoch=peer["epoch"],
            samples=peer["sample_in_epoch"],
            seed=peer["shuffle_seed"],
            canonical_nodes=_whole(state, "num_canonical_nodes", low=1),
            initial_hosts=peer["initial_physical_nodes"],
            digest=_text(own, "digest"),
            split=None if own.get("split") is None else _text(own, "split"),
            epoch_size=_whole(own, "epoch_size", low=1),
            shuffle=_flag(own, "shuffle"),
            block_size=_whole(own, "shuffle_block_size", low=1),
            algorithm=_text(own, "algorithm"),
            algorithm_version=_whole(own, "algorithm_version", low=1),
        )
        if cursor.samples > cursor.epoch_size:
            raise CursorError(
                f"saved state: 'sample_in_epoch' is {cursor.samples}, but its epoch has only {cursor.epoch_size} "
                "samples; the state is damaged: use an older checkpoint.",
                samples=cursor.samples,
            )
        return cursor.advanced(0)


def _whole(state: Mapping[str, Any], key: str, *, low: int) -> int:
    value = state.get(key)
    if type(value) is not int or not low <= value < 1 << 63:
        raise CursorError(
            f"saved state: {key!r} is {value!r}, expected a whole number from {low}; the state is damaged or was not "
            "written by `state_dict()`: use an older checkpoint.",
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
