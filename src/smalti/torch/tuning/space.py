"""The options of a study, and its search space, declared as plain data. Imports no torch.

    {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},   # a float
     "warmup_steps": {"low": 10, "high": 200, "step": 10},        # a whole number, as ends and step are
     "batch_size": [16, 32, 64]}                                  # one of these

Names with dots stand for keys of nested mappings: `optimizer_options.momentum`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from smalti.errors import SchemaError
from smalti.redaction import hide_options
from smalti.storage.opening import check_address
from smalti.torch.train.config import TrainConfig, place_of_option

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

    Args:
        config: A dataclass or a mapping.
        params: Values by name.

    Raises:
        SchemaError: the configuration has no such field, or the value is not allowed.

    Examples:
        >>> with_params({"rate": 0.1, "layers": 2}, {"rate": 0.3})
        {'rate': 0.3, 'layers': 2}
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
        place = place_of_option(unknown[0]) if isinstance(config, TrainConfig) else ""
        raise SchemaError(
            f"{type(config).__name__} has no field {unknown[0]!r}; it has {', '.join(sorted(fields))}.{place}"
        )
    return dataclasses.replace(config, **nested)  # type: ignore[type-var]  # as above


# ------------------------------------------------------------ options


SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "hyperband", "none")
PLACES = ("processes", "spark", "inline")
DIRECTIONS = ("maximize", "minimize")


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The place of a study, its aim and its budget."""

    study_dir: str
    """Path or URL of the folder of the study: its journal, its result, and the runs of its trials.

    Runs of trials as Spark tasks need a path that all executors share, or a URL."""
    metric: str = "accuracy"
    """Figure to compare trials by: of the trainer's result and epochs, or of a function's value and reports."""
    direction: str = "maximize"
    """`maximize` or `minimize`."""
    trials: int = 20
    """Number of trials, those of earlier lives of the study included."""
    seconds: float | None = None
    """Time after which no trial is started any more; those that run are finished."""
    parallel: int = 1
    """Trials that run at once."""
    trials_on: str = "processes"
    """`processes`: children of this one; `spark`: tasks of the active Spark session; `inline`: in this process."""
    sampler: str = "tpe"
    """`tpe` learns from the trials so far; `random` does not."""
    pruner: str = "median"
    """Ends trials that are worse than others were at the same step: `median`, `hyperband` or `none`."""
    seed: int = 17
    """Seed of the proposals. Those of one trial at a time are always the same, however often the study is resumed."""
    max_failures: int = 3
    """Failed trials that one life of the study tolerates."""
    storage: str | None = None
    """URL of a database for Optuna, such as sqlite:///study.db; None: a journal in `study_dir`."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the store of `study_dir`, which may contain secrets."""

    def __post_init__(self) -> None:
        hide_options(self)
        check_address(self.study_dir)
        choices = {"direction": DIRECTIONS, "trials_on": PLACES, "sampler": SAMPLERS, "pruner": PRUNERS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SchemaError(f"`{name}` must be one of {', '.join(allowed)}, not {getattr(self, name)!r}.")
        if self.trials_on == "inline" and self.parallel > 1:
            raise SchemaError(f"`parallel` must be 1 with trials_on='inline', not {self.parallel!r}.")
        least = {"trials": 1, "parallel": 1, "max_failures": 0}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise SchemaError(f"`{name}` must be at least {number}, not {getattr(self, name)!r}.")
