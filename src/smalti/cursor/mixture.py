"""What fixes the order of a run over several streams, beside what fixes any: streams, weights and their changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from smalti.cursor import fields
from smalti.errors import CursorError

WEIGHT_NAMES = ("proportion", "repeat", "choose")
MOST_STREAMS = 1 << 16
MOST_CHANGES = 1 << 16
MOST_WEIGHT = 1e18
"""A weight may be so large, in a state as where it is declared."""

Weight = tuple[str, float] | None
"""Such as ("proportion", 0.7); None for a stream without a weight."""


@dataclass(frozen=True)
class MixedStream:
    """One stream, as the run found it."""

    digest: str
    """Digest of the manifest that is read."""
    split: str | None
    samples: int
    """Samples it has."""


@dataclass(frozen=True)
class Weights:
    """The streams' weights from a place of the run on, until the next ones."""

    epoch: int
    samples: int
    """Place in that epoch."""
    values: tuple[Weight, ...]
    """One for each stream."""
    epoch_size: int | None
    """Samples of an epoch, if the user chose it."""

    def to_state(self) -> dict[str, Any]:
        """JSON-able."""
        values = [None if value is None else dict([value]) for value in self.values]
        return {"epoch": self.epoch, "samples": self.samples, "weights": values, "epoch_size": self.epoch_size}

    @classmethod
    def from_state(cls, state: Any) -> "Weights":
        """What `to_state` wrote; see `Mixture.from_state`."""
        told = fields.mapping(state, "history")
        values = tuple(map(_weight, fields.listed(told, "weights", most=MOST_STREAMS)))
        size = fields.whole_or_none(told, "epoch_size", low=1)
        return cls(fields.whole(told, "epoch", low=0), fields.whole(told, "samples", low=0), values, size)


@dataclass(frozen=True)
class Mixture:
    """Streams, how they are drawn from and batched, and their weights over the run."""

    streams: tuple[MixedStream, ...]
    sampling_method: str
    sampling_granularity: int
    batching_method: str
    global_batch: int | None
    """Samples of one step over all ranks with which the epoch was begun; None where the order does not depend on it."""
    local_batch: int | None
    """The same of one rank."""
    history: tuple[Weights, ...]
    """In the order of their places; the first at the start of epoch 0."""
    version: int = 1
    """Version of what an epoch takes of each stream, and of how batches are made."""

    @property
    def weights(self) -> Weights:
        """Those that hold at the run's newest place."""
        return self.history[-1]

    def changed(self, weights: Weights) -> "Mixture":
        """With other weights from a place on; what was to hold from there on, or later, is forgotten.

        Raises:
            CursorError: weights changed so often that nobody would load the state.
        """
        place = (weights.epoch, weights.samples)
        history = (*(each for each in self.history if (each.epoch, each.samples) < place), weights)
        if len(history) > MOST_CHANGES:
            raise CursorError(
                f"weights may hold from {MOST_CHANGES} places of a run, and these would be one more: go on with those "
                "of the state, or begin a new run.",
                key="history",
            )
        return replace(self, history=history)

    def is_followed_by(self, later: "Mixture", epoch: int, samples: int) -> bool:
        """Whether a run with this mixture may go on with a later one from a place on: only weights changed, there."""
        place = (epoch, samples)
        kept = tuple(each for each in self.history if (each.epoch, each.samples) < place)
        newest = later.weights
        changed = later.history[:-1] == kept and (newest.epoch, newest.samples) == place
        same = changed or later.history in (kept, self.history)
        return same and replace(later, history=self.history) == self

    def to_state(self) -> dict[str, Any]:
        """JSON-able."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("streams", "history")}
        streams = [{"digest": one.digest, "split": one.split, "samples": one.samples} for one in self.streams]
        return told | {"streams": streams, "history": [each.to_state() for each in self.history]}

    @classmethod
    def from_state(cls, state: Any) -> "Mixture":
        """What `to_state` wrote.

        Raises:
            CursorError: a field is missing, of another type, or out of range; the message names it.
        """
        told = fields.mapping(state, "mixture")
        mixture = cls(
            streams=tuple(map(_stream, fields.listed(told, "streams", most=MOST_STREAMS))),
            sampling_method=fields.text(told, "sampling_method"),
            sampling_granularity=fields.whole(told, "sampling_granularity", low=1),
            batching_method=fields.text(told, "batching_method"),
            global_batch=fields.whole_or_none(told, "global_batch", low=1, high=(1 << 62) - 1),
            local_batch=fields.whole_or_none(told, "local_batch", low=1, high=(1 << 62) - 1),
            history=tuple(map(Weights.from_state, fields.listed(told, "history", most=MOST_CHANGES))),
            version=fields.whole(told, "version", low=1),
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
    told = fields.mapping(state, "streams")
    samples = fields.whole(told, "samples", low=0)
    return MixedStream(fields.text(told, "digest"), fields.text_or_none(told, "split"), samples)


def _weight(state: Any) -> Weight:
    if state is None:
        return None
    if isinstance(state, Mapping) and len(state) == 1:
        ((name, value),) = state.items()
        kinds = (int,) if name == "choose" else (int, float)
        if name in WEIGHT_NAMES and type(value) in kinds and 0 <= value <= MOST_WEIGHT:
            return name, value
    raise CursorError(
        f"saved state: a weight in 'history' is {fields.shown(state)}, expected one of {', '.join(WEIGHT_NAMES)} with "
        "a number from 0; the state is damaged: use an older checkpoint.",
        key="weights",
    )
