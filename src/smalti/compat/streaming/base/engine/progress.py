"""The place of a dataset in its epochs, counted as MosaicML Streaming counts it.

An epoch that was read to its end is not the next one yet: a state that was saved there continues with an empty rest.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from smalti.cursor import WINDOW
from smalti.dataset.resume import RunPlace, RunTracker
from smalti.errors import CursorError
from smalti.torch.shared_progress import SharedProgress

_KEYS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
_OF_MIXTURES = ("sampling_method", "sampling_granularity", "batching_method")


@dataclass(frozen=True)
class Position:
    """A place in an epoch."""

    epoch: int
    """Number of the epoch, from 0; -1 in a state that was saved before the first one."""
    samples: int
    """Samples of the epoch that all ranks together have read."""
    state: Mapping[str, Any] | None = None
    """The loaded state, for a place that was loaded."""

    def to_state(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"epoch": self.epoch, "sample_in_epoch": self.samples, "state": self.state}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Position":
        """Return the position that `to_state` wrote."""
        return cls(state["epoch"], state["sample_in_epoch"], state["state"])


class EpochProgress(SharedProgress):
    """The position of a dataset, shared with its copies in loader workers.

    The loaded state is the place's `adopted` one: it applies to its epoch whenever that is read.
    """

    cursor_type = Position

    def _begin_alone(self, settle: Callable[[RunPlace], Position]) -> tuple[Position, bool]:  # type: ignore[override]
        """Begin an iteration of a dataset that was made in a loader worker, which counts its epochs alone."""
        return cast("tuple[Position, bool]", RunTracker.begin(self, cast("Any", settle)))


def start_of(place: RunPlace) -> Position:
    """Return the start of the next iteration: in the loaded state, unless that is of an earlier epoch."""
    loaded: Any = place.adopted
    if loaded is None or loaded.epoch < place.next_epoch:
        return Position(place.next_epoch, 0)
    return Position(loaded.epoch, loaded.samples)


def loaded_position(state: Mapping[str, Any]) -> Position:
    """Return the position of a saved state: of MosaicML Streaming, or of Smalti in one of MosaicML's orders.

    Raises:
        CursorError: a key is missing, or the state was saved in Smalti's own order.
        TypeError: the state has a value that JSON cannot hold.
    """
    try:
        json.dumps(state)
    except TypeError as error:
        raise TypeError(f"saved state: {error}; give what `state_dict` returned, also after JSON.") from error
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise CursorError(
            f"saved state: no {', '.join(map(repr, missing))} in it, found {', '.join(map(repr, state)) or 'nothing'}; "
            "give what `state_dict` returned.",
            missing=missing,
        )
    own = state.get("smalti")
    if isinstance(own, Mapping) and own.get("algorithm") == WINDOW:
        raise CursorError(
            "saved state: it was saved in Smalti's `window` order, which MosaicML Streaming does not have: continue it "
            "with `smalti.StreamingDataset`."
        )
    return Position(int(state["epoch"]), int(state["sample_in_epoch"]), dict(state))


def check_engine_state(state: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse a state of `smalti.StreamingDataset` that would continue in another order.

    Earlier releases of Smalti had MosaicML's orders in that class, too, and their states say which; MosaicML's own do
    not. `options` has the dataset's values, by argument.

    Raises:
        CursorError: the order of the state is not that of the dataset.
    """
    own = state.get("smalti")
    if not isinstance(own, Mapping):
        return
    saved = {"shuffle": own.get("shuffle")}
    if own.get("shuffle"):
        saved["shuffle_algo"] = own.get("algorithm")
        if own.get("algorithm") in {"py1e", "py1br"}:  # the others do not use it
            saved["shuffle_block_size"] = own.get("shuffle_block_size")
    mixture = own.get("mixture")
    if isinstance(mixture, Mapping):
        saved |= {name: mixture.get(name) for name in _OF_MIXTURES}
    for name, value in saved.items():
        here = options[name]
        if value != here and not (name == "shuffle_block_size" and here is None):
            raise CursorError(
                f"saved state: it was saved with `{name}={value!r}`, and this dataset has {here!r}: give the former to "
                "continue that run.",
                what=name,
                saved=value,
                found=here,
            )
