"""Where a run stands, as its checkpoints tell it: epochs and steps done, running figures, and whether it may go on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smalti.errors import CursorError
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
"""What may not change between two lives of a run; the others (epochs, batch size, ranks, rates) may."""


@dataclass
class Progress:
    """The mutable place of a run; equal on all ranks but for the running sums, which are this rank's share."""

    step: int = 0
    epoch: int = 0
    """Epoch being trained, from 0."""
    loss_sum: float = 0.0
    right: float = 0.0
    samples: float = 0.0
    """Loss, right answers and samples of this epoch so far."""
    history: list[dict[str, Any]] = field(default_factory=list)

    def to_state(self, sums: list[float]) -> dict[str, Any]:
        """The place as JSON; `sums` are the epoch's running sums over all ranks."""
        return {"epoch": self.epoch, "sums": sums, "history": self.history}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, is_first: bool) -> "Progress":
        """The place that a checkpoint holds; the sums go to rank 0, so that they are counted once."""
        loss_sum, right, samples = state["sums"] if is_first else (0.0, 0.0, 0.0)
        return cls(state["step"], state["epoch"], loss_sum, right, samples, list(state["history"]))

    def begin_epoch(self, epoch: int) -> None:
        """Moves on to an epoch with nothing counted yet."""
        self.epoch, self.loss_sum, self.right, self.samples = epoch, 0.0, 0.0, 0.0


def check_same_run(config: TrainConfig, state: Mapping[str, Any]) -> None:
    """Returns if a checkpoint's run is the one that `config` describes.

    Raises:
        CursorError: something differs that may not change within a run; the message names it.
    """
    now, then = config.public_json(), state["config"]
    changed = [name for name in _FIXED if now[name] != then.get(name)]
    if changed:
        listed = "; ".join(f"`{name}` was {then.get(name)!r} and is {now[name]!r}" for name in changed)
        raise CursorError(
            f"{config.run_dir} holds the checkpoints of another run: {listed}. Use another `run_dir`, or "
            "the former values to go on.",
            changed=tuple(changed),
        )
    if config.digest is not None and config.digest != state["digest"]:
        raise CursorError(
            f"{config.run_dir} was trained on data with digest {state['digest']}, and this run is pinned to "
            f"{config.digest}. Use another `run_dir` for other data.",
            expected=config.digest,
            found=state["digest"],
        )
