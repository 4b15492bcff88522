"""Ranks that Spark's TorchDistributor starts on the driver's machine or, one per task, on the executors.

Credentials of stores reach the ranks through the environment, in memory: nothing here writes them to a file.
"""

import contextlib
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti.errors import MissingDependency, SmaltiError, TrainingError
from smalti.process import end_with_parent, use_driver_python
from smalti.storage.schemes import store_variables
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.events import METRICS_FILE, OnEvent, following
from smalti.torch.train.launch.failures import failures_recorded, read_failure, remove_failures
from smalti.torch.train.launch.model_source import importable, read_source
from smalti.torch.train.loop import train_here

STORAGE_OPTIONS_VARIABLE = "SMALTI_STORAGE_OPTIONS"
"""Environment variable with a run's `storage_options` as JSON."""
_TAIL_LINES = 40  # of an error's text


class CarriedEnvironment:
    """Environment variables that are set where this object is unpickled; the unpickled object is empty.

    On the executor, TorchDistributor pickles the arguments of the training function again, into a file. The variables
    must not be in that file, and need not be: the training process inherits the executor's environment.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (self._variables,)

    def __repr__(self) -> str:
        return f"CarriedEnvironment({', '.join(sorted(self._variables))})"


def _set_environment(variables: dict[str, str]) -> CarriedEnvironment:
    os.environ.update(variables)
    return CarriedEnvironment({})


def train_on_driver(config: TrainConfig, on_event: OnEvent | None = None) -> TrainResult:
    """Train with `config.num_processes` processes that TorchDistributor starts on the driver's machine.

    Uses the active Spark session, or starts one.

    Raises:
        MissingDependency: pyspark is not installed.
        TrainingError: a rank failed; the message names it and holds the end of its traceback.
    """
    options = json.dumps(dict(config.storage_options))
    with _storage_options_in_environment(options):  # which the child processes inherit
        return _train(config, on_event, is_local=True)


def train_on_executors(config: TrainConfig, on_event: OnEvent | None = None) -> TrainResult:
    """Train with `config.num_processes` processes, one per task on Spark's executors; else like `train_on_driver`."""
    options = json.dumps(dict(config.storage_options))
    carried = {**store_variables(os.environ), STORAGE_OPTIONS_VARIABLE: options}
    return _train(config, on_event, CarriedEnvironment(carried), is_local=False)


def _train(config: TrainConfig, on_event: OnEvent | None, *carried: CarriedEnvironment, is_local: bool) -> TrainResult:
    distributor = _distributor(config, is_local=is_local)
    remove_failures(Path(config.run_dir))
    task = replace(config, launcher="inline", num_processes=1, storage_options={}).to_json()
    source = read_source(config.model)
    random_state = random.getstate()  # TorchDistributor seeds Python's generator where it chooses GPUs
    with following(Path(config.run_dir) / METRICS_FILE, on_event):
        try:
            outcome = distributor.run(_run_rank, task, source, *carried)
        except SmaltiError:
            raise
        except Exception as error:
            raise _as_error(config, error) from error
        finally:
            random.setstate(random_state)
    return TrainResult.from_json(outcome)


def _run_rank(
    task: dict[str, Any],
    source: dict[str, str],
    carried: CarriedEnvironment | None = None,  # noqa: ARG001 - unpickling it sets the environment
) -> dict[str, Any]:
    """Train as one rank; return the result as a dict, which is equal on all ranks because Spark keeps only one."""
    # The parent, torchrun's agent, is killed half a second after it was asked to end its ranks.
    end_with_parent(os.getppid())
    storage_options = json.loads(os.environ.get(STORAGE_OPTIONS_VARIABLE, "{}"))
    config = replace(TrainConfig.from_json(task), storage_options=storage_options)
    with failures_recorded(Path(config.run_dir)), importable(config.model, source):
        return train_here(config).to_json()


def _distributor(config: TrainConfig, *, is_local: bool) -> Any:
    try:
        from pyspark.errors import PySparkException
        from pyspark.ml.torch.distributor import TorchDistributor
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency(
            f"launcher '{config.launcher}' needs pyspark: pip install 'smalti[spark]', or use launcher='processes'.",
            package="pyspark",
        ) from error
    try:
        session = SparkSession.getActiveSession() or SparkSession.builder.appName("smalti-train").getOrCreate()
    except PySparkException as error:
        raise TrainingError(
            f"launcher '{config.launcher}' found no Spark session and could not start one: {error} Start a "
            "session first, or install Java 17 or later; launcher='processes' needs neither."
        ) from error
    use_driver_python(session)
    gpu_setting = "spark.driver.resource.gpu.amount" if is_local else "spark.task.resource.gpu.amount"
    # Without this setting, local children see the GPUs of this machine; tasks on executors see none.
    use_gpu = config.device != "cpu" and session.conf.get(gpu_setting, None) is not None
    return TorchDistributor(num_processes=config.num_processes, local_mode=is_local, use_gpu=use_gpu)


@contextlib.contextmanager
def _storage_options_in_environment(options: str) -> Iterator[None]:
    before = os.environ.get(STORAGE_OPTIONS_VARIABLE)
    os.environ[STORAGE_OPTIONS_VARIABLE] = options
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(STORAGE_OPTIONS_VARIABLE, None)
        else:
            os.environ[STORAGE_OPTIONS_VARIABLE] = before


def _as_error(config: TrainConfig, error: Exception) -> TrainingError:
    failure = read_failure(Path(config.run_dir), config.num_processes)
    if failure is None:
        return TrainingError(
            f"the {config.num_processes} ranks could not be run by TorchDistributor ({config.launcher}), or do not see "
            f"{config.run_dir}: {_last_lines(str(error))}",
            rank=None,
            output=str(error),
        )
    return TrainingError(
        f"rank {failure.rank} of {config.num_processes} failed under TorchDistributor ({config.launcher}): "
        f"{failure.reason}\n{_last_lines(failure.trace)}",
        rank=failure.rank,
        output=failure.trace,
    )


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
