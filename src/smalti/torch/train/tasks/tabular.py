"""Tabular regression: a number from the numbers of a row; mean squared and absolute error, and R²."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from smalti.errors import SchemaError
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.tasks.columns import ColumnsTask, blank_batch
from smalti.torch.train.trainer.models import model_from_function
from smalti.torch.train.trainer.task import Batch, Outcome, on_device, whole_numbers


@dataclass(frozen=True)
class TabularRegression(ColumnsTask):
    """A column of numbers from others. The model has layers of `hidden` units, or is that of `module:function`.

    The features are brought to mean 0 and deviation 1 by batch normalisation; the target by `target_mean` and
    `target_scale`, in whose units the loss is. The figures are in the units of the target.
    """

    features: tuple[str, ...]
    target: str
    hidden: tuple[int, ...] = (64, 64)
    dropout: float = 0.0
    target_mean: float = 0.0
    target_scale: float = 1.0

    main_metric = "mean_squared_error"

    @property
    def columns(self) -> tuple[str, ...]:
        """The features and the target."""
        return (*self.features, self.target)

    def __post_init__(self) -> None:
        for name in ("features", "hidden"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.features or self.target in self.features or self.target_scale <= 0:
            raise SchemaError(
                f"a regression needs `features`, of which `target` is none, and a `target_scale` above 0; found "
                f"{list(self.features)}, '{self.target}' and {self.target_scale}."
            )

    def build_model(self, config: TrainConfig) -> nn.Module:
        """Return the network: (n, features) to (n, 1)."""
        if ":" in config.model:
            return model_from_function(config)
        sizes = (len(self.features), *self.hidden)
        layers: list[nn.Module] = [nn.BatchNorm1d(sizes[0], affine=False)]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(self.dropout)]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def batch(
        self,
        columns: Mapping[str, Any],
        config: TrainConfig,
        device: torch.device,
        *,
        epoch: int | None,  # noqa: ARG002
    ) -> Batch:
        """Return features, float32 of shape (n, features), and targets, float64 of shape (n,).

        Raises:
            SchemaError: a value is no finite number.
        """
        values = np.column_stack([self._numbers(columns, name, config) for name in self.columns])
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            row, place = wrong[0].tolist()
            sample = int(whole_numbers(columns["_sample_id"])[row])
            raise SchemaError(
                f"column '{self.columns[place]}' of sample {sample} holds {values[row, place]}; "
                "expected a finite number: fill or leave out such rows when the data are written.",
                sample_id=sample,
            )
        marks = {name: columns[name] for name in ("_sample_id", "_position")}
        features = torch.from_numpy(values[:, :-1].astype(np.float32))
        return on_device({"features": features, "target": torch.from_numpy(values[:, -1].copy()), **marks}, device)

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:  # noqa: ARG002
        """Return the squared errors in units of `target_scale`."""
        target = (batch["target"] - self.target_mean) / self.target_scale
        output = model(batch["features"]).float().reshape(-1)
        errors = output.detach().double() - target
        scores = {
            "squared_error": errors.square(),
            "absolute_error": errors.abs(),
            "target": target,
            "squared_target": target.square(),
        }
        return Outcome((output - target.float()).square(), scores, outputs=output.detach(), targets=target)

    def example(self, config: TrainConfig, device: torch.device) -> Batch:  # noqa: ARG002
        """Return two rows of zeros."""
        zeros = {"features": torch.zeros(2, len(self.features)), "target": torch.zeros(2, dtype=torch.float64)}
        return blank_batch(zeros, device)

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the mean squared and absolute error, and R²: 0 of a target that is everywhere the same."""
        variance = means["squared_target"] - means["target"] ** 2
        return {
            "mean_squared_error": means["squared_error"] * self.target_scale**2,
            "mean_absolute_error": means["absolute_error"] * self.target_scale,
            "r2": 1.0 - means["squared_error"] / variance if variance > 0 else 0.0,
        }

    def describe(self, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the features in their order, and how the output becomes the target."""
        return {
            "features": list(self.features),
            "target": self.target,
            "target_mean": self.target_mean,
            "target_scale": self.target_scale,
        }

    def _numbers(self, columns: Mapping[str, Any], name: str, config: TrainConfig) -> Any:
        values = np.asarray(columns[name])
        is_null = columns.get(f"{name}__is_null")
        if values.ndim > 2 or values.dtype.kind not in "biuf" or values.size != len(values):
            raise SchemaError(
                f"column '{name}' of {config.data} has {values.dtype} of shape {values.shape} in a batch; expected one "
                "number for each row.",
                column=name,
            )
        values = values.reshape(-1).astype(np.float64)
        return values if is_null is None else np.where(np.asarray(is_null), np.nan, values)
