"""The options of a study. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smalti.errors import SchemaError
from smalti.redaction import hide_options
from smalti.storage.opening import check_address

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
    """Of the proposals. Those of one trial at a time are always the same, however often the study is resumed."""
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
