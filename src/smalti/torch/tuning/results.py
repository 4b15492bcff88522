"""The results of a study: its trials, the best of them, and how much each hyperparameter matters."""

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

RUN_DIR, FAILURE, CONTINUES = "run_dir", "failure", "continues"
"""Attributes of trials: the folder of the run, the reason why it failed, and the number of the trial it continues."""


@dataclass(frozen=True)
class Trial:
    """A trial of a study."""

    number: int
    state: str
    """`complete`, `pruned`, `failed` or `running`."""
    params: Mapping[str, Any]
    value: float | None
    """The last one that was reported, for a pruned trial."""
    seconds: float
    run_dir: str
    failure: str = ""


@dataclass(frozen=True)
class StudyResult:
    """The trials of a study."""

    metric: str
    direction: str
    trials: tuple[Trial, ...]
    """In order of their numbers; those that were killed and continued are not among them."""
    importances: Mapping[str, float]
    """Share of each hyperparameter in the differences between trials; empty if too few are complete."""

    @property
    def best(self) -> Trial | None:
        """The best complete trial; None if there is none."""
        complete = [each for each in self.trials if each.state == "complete" and each.value is not None]
        sign = -1.0 if self.direction == "maximize" else 1.0
        return min(complete, key=lambda each: (sign * float(each.value or 0.0), each.number), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the best trial as plain JSON values."""
        best = self.best
        return {
            **asdict(self),
            "trials": [asdict(each) for each in self.trials],
            "best": asdict(best) if best else None,
        }


def result_of(study: "optuna.Study", metric: str) -> StudyResult:
    """Return what a study has found so far."""
    return StudyResult(metric, study.direction.name.lower(), trials_of(study), _importances(study))


def trials_of(study: "optuna.Study") -> tuple[Trial, ...]:
    """Return the trials of a study in order, without those that others continue."""
    frozen = study.get_trials(deepcopy=False)
    continued = {each.user_attrs.get(CONTINUES) for each in frozen}
    return tuple(_trial(each) for each in frozen if each.number not in continued and each.state.name != "WAITING")


def _trial(frozen: "optuna.trial.FrozenTrial") -> Trial:
    states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    value = frozen.value
    if value is None and frozen.intermediate_values:
        value = frozen.intermediate_values[max(frozen.intermediate_values)]
    return Trial(
        number=frozen.number,
        state=states.get(frozen.state.name, "running"),
        params=dict(frozen.params),
        value=value,
        seconds=round(frozen.duration.total_seconds(), 1) if frozen.duration else 0.0,
        run_dir=str(frozen.user_attrs.get(RUN_DIR, "")),
        failure=str(frozen.user_attrs.get(FAILURE, "")),
    )


def _importances(study: "optuna.Study") -> dict[str, float]:
    import optuna

    with contextlib.suppress(ValueError, RuntimeError), warnings.catch_warnings():  # too few trials, or all alike
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {name: round(float(share), 4) for name, share in found.items()}
    return {}
