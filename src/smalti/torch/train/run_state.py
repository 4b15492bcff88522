"""The state of a run as checkpoints contain it: finished steps and epochs, running figures; and the checks of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smalti.errors import CheckpointError, CursorError
from smalti.torch.train.config import TrainConfig

_FIXED = (
    "train_split",
    "image_column",
    "label_column",
    "num_classes",
    "class_names",
    "image_size",
    "model",
    "width",
    "seed",
)
"""Fields of the configuration that may not change between two lives of a run; others (batch size, ranks, rates) may."""


@dataclass
class RunState:
    """The mutable state of a run; equal on all ranks except for the running sums, which are of this rank."""

    step: int = 0
    epoch: int = 0
    """Epoch being trained, from 0."""
    loss_sum: float = 0.0
    num_correct: float = 0.0
    num_samples: float = 0.0
    """Sum of losses, correct answers and samples of this epoch so far."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One summary per finished epoch."""

    @property
    def sums(self) -> list[float]:
        """The running sums of this rank."""
        return [self.loss_sum, self.num_correct, self.num_samples]

    def to_json(self, sums: list[float]) -> dict[str, Any]:
        """Return the state as JSON values; `sums` are the running sums over all ranks."""
        return {"epoch": self.epoch, "sums": sums, "history": self.history}

    @classmethod
    def from_json(cls, state: Mapping[str, Any], *, is_first: bool) -> "RunState":
        """Return the state of a checkpoint; only rank 0 takes the sums, so that they are counted once."""
        loss_sum, num_correct, num_samples = state["sums"] if is_first else (0.0, 0.0, 0.0)
        return cls(state["step"], state["epoch"], loss_sum, num_correct, num_samples, list(state["history"]))

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch with sums of zero."""
        self.epoch, self.loss_sum, self.num_correct, self.num_samples = epoch, 0.0, 0.0, 0.0


def check_state(state: Mapping[str, Any]) -> None:
    """Check that a checkpoint's `state.json` is the state of a run; the loader checks the cursor's own fields.

    Raises:
        CheckpointError: a field is missing or has the wrong type; the message names it.
    """
    for name, expected, is_valid in _EXPECTED:
        if name not in state or not is_valid(state[name]):
            raise CheckpointError(
                f"state.json: `{name}` is {str(state.get(name))[:80]}, expected {expected}; it was not written by this "
                "trainer, or was edited.",
                field=name,
            )
    if len(state["history"]) != state["epoch"]:
        raise CheckpointError(
            f"state.json: `history` has {len(state['history'])} entries, expected one for each of {state['epoch']} "
            "finished epochs; it was not written by this trainer, or was edited.",
            field="history",
        )
    epoch = state["cursor"].get("epoch", state["epoch"])
    if not _is_count(epoch) or not 0 <= epoch - state["epoch"] <= 1:  # the next one, until this one is evaluated
        raise CheckpointError(
            f"state.json: `cursor` is of epoch {epoch!s:.40}, expected the run's epoch {state['epoch']}; it was not "
            "written by this trainer, or was edited.",
            field="cursor",
        )


def check_same_run(config: TrainConfig, state: Mapping[str, Any]) -> None:
    """Check that a checkpoint belongs to the run that `config` describes.

    Raises:
        CursorError: a field differs that may not change within a run; the message names it.
    """
    now, then = config.public_json(), state["config"]
    changed = [name for name in _FIXED if now[name] != then.get(name)]
    if changed:
        listed = "; ".join(f"`{name}` was {then.get(name)!r} and is {now[name]!r}" for name in changed)
        raise CursorError(
            f"{config.run_dir} holds the checkpoints of another run: {listed}. Use another `run_dir`, or "
            "the former values to resume.",
            changed=tuple(changed),
        )
    if config.digest is not None and config.digest != state["digest"]:
        raise CursorError(
            f"{config.run_dir} was trained on data with digest {state['digest']}, and this run is pinned to "
            f"{config.digest}. Use another `run_dir` for other data.",
            expected=config.digest,
            found=state["digest"],
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float}


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_summary(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_number(value.get("loss")) and _is_number(value.get("accuracy"))


_EXPECTED: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("epoch", "a whole number from 0", _is_count),
    ("sums", "three numbers", lambda value: isinstance(value, list) and [*map(_is_number, value)] == [True] * 3),
    (
        "history",
        "a list of epochs with `loss` and `accuracy`",
        lambda value: isinstance(value, list) and all(map(_is_summary, value)),
    ),
    ("cursor", "an object", _is_mapping),
    ("optimizer", "an object", _is_mapping),
    ("config", "an object", _is_mapping),
    ("version", "a whole number from 0 or null", lambda value: value is None or _is_count(value)),
    ("digest", "a text", lambda value: isinstance(value, str)),
)
