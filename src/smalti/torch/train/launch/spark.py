"""Ranks that Spark's TorchDistributor starts: on the driver's machine, or one per task on the executors."""

import contextlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti.errors import MissingDependency, SmaltiError, TrainingError
from smalti.interpreter import use_driver_python
from smalti.orphans import end_with_parent
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.events import METRICS_FILE, OnEvent, following
from smalti.torch.train.launch.environment import (
    STORAGE_OPTIONS_VARIABLE,
    CarriedEnvironment,
    detect_storage_environment,
    storage_options_from_environment,
)
from smalti.torch.train.launch.failures import failures_recorded, forget_failures, read_failure
from smalti.torch.train.launch.model_source import importable, read_source
from smalti.torch.train.loop import train_here

_TAIL_LINES = 40


def train_on_spark(config: TrainConfig, on_event: OnEvent | None = None) -> TrainResult:
    """Trains with `config.num_processes` processes under TorchDistributor; needs a Spark session, or starts one.

    Raises:
        MissingDependency: pyspark is not installed.
        TrainingError: a rank failed; the message names it and holds the end of its traceback.
    """
    distributor = _distributor(config)
    forget_failures(Path(config.run_dir))
    carried = {**detect_storage_environment(), STORAGE_OPTIONS_VARIABLE: json.dumps(dict(config.storage_options))}
    task = replace(config, launcher="inline", num_processes=1, storage_options={}).to_json()
    source = read_source(config.model)
    with following(Path(config.run_dir) / METRICS_FILE, on_event), _surroundings(config, carried):
        try:
            if config.launcher == "spark":
                outcome = distributor.run(_run_rank, task, source, CarriedEnvironment(carried))
            else:
                outcome = distributor.run(_run_rank, task, source)
        except SmaltiError:
            raise
        except Exception as error:
            raise _as_error(config, error) from error
    return TrainResult.from_json(outcome)


def _run_rank(
    task: dict[str, Any],
    source: dict[str, str],
    carried: CarriedEnvironment | None = None,  # noqa: ARG001 - its arrival sets the environment
) -> dict[str, Any]:
    """Train as one rank; the same small plain dict comes back from all, as only one of them is kept."""
    # torchrun's agent, the parent, is killed half a second after it was asked to end its ranks.
    end_with_parent(os.getppid())
    config = replace(TrainConfig.from_json(task), storage_options=storage_options_from_environment())
    with failures_recorded(Path(config.run_dir)), importable(config.model, source):
        return train_here(config).to_json()


def _distributor(config: TrainConfig) -> Any:
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
    local = config.launcher == "spark-local"
    wanted = "spark.driver.resource.gpu.amount" if local else "spark.task.resource.gpu.amount"
    # Without Spark's knowledge of GPUs, local children see those of this machine; tasks on executors see none.
    use_gpu = config.device != "cpu" and session.conf.get(wanted, None) is not None
    return TorchDistributor(num_processes=config.num_processes, local_mode=local, use_gpu=use_gpu)


@contextlib.contextmanager
def _surroundings(config: TrainConfig, carried: dict[str, str]) -> Iterator[None]:
    """Local children inherit this process's environment: the options are there for as long as the run lasts.

    TorchDistributor seeds Python's generator where it chooses GPUs; it is put back.
    """
    before, state = os.environ.get(STORAGE_OPTIONS_VARIABLE), random.getstate()
    if config.launcher == "spark-local":
        os.environ[STORAGE_OPTIONS_VARIABLE] = carried[STORAGE_OPTIONS_VARIABLE]
    try:
        yield
    finally:
        random.setstate(state)
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
