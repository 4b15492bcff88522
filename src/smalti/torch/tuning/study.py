"""A study: trials side by side, with what Optuna proposes from those before, until the budget is spent.

Intended behaviour:
1. One process conducts a study at a time, as one process trains a run: a lock in a local folder, a numbered life in a
   store. It alone writes the journal, and takes the figures from the events of the trials.
2. A trial is a run of its own in `<study_dir>/trials`, with checkpoints. A trial whose conductor was killed is
   continued from its newest checkpoint by the next call, with the same settings.
3. A trial that is pruned, and all of them when this process is interrupted, end in seconds, with all their processes.
4. A study keeps its aim, its space and its data: what was found before with others is no guide. All trials read the
   version that was the newest when the study began, or the one that is given.
5. A failed trial is part of the result. More than `max_failures` of them end the study.
"""

import contextlib
import json
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from smalti.catalog import load_manifest
from smalti.errors import MissingDependency, SchemaError, SmaltiError, TrainingError
from smalti.storage import Store, open_store
from smalti.torch.train.config import RunConfig, TrainConfig
from smalti.torch.train.launchers.processes import run_in_processes
from smalti.torch.train.launchers.start import Program, run_program
from smalti.torch.train.life import StopSignal
from smalti.torch.train.run.events import Event, OnEvent
from smalti.torch.train.run.store import LocalRun, StoreRun, opened_run
from smalti.torch.tuning.space import Dimension, StudyOptions, parse_space, with_params

if TYPE_CHECKING:
    import optuna

    from smalti.torch.train.context import Context

RESULT_FILE = "study.json"
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 25.0  # for trials to end after they were asked to
_GRACE_OF_RANKS = 20.0  # of these, at most, before processes are killed
_KILL_SECONDS = 60.0  # longest wait for one that is ended after that
_MAX_LIVES = 3  # of one trial, whose conductor is killed each time
_MAX_FAILURE = 2000  # characters of a reason that are kept
_WARM_UP_TRIALS = 3  # before the median is one
_SEED_STEP = 1_000_003
RUN_DIR, FAILURE, CONTINUES = "run_dir", "failure", "continues"
"""Attributes of trials: the folder of the run, the reason why it failed, and the number of the trial it continues."""
_KEPT = "smalti"
"""Attribute of a study with what must not change while it lasts."""


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


def hyperparameter_study(
    trained: "TrainConfig | Callable[[Context], Any]",
    space: Mapping[str, Any],
    options: StudyOptions,
    config: Any = None,
    *,
    on_event: OnEvent | None = None,
    **run: Any,
) -> StudyResult:
    """Find good hyperparameters by trials; blocks until the budget is spent. The same call resumes a study.

    Args:
        trained: a `TrainConfig`, whose fields are the hyperparameters; or a function as `launch` takes it, which
            returns the figure or a dict with it, and may report it at steps so that bad trials end early.
        space: the hyperparameters, as plain data; see `space`.
        options: place, aim and budget.
        config: of a function: a mapping or dataclass that gets the hyperparameters; None: they alone are its `config`.
        on_event: called with {"event": "trial", "number": ..., "state": ..., ...} when a trial begins and ends.
        run: of a function: fields of `RunConfig`, such as `data`.

    Raises:
        TrainingError: too many trials failed, or another process conducts the study.
        SchemaError: the space or the options are not valid, or those of an earlier call in the same folder were others.
        MissingDependency: Optuna is not installed.

    Examples:
        >>> def fit(context):
        ...     context.report({"loss": abs(context.config["rate"] - 0.3)}, step=1)
        ...     return {"loss": abs(context.config["rate"] - 0.3)}
        >>> options = StudyOptions(study_dir="s3://bucket/studies/1", metric="loss", direction="minimize", trials=2)
        >>> result = hyperparameter_study(fit, {"rate": [0.1, 0.3]}, options, {"rate": 0.1}, data="s3://bucket/users")
        >>> len(result.trials)
        2
    """
    base = _base_program(trained, config, options, run)
    dimensions = parse_space(space)
    _trial_program(base, {each.name: (*each.choices, each.low)[0] for each in dimensions}, options.study_dir)  # fits?
    place = RunConfig(run_dir=options.study_dir, run_storage_options=options.storage_options)
    # Another process cannot conduct the study meanwhile, or in a store makes this one stop.
    with opened_run(place) as files, files.begun(num_ranks=1):
        store = open_store(place.local_run_dir or options.study_dir, place.run_dir_options)
        study = _opened_study(options, store)
        base = _pinned(base, study)
        facts = _facts_to_keep(base.config, dimensions, options)
        _check_same(study, facts, options.study_dir)
        if isinstance(version := facts["data version"], int):
            base = replace(base, config=replace(base.config, version=version))
        conductor = Conductor(study, base, dimensions, options, files, on_event)
        conductor.continue_stale()
        conductor.run()
        direction = study.direction.name.lower()
        result = StudyResult(options.metric, direction, trials_of(study), _importances(study))
        store.put(RESULT_FILE, json.dumps(result.to_json(), allow_nan=True).encode())
    return result


