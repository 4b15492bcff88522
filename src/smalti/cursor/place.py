"""Cursor: the place of a run as an immutable value, and as the dict that is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from smalti.cursor.fields import MAX_NUMBER, flag, mapping, shown, text, text_or_none, whole
from smalti.cursor.mixture import Mixture
from smalti.errors import CursorError

CURSOR_VERSION = 2
"""The highest version that can be read. A cursor of one stream is written as version 1, which older releases read."""
WINDOW = "window"
"""The name of Smalti's own order; all other orders are MosaicML's."""
ORDER_VERSIONS = {WINDOW: 2}
"""Versions of the orders; 1 for orders that are not listed."""
MAX_CANONICAL_NODES = 1 << 20
"""Limits the memory that planning takes for each, because a loaded state is untrusted."""
MAX_SEED = MAX_NUMBER
MAX_BLOCK = 1 << 62
"""MosaicML's `py1e` draws numbers up to a quarter more, which must fit into 64 bits."""


@dataclass(frozen=True)
class Cursor:
    """A place in the global order of one epoch, and everything that determines that order."""

    epoch: int
    """Epoch, counting from 0."""
    samples: int
    """Samples of this epoch that all ranks together have consumed, without padding."""
    seed: int
    """Base seed of the run."""
    canonical_nodes: int
    """Runs that the order is woven from; independent of the number of machines."""
    initial_hosts: int
    """Hosts that the run began with; part of MosaicML's state and used by its orders only."""
    digest: str
    """Digest of the manifest; of a mixture, of all manifests."""
    split: str | None
    """The split; None for the whole set or a mixture."""
    epoch_size: int
    """Samples of one epoch."""
    shuffle: bool
    """True if the order is shuffled."""
    block_size: int
    """Samples within which shuffling mixes."""
    algorithm: str = WINDOW
    """Name of the order's algorithm."""
    algorithm_version: int = ORDER_VERSIONS[WINDOW]
    """Version of the algorithm: the order may differ between versions."""
    mixture: Mixture | None = None
    """Streams and weights; None if an epoch is every sample of one stream once."""

    @property
    def end(self) -> int:
        """Samples after which the epoch is complete; with MosaicML's batches of streams, an upper bound.

        MosaicML's orders make their canonical nodes equally long by repeats, which precede the last samples.
        """
        if self.algorithm == WINDOW:
            return self.epoch_size
        end = -(-self.epoch_size // self.canonical_nodes) * self.canonical_nodes
        return end + (self._max_padding(self.mixture) if self.mixture is not None else 0)

    def _max_padding(self, mixture: Mixture) -> int:
        """Return an upper bound of the padding in MosaicML's batches of streams; the exact number requires its plan."""
        if mixture.batching_method == "random":
            return 0
        batch = mixture.global_batch or 0
        ranks = batch // (mixture.local_batch or max(1, batch))
        # Each stream is partitioned by itself, over canonical nodes or hosts, and padded for all their ranks.
        return len(mixture.streams) * (self.canonical_nodes + 1) * (ranks + 1) + batch

    def advanced(self, samples: int) -> "Cursor":
        """Return the cursor after `samples` more samples; at the epoch's end, the start of the next epoch."""
        place = self.samples + samples
        return self.next_epoch() if place >= self.end else replace(self, samples=place)

    def next_epoch(self) -> "Cursor":
        """Return the start of the next epoch."""
        return replace(self, epoch=self.epoch + 1, samples=0)

    def to_state(self) -> dict[str, Any]:
        """Return the cursor as a JSON-able dict: MosaicML's five keys, and the key `smalti` with all other fields."""
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
        """Return the cursor that `to_state` wrote.

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
            canonical_nodes=whole(state, "num_canonical_nodes", low=1, high=MAX_CANONICAL_NODES),
            initial_hosts=whole(state, "initial_physical_nodes", low=1),
            digest=text(own, "digest"),
            split=text_or_none(own, "split"),
            epoch_size=whole(own, "epoch_size", low=1),
            shuffle=flag(own, "shuffle"),
            block_size=whole(own, "shuffle_block_size", low=1, high=MAX_BLOCK),
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
        """Return the cursor of a state that MosaicML Streaming wrote: five keys, or four in old checkpoints.

        Args:
            state: the return value of MosaicML's `state_dict`.
            fresh: a cursor of this data set with this run's options, which the state does not hold.
            num_ranks: ranks that read different samples in this run.

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
        if state.get("initial_physical_nodes") is not None:  # missing in old checkpoints
            hosts = whole(state, "initial_physical_nodes", low=1)
        cursor = replace(
            fresh,
            epoch=max(epoch, 0),  # -1 before the first epoch
            samples=0 if epoch < 0 else whole(state, "sample_in_epoch", low=0),
            seed=whole(state, "shuffle_seed", low=0),
            canonical_nodes=whole(state, "num_canonical_nodes", low=1, high=MAX_CANONICAL_NODES),
            initial_hosts=hosts,
        )
        # The last steps of an epoch repeat samples, so the count may exceed the epoch by less than twice the ranks.
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
