"""Cursor: the place of a run as an immutable value, with its mixture of streams, and as the dict that is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from smalti.cursor import fields
from smalti.cursor.fields import MAX_NUMBER, flag, mapping, share, shown, text, text_or_none, whole
from smalti.errors import CursorError

WEIGHT_NAMES = ("proportion", "repeat", "choose")
MAX_STREAMS = 1 << 16
MAX_CHANGES = 1 << 16
MAX_WEIGHT = 1e18
"""The largest weight, both in a saved state and in a declared stream."""

Weight = tuple[str, float] | None
"""Such as ("proportion", 0.7); None for a stream without a weight."""
CURSOR_VERSION = 3
"""The highest version that can be read. Each cursor is written as the lowest that holds it, for older releases: 1 for
one stream, 2 for a mixture, 3 with an affinity below 1."""
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
class MixedStream:
    """One stream of a mixture, in the version that the run reads."""

    digest: str
    """Digest of the manifest."""
    split: str | None
    samples: int
    """Samples of the stream."""


@dataclass(frozen=True)
class Weights:
    """The streams' weights from a place of the run on, until the next ones."""

    epoch: int
    samples: int
    """Samples of that epoch after which they apply."""
    values: tuple[Weight, ...]
    """One for each stream."""
    epoch_size: int | None
    """Samples of an epoch, if the user chose it."""

    def to_state(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        values = [None if value is None else dict([value]) for value in self.values]
        return {"epoch": self.epoch, "samples": self.samples, "weights": values, "epoch_size": self.epoch_size}

    @classmethod
    def from_state(cls, state: Any) -> "Weights":
        """Return the weights that `to_state` wrote; raises as `Mixture.from_state`."""
        saved = fields.mapping(state, "history")
        values = tuple(map(_weight, fields.listed(saved, "weights", most=MAX_STREAMS)))
        size = fields.whole_or_none(saved, "epoch_size", low=1)
        return cls(fields.whole(saved, "epoch", low=0), fields.whole(saved, "samples", low=0), values, size)


@dataclass(frozen=True)
class Mixture:
    """The streams of a run, the methods of drawing and batching, and the weights over the run."""

    streams: tuple[MixedStream, ...]
    sampling_method: str
    sampling_granularity: int
    batching_method: str
    global_batch: int | None
    """Samples of one step over all ranks when the epoch began; None where the order does not depend on it."""
    local_batch: int | None
    """Samples of one step on one rank when the epoch began."""
    history: tuple[Weights, ...]
    """All weights in the order of their places; the first ones at the start of epoch 0."""
    version: int = 1
    """Version of the algorithms of drawing and batching."""

    @property
    def weights(self) -> Weights:
        """The weights at the run's newest place."""
        return self.history[-1]

    def changed(self, weights: Weights) -> "Mixture":
        """Return the mixture with other weights from a place on; weights from that place or later are dropped.

        Raises:
            CursorError: weights changed more often than a state can hold.
        """
        place = (weights.epoch, weights.samples)
        history = (*(each for each in self.history if (each.epoch, each.samples) < place), weights)
        if len(history) > MAX_CHANGES:
            raise CursorError(
                f"weights may hold from {MAX_CHANGES} places of a run, and these would be one more: continue with "
                "those of the state, or begin a new run.",
                key="history",
            )
        return replace(self, history=history)

    def is_followed_by(self, later: "Mixture", epoch: int, samples: int) -> bool:
        """Return whether a run with this mixture may continue with a later one: only weights changed, at this place."""
        place = (epoch, samples)
        kept = tuple(each for each in self.history if (each.epoch, each.samples) < place)
        newest = later.weights
        changed = later.history[:-1] == kept and (newest.epoch, newest.samples) == place
        same = changed or later.history in (kept, self.history)
        return same and replace(later, history=self.history) == self

    def to_state(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        saved = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("streams", "history")}
        streams = [{"digest": one.digest, "split": one.split, "samples": one.samples} for one in self.streams]
        return saved | {"streams": streams, "history": [each.to_state() for each in self.history]}

    @classmethod
    def from_state(cls, state: Any) -> "Mixture":
        """Return the mixture that `to_state` wrote.

        Raises:
            CursorError: a field is missing, of another type, or out of range; the message names it.
        """
        saved = fields.mapping(state, "mixture")
        mixture = cls(
            streams=tuple(map(_stream, fields.listed(saved, "streams", most=MAX_STREAMS))),
            sampling_method=fields.text(saved, "sampling_method"),
            sampling_granularity=fields.whole(saved, "sampling_granularity", low=1, high=(1 << 62) - 1),
            batching_method=fields.text(saved, "batching_method"),
            global_batch=fields.whole_or_none(saved, "global_batch", low=1, high=(1 << 62) - 1),
            local_batch=fields.whole_or_none(saved, "local_batch", low=1, high=(1 << 62) - 1),
            history=tuple(map(Weights.from_state, fields.listed(saved, "history", most=MAX_CHANGES))),
            version=fields.whole(saved, "version", low=1),
        )
        places = [(each.epoch, each.samples) for each in mixture.history]
        if places[0] != (0, 0) or any(before >= after for before, after in pairwise(places)):
            raise CursorError(
                "saved state: the changes in 'history' are not in order from epoch 0, sample 0 on; the state is "
                "damaged: use an older checkpoint.",
                key="history",
            )
        divided = mixture.batching_method == "device_per_stream" and mixture.global_batch is not None
        if divided and (not mixture.local_batch or (mixture.global_batch or 0) % mixture.local_batch):
            raise CursorError(
                f"saved state: 'local_batch' is {mixture.local_batch} and 'global_batch' {mixture.global_batch}, "
                "expected a multiple of it; the state is damaged: use an older checkpoint.",
                key="local_batch",
            )
        if any(len(each.values) != len(mixture.streams) for each in mixture.history):
            raise CursorError(
                f"saved state: 'weights' in 'history' are not as many as the {len(mixture.streams)} streams.",
                key="weights",
            )
        return mixture


def _stream(state: Any) -> MixedStream:
    saved = fields.mapping(state, "streams")
    samples = fields.whole(saved, "samples", low=0)
    return MixedStream(fields.text(saved, "digest"), fields.text_or_none(saved, "split"), samples)


def _weight(state: Any) -> Weight:
    if state is None:
        return None
    if isinstance(state, Mapping) and len(state) == 1:
        ((name, value),) = state.items()
        kinds = (int,) if name == "choose" else (int, float)
        if name in WEIGHT_NAMES and type(value) in kinds and 0 <= value <= MAX_WEIGHT:
            return name, value
    raise CursorError(
        f"saved state: a weight in 'history' is {fields.shown(state)}, expected one of {', '.join(WEIGHT_NAMES)} with "
        "a number from 0; the state is damaged: use an older checkpoint.",
        key="weights",
    )


@dataclass(frozen=True)
class Cursor:
    """A place in the global order of one epoch, and everything that determines that order.

    Examples:
        >>> cursor = StreamingDataset(remote="s3://bucket/users").cursor()
        >>> cursor.epoch, cursor.samples
        (0, 0)
        >>> cursor.advanced(5).to_state()["sample_in_epoch"]
        5
    """

    epoch: int
    """Epoch, counting from 0."""
    samples: int
    """Samples of this epoch that all ranks together have consumed, without padding."""
    seed: int
    """Base seed of the run."""
    canonical_nodes: int
    """Runs that the order is woven from; independent of the number of machines."""
    initial_hosts: int
    """Hosts that the run began with: a key of MosaicML's states. The order does not depend on it."""
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
    affinity: float = 1.0
    """Part of its shards that a run keeps from epoch to epoch; 1 in states that do not say."""

    def advanced(self, samples: int) -> "Cursor":
        """Return the cursor after `samples` more samples; at the epoch's end, the start of the next epoch."""
        place = self.samples + samples
        return self.next_epoch() if place >= self.epoch_size else replace(self, samples=place)

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
                "cursor_version": self._version,
                "digest": self.digest,
                "split": self.split,
                "epoch_size": self.epoch_size,
                "shuffle": self.shuffle,
                "shuffle_block_size": self.block_size,
                "algorithm": self.algorithm,
                "algorithm_version": self.algorithm_version,
            }
            | ({} if self.mixture is None else {"mixture": self.mixture.to_state()})
            | ({} if self.affinity == 1 else {"affinity": self.affinity}),
        }

    @property
    def _version(self) -> int:
        if self.affinity != 1:
            return 3
        return 1 if self.mixture is None else 2

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
            affinity=1.0 if own.get("affinity") is None else share(own, "affinity"),
        )
        mixed = cursor.mixture
        if mixed is not None and mixed.batching_method != "random" and cursor.samples and not mixed.global_batch:
            raise CursorError(
                f"saved state: 'global_batch' is None, and batches {mixed.batching_method!r} depend on it; the state "
                "is damaged: use an older checkpoint.",
                key="global_batch",
            )
        if cursor.algorithm != WINDOW:  # its epochs are padded: only a plan of it knows where they end
            return cursor
        if cursor.samples > cursor.epoch_size:
            raise CursorError(
                f"saved state: 'sample_in_epoch' is {cursor.samples}, but its epoch has only {cursor.epoch_size} "
                "samples; the state is damaged: use an older checkpoint.",
                samples=cursor.samples,
            )
        return cursor.advanced(0)
