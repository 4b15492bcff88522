"""The base of tasks that read some columns of the data as they are stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smalti.errors import SchemaError
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.trainer.task import MARKS, Batch, Task, on_device


@dataclass(frozen=True)
class KeptColumns:
    """A transform of batches that leaves some columns."""

    names: tuple[str, ...]

    on_batches = True
    thread_safe = True

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns."""
        return {name: batch[name] for name in self.names}


class ColumnsTask(Task):
    """The base of tasks whose samples are the values of some columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        raise NotImplementedError(f"{type(self).__name__} has no `columns`")

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Check that the data have the columns."""
        for name in self.columns:
            if name not in columns:
                raise SchemaError(
                    f"task '{config.task}' reads the column '{name}', but {config.data} has the columns "
                    f"{', '.join(sorted(columns))}.",
                    column=name,
                )

    def transform(self, config: TrainConfig, *, training: bool) -> Callable[[Any], Any]:  # noqa: ARG002
        """Return a transform that leaves the columns only."""
        return KeptColumns(self.columns)


def blank_batch(values: Mapping[str, torch.Tensor], device: torch.device) -> Batch:
    """Return a batch of two samples on the device, each numbered 0."""
    return on_device({**values, **{name: torch.zeros(2, dtype=torch.int64) for name in MARKS}}, device)