@dataclass
class Conductor:
    """The loop that starts trials and ends them. Each runs in a thread, which also reports and prunes it."""

    study: "optuna.Study"
    base: Program
    dimensions: tuple[Dimension, ...]
    options: StudyOptions
    files: LocalRun
    on_event: OnEvent | None = None
    _running: "list[RunningTrial]" = field(default_factory=list)
    _failures: list[str] = field(default_factory=list)

    def continue_stale(self) -> None:
        """Queue the trials of a conductor that was killed, which continue from their checkpoints."""
        import optuna

        for stale in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            lives = 1 + int(stale.user_attrs.get("life", 0))
            self.study.tell(stale.number, state=optuna.trial.TrialState.FAIL)
            if lives < _MAX_LIVES and stale.params.keys() == {each.name for each in self.dimensions}:
                known = {RUN_DIR: stale.user_attrs[RUN_DIR]} if RUN_DIR in stale.user_attrs else {}
                self.study.enqueue_trial(stale.params, user_attrs={**known, CONTINUES: stale.number, "life": lives})

    def run(self) -> None:
        """Run trials until the budget is spent.

        Raises:
            TrainingError: too many failed, or the study was continued elsewhere.
            Exception: of the study's storage. The trials that were running continue with the next call.
        """
        deadline = math.inf if self.options.seconds is None else time.monotonic() + self.options.seconds
        try:
            while True:
                num_done = sum(trial.state != "running" for trial in trials_of(self.study))
                missing = self.options.trials - num_done - len(self._running)
                if missing > 0 and len(self._running) < self.options.parallel and time.monotonic() < deadline:
                    self._start()
                    continue
                if not self._running:
                    return
                for running in [running for running in self._running if not running.thread.is_alive()]:
                    self._running.remove(running)
                    self._conclude(running)
                time.sleep(_POLL_SECONDS if self.options.trials_on != "inline" else 0.001)
        finally:
            for running in self._running:
                running.stop()
            deadline = time.monotonic() + _GRACE_SECONDS
            for running in self._running:
                running.thread.join(max(0.0, deadline - time.monotonic()))
            for running in self._running:
                if running.thread.is_alive():  # its processes were killed, and a thread cannot be
                    running.stop()
                    running.thread.join(_KILL_SECONDS)

    def _start(self) -> None:
        import optuna

        if isinstance(self.files, StoreRun):
            self.files.check_current()  # the study may have been continued elsewhere
        # One sampler for each trial: proposals depend on the seed, the number and the trials before, and on no restart.
        kind = optuna.samplers.RandomSampler if self.options.sampler == "random" else optuna.samplers.TPESampler
        number = len(self.study.get_trials(deepcopy=False))
        self.study.sampler = kind(seed=(self.options.seed * _SEED_STEP + number) % 2**32)
        trial = self.study.ask()
        params = {each.name: each.suggest(trial) for each in self.dimensions}
        run_dir = trial.user_attrs.get(RUN_DIR) or f"{self.options.study_dir.rstrip('/')}/trials/{trial.number:05d}"
        trial.set_user_attr(RUN_DIR, run_dir)
        try:
            program = _trial_program(self.base, params, run_dir)
        except SchemaError as error:
            self._finish(trial, "failed", failure=str(error))
            return
        environment = {}
        if self.options.parallel > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.options.parallel))
        stop = StopSignal()
        run: Callable[[OnEvent], dict[str, Any]] = partial(run_program, program)
        ask: Callable[[], object] = partial(stop.request, "SIGTERM")
        if self.options.trials_on == "spark":
            from smalti.torch.tuning.spark_trial import SparkTask

            task = SparkTask(program, environment)
            run, ask = task.run, task.cancel
        elif self.options.trials_on == "processes":
            grace = min(program.config.grace_seconds, _GRACE_OF_RANKS)
            program = replace(program, config=replace(program.config, grace_seconds=grace))
            start = partial(run_in_processes, stop=stop, environment=environment)
            run = partial(run_program, program, start=start)
        self._say(trial, "running", params=params, run_dir=run_dir)
        self._running.append(RunningTrial(trial, run, ask, self._is_hopeless))

    def _conclude(self, running: "RunningTrial") -> None:
        if running.fault is not None:
            raise running.fault
        if running.is_pruned:
            self._finish(running.trial, "pruned")
            return
        failure, value = running.failure, None
        if running.result is not None:
            try:
                value = _value_of(running.result, self.options.metric)
            except TrainingError as error:
                failure = str(error)
        self._finish(running.trial, "failed" if value is None else "complete", value, failure=failure)

    def _is_hopeless(self, trial: "optuna.Trial", event: Event) -> bool:
        """Record the figure of an event, and return whether the trial is to be pruned; called by the trial's thread."""
        # Trials are compared at the same epoch, or at the same step of a function: not within the trainer's epochs.
        is_compared = event["event"] == "epoch" or (event["event"] == "report" and "epoch" not in event)
        figures = {**event, **event.get("metrics", {})} if is_compared else {}
        value, step = figures.get(self.options.metric), event.get("epoch", event.get("step"))
        if not isinstance(value, (int, float)) or step is None:
            return False
        if int(step) not in self.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
            trial.report(float(value), int(step))
        return bool(trial.should_prune())

    def _finish(self, trial: "optuna.Trial", state: str, value: float | None = None, *, failure: str = "") -> None:
        import optuna

        states = optuna.trial.TrialState
        if failure:
            trial.set_user_attr(FAILURE, failure[-_MAX_FAILURE:])
        self.study.tell(
            trial, value, state={"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        )
        self._say(trial, state, params=trial.params, value=value, failure=failure[-_MAX_FAILURE:])
        if state == "failed":
            self._failures.append(failure)
            if len(self._failures) > self.options.max_failures:
                raise TrainingError(
                    f"{len(self._failures)} trials of the study {self.options.study_dir} failed, `max_failures` is "
                    f"{self.options.max_failures}. The last one, with {dict(trial.params)}: {failure}",
                    failures=len(self._failures),
                )

    def _say(self, trial: "optuna.Trial", state: str, **facts: Any) -> None:
        if self.on_event is not None:
            event = {"event": "trial", "time": round(time.time(), 3), "number": trial.number, "state": state, **facts}
            self.on_event(event)


class _StoppedError(Exception):
    """The trial was asked to end."""


class RunningTrial:
    """A trial that a thread of this process runs, and prunes if its figures are hopeless.

    Args:
        trial: of Optuna's.
        run: runs it, calls a function with its events, and returns the result.
        stop: asks it to end; from any thread, and perhaps more than once. One that waits in the call with an event ends
            there, too.
        is_hopeless: called with the trial and each of its events.
    """

    def __init__(
        self,
        trial: "optuna.Trial",
        run: Callable[[OnEvent], dict[str, Any]],
        stop: Callable[[], object],
        is_hopeless: "Callable[[optuna.Trial, Event], bool]",
    ) -> None:
        self.trial = trial
        self.result: dict[str, Any] | None = None
        self.failure = ""
        """The reason why an ended trial has no result."""
        self.is_pruned = False
        self.fault: Exception | None = None
        """An error of the study's storage, which is not the trial's failure."""
        self._ask, self._is_hopeless, self._is_stopped = stop, is_hopeless, False
        self.thread = threading.Thread(target=self._run, args=(run,), name="smalti-trial", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ask the trial to end."""
        self._is_stopped = True
        self._ask()

    def _run(self, run: Callable[[OnEvent], dict[str, Any]]) -> None:
        try:
            self.result = run(self._hear)
        except _StoppedError:
            self.failure = "it was stopped"
        except Exception as error:  # noqa: BLE001 - the function's own, or Spark's: the trial's failure
            self.failure = f"{type(error).__name__}: {error}"

    def _hear(self, event: Event) -> None:
        if event["event"] != "output" and not self._is_stopped:
            try:
                self.is_pruned = self._is_hopeless(self.trial, event)
            except Exception as fault:  # noqa: BLE001 - raised by the thread of the study
                self.fault = fault
            if self.is_pruned or self.fault is not None:
                self.stop()
        if self._is_stopped:
            raise _StoppedError


def _base_program(trained: Any, config: Any, options: StudyOptions, run: Mapping[str, Any]) -> Program:
    if isinstance(trained, TrainConfig):
        if config is not None or run:
            raise SchemaError("a TrainConfig has all settings of its trials: leave out `config` and other arguments.")
        base = Program(replace(trained, progress=False))
    else:
        fields = {"run_storage_options": dict(options.storage_options), **run, "run_dir": options.study_dir}
        base = Program(replace(RunConfig.from_json(fields), progress=False), trained, {} if config is None else config)
    launcher = base.config.launcher
    if launcher not in {"inline", "processes"}:
        raise SchemaError(
            f"`launcher` of a study's trials must be inline or processes, not {launcher!r}; trials themselves run as "
            "Spark tasks with trials_on='spark'."
        )
    return base


def _trial_program(base: Program, params: Mapping[str, Any], run_dir: str) -> Program:
    """Return the program of a trial.

    Raises:
        SchemaError: a hyperparameter has no place in the configuration, or a value is not allowed.
    """
    if base.function is not None:
        return replace(base, config=replace(base.config, run_dir=run_dir), argument=with_params(base.argument, params))
    return replace(base, config=with_params(base.config, {**params, "run_dir": run_dir}))


def _pinned(base: Program, study: "optuna.Study") -> Program:
    """Return the program with the version of the data that the study was begun with, unless another one is wanted."""
    kept, config = study.user_attrs.get(_KEPT, {}), base.config
    if config.version is None and kept.get("data version") is not None:
        with contextlib.suppress(SmaltiError):  # as in `_facts_to_keep`; elsewhere the content may have another number
            store = open_store(config.data, dict(config.storage_options))
            manifest = load_manifest(store, version=int(kept["data version"]))
            if manifest.digest == kept.get("data digest"):
                return replace(base, config=replace(config, version=manifest.version))
    return base


def _value_of(result: Mapping[str, Any], metric: str) -> float:
    """Return the figure of a trial's result: of the trainer, or of a function.

    Raises:
        TrainingError: there is none.
    """
    value: Any = result
    if set(result) == {"value"}:
        value = result["value"]
    if isinstance(value, Mapping):
        last = (value.get("history") or [{}])[-1]
        value = {**last, **(value.get("metrics") or {}), **value}.get(metric)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TrainingError(f"the trial has no figure `{metric}`: expected a number, found {value!r:.200}.")
    return float(value)


def _opened_study(options: StudyOptions, store: Store) -> "optuna.Study":
    try:
        import optuna
    except ImportError as error:
        raise MissingDependency("a study needs Optuna: pip install 'smalti[tune]'.", package="optuna") from error
    from smalti.torch.tuning.journal import StoreJournal

    pruners = {
        "median": partial(optuna.pruners.MedianPruner, n_startup_trials=_WARM_UP_TRIALS),
        "hyperband": optuna.pruners.HyperbandPruner,
        "none": optuna.pruners.NopPruner,
    }
    return optuna.create_study(
        storage=options.storage or optuna.storages.JournalStorage(StoreJournal(store)),
        study_name=options.study_dir.rstrip("/"),
        direction=options.direction,
        pruner=pruners[options.pruner](),
        load_if_exists=True,
    )


def _facts_to_keep(
    config: RunConfig, dimensions: tuple[Dimension, ...], options: StudyOptions
) -> dict[str, str | int | None]:
    """Return what must not change while a study lasts; None for what this process cannot know."""
    version, digest = config.version, config.digest
    if config.data:
        with contextlib.suppress(SmaltiError):  # the trials may reach data that this process does not
            manifest = load_manifest(open_store(config.data, dict(config.storage_options)), version=version)
            version, digest = manifest.version, manifest.digest
    space = {each.name: asdict(each) for each in dimensions}
    return {
        "metric": options.metric,
        "direction": options.direction,
        "space": json.dumps(space, sort_keys=True),  # as a text: 1 and 1.0 are different ends
        "data version": version,
        "data digest": digest,
    }


def _check_same(study: "optuna.Study", facts: Mapping[str, Any], study_dir: str) -> None:
    """Record at the first opening of a study what must not change; check it at later ones.

    Raises:
        SchemaError: something else is wanted now; the message names it.
    """
    known = {"direction": study.direction.name.lower(), **study.user_attrs.get(_KEPT, {})}
    both = {name for name in facts if None not in (facts[name], known.get(name))}
    if "data digest" in both:
        both.discard("data version")  # the same content may have another number elsewhere
    changed = [name for name in facts if name in both and facts[name] != known[name]]
    if changed:
        listed = "; ".join(f"{name}: found {facts[name]!r}, expected {known[name]!r}" for name in changed)
        raise SchemaError(
            f"the study {study_dir} was begun with another {' and '.join(changed)}, and figures of both cannot be "
            f"compared: {listed}. Give what it was begun with, a version of the data by `version`, or choose another "
            "`study_dir`.",
            changed=tuple(changed),
        )
    if _KEPT not in study.user_attrs:
        study.set_user_attr(_KEPT, dict(facts))


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
