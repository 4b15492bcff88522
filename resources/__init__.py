"""The resources of this deployment: storage, Spark and trainer of each stage, and the executor of its runs.

`stages` says what each stage uses, and `storage` how each kind of store is reached. `SMALTI_STAGE` chooses the stage.
"""

import importlib
import os
from collections.abc import Mapping
from typing import Any

import dagster as dg

from resources.stages import STAGES
from resources.storage import storage_of
from smalti_dagster.resources.deployment import detect_resources

Environment = Mapping[str, str]

EXECUTOR = "smalti_dagster.runs.worker:run_bound_executor"
"""One process for each step, which ends with its run."""


def resources_of_stage(environ: Environment | None = None) -> dict[str, Any]:
    """Return the resources of the stage that the environment chooses, by the keys that data sets look for.

    Raises:
        ValueError: there is no such stage, a variable that it needs is not set, or the address has no known scheme.
    """
    return detect_resources(environ, stages=STAGES, storage_of=storage_of)


def executor_of_runs(environ: Environment | None = None) -> dg.ExecutorDefinition:
    """Return the executor that `SMALTI_EXECUTOR` names, such as dagster_k8s:k8s_job_executor; by default `EXECUTOR`.

    Steps of `EXECUTOR` run one at a time: two Spark drivers or trainers at once would fight for the machine.

    Raises:
        ValueError: there is no such executor.
    """
    environ = os.environ if environ is None else environ
    path = environ.get("SMALTI_EXECUTOR") or EXECUTOR
    module, _, name = path.partition(":")
    try:
        executor = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"SMALTI_EXECUTOR must be module:name of an executor, found {path!r}: {error}") from error
    found: dg.ExecutorDefinition = executor
    return found.configured({"max_concurrent": 1}) if path == EXECUTOR else found
