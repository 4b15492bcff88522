"""The columns of the data that a task reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from smalti.errors import SchemaError
from smalti.torch.train.config import TrainConfig


@dataclass(frozen=True)
class KeptColumns:
    """A transform of batches that leaves some columns."""

    names: tuple[str, ...]

    on_batches = True
    thread_safe = True

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns."""
        return {name: batch[name] for name in self.names}


def require_columns(config: TrainConfig, columns: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise a SchemaError about a column that the data do not have."""
    for name in names:
        if name not in columns:
            raise SchemaError(
                f"task '{config.task}' reads the column '{name}', but {config.data} has the columns "
                f"{', '.join(sorted(columns))}.",
                column=name,
            )
