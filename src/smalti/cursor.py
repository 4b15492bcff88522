"""Cursor: the place that a run has reached in its data, with its mixture of streams, and as the dict that is saved.

It is small, JSON-able and the same on every rank. It holds everything that determines the order, but not the order
itself (`smalti.order`). A saved cursor is untrusted input: every field is checked when it is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from reprlib import Repr
from typing import Any

from smalti.errors import CursorError

__all__ = ["Cursor", "MixedStream", "Mixture", "Weight", "Weights"]

MAX_NUMBER = (1 << 63) - 1
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80

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
MAX_BATCH = (1 << 62) - 1
MAX_BLOCK = 1 << 62
"""MosaicML's `py1e` draws numbers up to a quarter more, which must fit into 64 bits."""


def shown(value: Any) -> str:
    """Return the value as text for a message; a long one is cut without formatting all of it."""
    return _SHORT.repr(value)[:80]


def mapping(state: Any, what: str = "") -> Mapping[str, Any]:
    """Return the state if it is a mapping."""
    if not isinstance(state, Mapping):
        where = f"{what!r} is" if what else "expected a mapping as `state_dict()` returns it, found"
        raise CursorError(f"saved state: {where} {type(state).__name__}{', expected a mapping' if what else ''}.")
    return state


def _checked(state: Mapping[str, Any], key: str, accepts: Callable[[Any], bool], expected: str) -> Any:
    """Return a field of a saved state, which is not trusted.

    Raises:
        CursorError: it is missing, of another type or out of range; the message names it.
    """
    value = state.get(key)
    if not accepts(value):
        raise CursorError(f"saved state: {key!r} is {shown(value)}, expected {expected}", key=key)
    return value


def _whole(state: Mapping[str, Any], key: str, *, low: int, high: int = MAX_NUMBER, optional: bool = False) -> Any:
    """Return a whole number in [low, high]; or None if it is `optional`."""
    return _checked(
        state,
        key,
        lambda value: (optional and value is None) or (type(value) is int and low <= value <= high),
        f"a whole number from {low} to {high}; the state is damaged or was not written by `state_dict()`: use an older "
        "checkpoint.",
    )


def _text(state: Mapping[str, Any], key: str, *, optional: bool = False) -> Any:
    """Return a text of at most 1,024 characters; or None if it is `optional`."""
    return _checked(
        state,
        key,
        lambda value: (optional and value is None) or (isinstance(value, str) and len(value) <= 1024),
        "a text of at most 1024 characters.",
    )


def _listed(state: Mapping[str, Any], key: str, most: int) -> Sequence[Any]:
    """Return a list of 1 to `most` entries."""
    entries: Sequence[Any] = _checked(
        state,
        key,
        lambda value: isinstance(value, (list, tuple)) and 1 <= len(value) <= most,
        f"a list of 1 to {most} entries.",
    )
    return entries


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
        saved = mapping(state, "history")
        values = tuple(map(_weight, _listed(saved, "weights", MAX_STREAMS)))
        size = _whole(saved, "epoch_size", low=1, optional=True)
        return cls(_whole(saved, "epoch", low=0), _whole(saved, "samples", low=0), values, size)


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
        saved = {name: value for name, value in vars(self).items() if name not in ("streams", "history")}
        return saved | {
            "streams": [dict(vars(stream)) for stream in self.streams],
            "history": [each.to_state() for each in self.history],
        }

    @classmethod
    def from_state(cls, state: Any) -> "Mixture":
        """Return the mixture that `to_state` wrote.

        Raises:
            CursorError: a field is missing, of another type, or out of range; the message names it.
        """
        saved = mapping(state, "mixture")
        mixture = cls(
            streams=tuple(map(_stream, _listed(saved, "streams", MAX_STREAMS))),
            sampling_method=_text(saved, "sampling_method"),
            sampling_granularity=_whole(saved, "sampling_granularity", low=1, high=MAX_BATCH),
            batching_method=_text(saved, "batching_method"),
            global_batch=_whole(saved, "global_batch", low=1, high=MAX_BATCH, optional=True),
            local_batch=_whole(saved, "local_batch", low=1, high=MAX_BATCH, optional=True),
            history=tuple(map(Weights.from_state, _listed(saved, "history", MAX_CHANGES))),
            version=_whole(saved, "version", low=1),
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
    saved = mapping(state, "streams")
    samples = _whole(saved, "samples", low=0)
    return MixedStream(_text(saved, "digest"), _text(saved, "split", optional=True), samples)


def _weight(state: Any) -> Weight:
    if state is None:
        return None
    if isinstance(state, Mapping) and len(state) == 1:
        ((name, value),) = state.items()
        kinds = (int,) if name == "choose" else (int, float)
        if name in WEIGHT_NAMES and type(value) in kinds and 0 <= value <= MAX_WEIGHT:
            return name, value
    raise CursorError(
        f"saved state: a weight in 'history' is {shown(state)}, expected one of {', '.join(WEIGHT_NAMES)} with "
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
                "cursor_version": 3 if self.affinity != 1 else 1 if self.mixture is None else 2,
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

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Cursor":
        """Return the cursor that `to_state` wrote.

        Raises:
            CursorError: a field is missing, of another type, or out of range; the message names it.
        """
        own = mapping(state).get("smalti")
        if not isinstance(own, Mapping):
            raise CursorError(f"saved state: 'smalti' is {shown(own)}, expected what `state_dict()` puts there.")
        version = _whole(own, "cursor_version", low=1)
        if version > CURSOR_VERSION:
            raise CursorError(
                f"saved state: written as cursor version {version}, this Smalti reads up to {CURSOR_VERSION}; "
                "upgrade Smalti.",
                version=version,
            )
        expected = "a number from 0 to 1; the state is damaged: use an older checkpoint."

        def is_share(value: Any) -> bool:
            return type(value) in (int, float) and 0 <= value <= 1

        cursor = cls(
            epoch=_whole(state, "epoch", low=0, high=1 << 62),
            samples=_whole(state, "sample_in_epoch", low=0),
            seed=_whole(state, "shuffle_seed", low=0),
            canonical_nodes=_whole(state, "num_canonical_nodes", low=1, high=MAX_CANONICAL_NODES),
            initial_hosts=_whole(state, "initial_physical_nodes", low=1),
            digest=_text(own, "digest"),
            split=_text(own, "split", optional=True),
            epoch_size=_whole(own, "epoch_size", low=1),
            shuffle=_checked(own, "shuffle", lambda value: isinstance(value, bool), "true or false."),
            block_size=_whole(own, "shuffle_block_size", low=1, high=MAX_BLOCK),
            algorithm=_text(own, "algorithm"),
            algorithm_version=_whole(own, "algorithm_version", low=1),
            mixture=None if own.get("mixture") is None else Mixture.from_state(own["mixture"]),
            affinity=1.0 if own.get("affinity") is None else float(_checked(own, "affinity", is_share, expected)),
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
