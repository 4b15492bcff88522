"""The cursor itself, as a value and as the dict that is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from smalti.cursor.fields import MOST_NUMBER, flag, mapping, shown, text, text_or_none, whole
from smalti.cursor.mixture import Mixture
from smalti.errors import CursorError

CURSOR_VERSION = 2
"""The highest version that is read. A cursor of one stream is written as version 1, which older Smaltis read."""
WINDOW = "window"
"""The name of our own order; every other one is MosaicML's."""
ORDER_VERSIONS = {WINDOW: 2}
"""Versions of the orders that are not 1."""
MOST_CANONICAL_NODES = 1 << 20
"""Planning takes memory for each, and a state is input."""
MOST_SEED = MOST_NUMBER
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
    """Digest of the manifest that is read; of a mixture, of all of them."""
    split: str | None
    """The split that is read, None for the whole set or a mixture."""
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
    mixture: Mixture | None = None
    """Streams and weights, if there are several streams, or an epoch is not just every sample once."""

    @property
    def end(self) -> int:
        """Samples after which all of the epoch were read; with MosaicML's batches of streams, the most it may be.

        MosaicML's orders make their canonical nodes equally long, with repeats that stand before the last samples.
        """
        if self.algorithm == WINDOW:
            return self.epoch_size
        end = -(-self.epoch_size // self.canonical_nodes) * self.canonical_nodes
        return end + (self._most_filled(self.mixture) if self.mixture is not None else 0)

    def _most_filled(self, mixture: Mixture) -> int:
        """Positions that MosaicML adds at most where it makes batches of streams: only its plan tells how many."""
        if mixture.batching_method == "random":
            return 0
        batch = mixture.global_batch or 0
        ranks = batch // (mixture.local_batch or max(1, batch))
        # Each stream is dealt by itself, to canonical nodes or to hosts, and is filled up for all of their ranks.
        return len(mixture.streams) * (self.canonical_nodes + 1) * (ranks + 1) + batch

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
                "cursor_version": 1 if self.mixture is None else 2,
                "digest": self.digest,
                "split": self.split,
                "epoch_size": self.epoch_size,
                "shuffle": self.shuffle,
                "shuffle_block_size": self.block_size,
                "algorithm": self.algorithm,
                "algorithm_version": self.algorithm_version,
            }
            | ({} if self.mixture is None else {"mixture": self.mixture.to_state()}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Cursor":
        """The cursor that `to_state` wrote.

        Raises:
            CursorError: a field is missing, of another type, or out of range; the message names it.
        """
        own = mapping(state).get("smalti")
        if not isinstance(own, Mapping):
            raise CursorError(f"saved state: 'smalti' is {shown(own)}, expected what `state_dict()` puts there.")
        version = whole(own, "cursor_version", low=1)
        if version > CURSOR_VERSION:
            raise CursorError(
                f"saved state: written as cursor version {version}, this Smalti reads up to {CURSOR_VERSION}; "
                "upgrade Smalti.",
                version=version,
            )
        cursor = cls(
            epoch=whole(state, "epoch", low=0, high=1 << 62),
            samples=whole(state, "sample_in_epoch", low=0),
            seed=whole(state, "shuffle_seed", low=0),
            canonical_nodes=whole(state, "num_canonical_nodes", low=1, high=MOST_CANONICAL_NODES),
            initial_hosts=whole(state, "initial_physical_nodes", low=1),
            digest=text(own, "digest"),
            split=text_or_none(own, "split"),
            epoch_size=whole(own, "epoch_size", low=1),
            shuffle=flag(own, "shuffle"),
            block_size=whole(own, "shuffle_block_size", low=1, high=MOST_BLOCK),
            algorithm=text(own, "algorithm"),
            algorithm_version=whole(own, "algorithm_version", low=1),
            mixture=None if own.get("mixture") is None else Mixture.from_state(own["mixture"]),
        )
        mixed = cursor.mixture
        if mixed is not None and mixed.batching_method != "random" and cursor.samples and not mixed.global_batch:
            raise CursorError(
                f"saved state: 'global_batch' is None, and batches {mixed.batching_method!r} depend on it; the state "
                "is damaged: use an older checkpoint.",
                key="global_batch",
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
        mapping(state)
        if fresh.algorithm == WINDOW:
            raise CursorError(
                "saved state: no key 'smalti' in it, so MosaicML Streaming or something else wrote it, and this "
                "dataset reads in the `window` order, which is not MosaicML's. To continue that run, give its "
                "`shuffle_algo` (MosaicML's default is 'py1e') and its other options; to begin the epoch anew in our "
                "order, call `set_epoch` instead.",
                algorithm=fresh.algorithm,
            )
        epoch = whole(state, "epoch", low=-1, high=1 << 62)
        hosts = fresh.initial_hosts
        if state.get("initial_physical_nodes") is not None:  # unknown to old checkpoints
            hosts = whole(state, "initial_physical_nodes", low=1)
        cursor = replace(
            fresh,
            epoch=max(epoch, 0),  # MosaicML calls the time before the first epoch -1
            samples=0 if epoch < 0 else whole(state, "sample_in_epoch", low=0),
            seed=whole(state, "shuffle_seed", low=0),
            canonical_nodes=whole(state, "num_canonical_nodes", low=1, high=MOST_CANONICAL_NODES),
            initial_hosts=hosts,
        )
        # An epoch's last steps repeat samples, so that its end may count more than there are; not twice the ranks'.
        mixture = cursor.mixture and replace(cursor.mixture, global_batch=num_ranks, local_batch=1)
        if cursor.samples > replace(cursor, mixture=mixture).end + 2 * num_ranks:
            raise CursorError(
                f"saved state: 'sample_in_epoch' is {cursor.samples}, but an epoch of this data set has only "
                f"{cursor.epoch_size} samples. Open the data set that the run read; if the state was saved at the "
                f"end of epoch {cursor.epoch} by many more ranks, call `set_epoch({cursor.epoch + 1})` instead.",
                samples=cursor.samples,
                epoch_size=cursor.epoch_size,
            )
        return cursor.advanced(0)
