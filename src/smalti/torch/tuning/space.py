"""The search space of a study, declared as plain data, and its values in a configuration. Pure.

    {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},   # a float
     "warmup_steps": {"low": 10, "high": 200, "step": 10},        # a whole number, as ends and step are
     "batch_size": [16, 32, 64]}                                  # one of these

Names with dots stand for keys of nested mappings: `optimizer_options.momentum`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from smalti.errors import SchemaError

if TYPE_CHECKING:
    import optuna

C = TypeVar("C")
_FIELDS = {"low", "high", "log", "step"}


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter: some choices, or a range of numbers."""

    name: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None

    def suggest(self, trial: "optuna.Trial") -> Any:
        """Return the value that Optuna proposes for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        is_whole = isinstance(self.low, int) and isinstance(self.high, int) and float(self.step or 1).is_integer()
        if is_whole:
            return trial.suggest_int(self.name, self.low, self.high, step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)


def parse_space(space: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Return the hyperparameters of a search space.

    Raises:
        SchemaError: it is empty, or an entry is neither choices nor a range; the message names it.
    """
    if not space:
        raise SchemaError("the search space is empty: give at least one hyperparameter.")
    return tuple(_dimension(name, entry) for name, entry in space.items())


def _dimension(name: str, entry: Any) -> Dimension:
    if isinstance(entry, Mapping) and set(entry) == {"choices"}:
        entry = entry["choices"]
    if isinstance(entry, (list, tuple)):
        if not entry or not all(each is None or isinstance(each, (bool, int, float, str)) for each in entry):
            raise SchemaError(
                f"`{name}` must have choices that are numbers, texts, true, false or null, not {entry!r}."
            )
        return Dimension(name, tuple(entry))
    if not isinstance(entry, Mapping) or not {"low", "high"} <= set(entry) <= _FIELDS:
        raise SchemaError(
            f"`{name}` must be a list of choices, or a range with `low`, `high`, and perhaps `log` or `step`, "
            f"not {entry!r}."
        )
    found = Dimension(name, **entry)
    if not found.low <= found.high or (found.log and (found.low <= 0 or found.step is not None)):
        raise SchemaError(
            f"`{name}` must have a `low` up to its `high`, and with `log` one above 0 and no `step`, not {entry!r}."
        )
    if found.step is not None and found.step <= 0:
        raise SchemaError(f"`{name}` must have a `step` above 0, or none, not {entry!r}.")
    return found


def with_params(config: C, params: Mapping[str, Any]) -> C:
    """Return a configuration, a dataclass or a mapping, with the values of a trial.

    Raises:
        SchemaError: the configuration has no such field, or the value is not allowed.
    """
    nested: dict[str, Any] = {}
    for name, value in params.items():
        first, dot, rest = name.partition(".")
        if not dot:
            nested[first] = value
            continue
        known = config.get(first) if isinstance(config, Mapping) else getattr(config, first, None)
        inner: Any = nested.get(first, {} if known is None else known)
        nested[first] = with_params(inner if dataclasses.is_dataclass(inner) else dict(inner), {rest: value})
    if isinstance(config, Mapping):
        return {**config, **nested}  # type: ignore[return-value]  # a mapping of the same kind
    fields = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]  # a dataclass, else an error
    if unknown := sorted(nested.keys() - fields):
        raise SchemaError(f"{type(config).__name__} has no field {unknown[0]!r}; it has {', '.join(sorted(fields))}.")
    return dataclasses.replace(config, **nested)  # type: ignore[type-var]  # as above
