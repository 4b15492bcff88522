"""A regression on tables as a task of the built-in trainer: a number from the other numbers of a row.

    python examples/tabular_regression.py DATA RUN_DIR TARGET FEATURE [FEATURE ...]

DATA is a set of rows, such as one that docs/tabular.md writes. In a configuration of a copy of this file the task is
`task: tabular_regression:TabularRegression`, and its `task_options` are the fields of the class.
"""
# ruff: noqa: ARG002 - the arguments of a task's methods

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, PositiveInt
from pydantic.dataclasses import dataclass

from smalti.errors import SchemaError
from smalti.torch.train import Batch, Outcome, Task, TrainConfig, train


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class TabularRegression(Task):
    """A column of numbers from others, by layers of `hidden` units.

    The features are brought to mean 0 and deviation 1 by batch normalisation; the target by `target_mean` and
    `target_scale`, in whose units the loss is. The figures are in the units of the target.
    """

    main_metric = "mean_squared_error"
    data_options = ("target",)

    features: Sequence[str]
    target: str
    hidden: Sequence[PositiveInt] = (64, 64)
    """Units of each hidden layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_mean: FiniteFloat = 0.0
    target_scale: Annotated[FiniteFloat, Field(gt=0)] = 1.0

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Check that the data have the columns, and that the target is no feature."""
        if not self.features or self.target in self.features:
            raise SchemaError(f"expected `features` without the target '{self.target}', found {list(self.features)}.")
        for name in (*self.features, self.target):
            if name not in columns:
                raise SchemaError(f"the task reads the column '{name}', but {config.data} has {sorted(columns)}.")

    def build_model(self, config: TrainConfig) -> torch.nn.Module:
        """Return the network: (n, features) to (n, 1)."""
        if ":" in config.model:
            raise SchemaError(f"`model` is '{config.model}', but the task builds its own: replace `build_model`.")
        sizes = (len(self.features), *self.hidden)
        layers: list[torch.nn.Module] = [torch.nn.BatchNorm1d(sizes[0], affine=False)]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU(), torch.nn.Dropout(self.dropout)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))

    def batch(
        self, columns: Mapping[str, Any], config: TrainConfig, device: torch.device, *, epoch: int | None
    ) -> Batch:
        """Return features, float32 of shape (n, features), and targets if any, float64 of shape (n,)."""
        inputs = np.column_stack([_numbers(columns, name) for name in self.features]).astype(np.float32)
        values = {"features": torch.from_numpy(inputs)}
        if self.target in columns:  # not in rows that are to be predicted
            values["target"] = torch.from_numpy(_numbers(columns, self.target))
        marks = {name: columns[name] for name in ("_sample_id", "_position")}
        return super().batch({**values, **marks}, config, device, epoch=epoch)

    def loss(self, model: torch.nn.Module, batch: Batch, config: TrainConfig) -> Outcome:
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

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the mean squared and absolute error, and R²: 0 of a target that is everywhere the same."""
        variance = means["squared_target"] - means["target"] ** 2
        return {
            "mean_squared_error": means["squared_error"] * self.target_scale**2,
            "mean_absolute_error": means["absolute_error"] * self.target_scale,
            "r2": 1.0 - means["squared_error"] / variance if variance > 0 else 0.0,
        }

    def predictions(self, model: torch.nn.Module, batch: Batch, config: TrainConfig) -> dict[str, Any]:
        """Return the number that the model expects, in the units of the target."""
        output = model(batch["features"]).double().reshape(-1)
        return {"predicted": output * self.target_scale + self.target_mean}

    def example(self, config: TrainConfig, device: torch.device) -> Batch:
        """Return two rows of zeros."""
        names = (*self.features, self.target, "_sample_id", "_position")
        return self.batch({name: np.zeros(2) for name in names}, config, device, epoch=None)


def _numbers(columns: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    """Return a column as float64; refuse one that does not hold a finite number for each row."""
    values = np.asarray(columns[name])
    if values.dtype.kind not in "biuf" or values.size != len(values):
        raise SchemaError(f"column '{name}' has {values.dtype} of shape {values.shape}; expected a number for each row")
    numbers = values.reshape(-1).astype(np.float64)
    if f"{name}__is_null" in columns:
        numbers[np.asarray(columns[f"{name}__is_null"])] = np.nan
    for row in np.flatnonzero(~np.isfinite(numbers)):
        raise SchemaError(
            f"column '{name}' of sample {int(columns['_sample_id'][row])} holds {numbers[row]}; fill or leave out such "
            "rows when the data are written."
        )
    return numbers


if __name__ == "__main__":
    data, run_dir, target, *features = sys.argv[1:]
    task = f"{Path(__file__).stem}:TabularRegression"  # this file, which the processes of a run import
    config = TrainConfig(data=data, run_dir=run_dir, task=task, task_options={"features": features, "target": target})
    print(train(config).metrics)  # noqa: T201
