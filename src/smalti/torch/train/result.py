"""The result of a run of the built-in trainer. Imports no torch, so that the code location can read it without it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smalti.torch.train.values import plain


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The figures of a finished run, and the addresses of its model and newest checkpoint."""

    accuracy: float | None
    """Fraction of the evaluation samples that were classified correctly, in [0, 1]; None of tasks without one."""
    loss: float
    """Mean loss over the evaluation samples; of classifiers the cross entropy, without label smoothing."""
    epochs: int
    steps: int
    history: tuple[dict[str, Any], ...]
    """One summary per epoch, over all lives of the run; the last one may be of a part of an epoch."""
    model_dir: str
    checkpoint: str
    images_per_second: float
    """Training samples per second of this life, over all ranks, without evaluation; 0 if the run was finished."""
    seconds: float
    resumed_from: dict[str, Any] | None
    """`checkpoint`, `step`, `epoch` and `skipped` (broken checkpoints, newest first); None for a fresh start."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All figures of the task over the evaluation samples, by name, and `loss`."""
    main_metric: str = "accuracy"
    """The one by which models are compared; `loss` if the task's own needs an evaluation, and there was none."""
    higher_is_better: bool = True
    """True if the better of two models has the higher one."""
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """The summary of the evaluation that the figures are of: its `step` is that of the model's weights."""
    data_fraction: float = 0.0
    """Share of the time in which training waited for data, in this life."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "TrainResult":
        """Return the result that `to_json` wrote."""
        return cls(**{**obj, "history": tuple(obj["history"])})
