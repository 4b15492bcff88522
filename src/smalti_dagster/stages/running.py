"""Running a stage: in this process, or where the deployment has its Spark.

Intended behaviour, for a deployment with a `DatabricksResource`:
1. A stage runs in this process until it asks for Spark: what needs none, such as listing images or finding that
   nothing changed, starts no cluster.
2. Then the whole stage runs again on the cluster, as the same function with the same input, and its result comes back.
   All stages of an op share one job.
3. Input and result are JSON. Credentials are not in it: the cluster opens the storage with variables of its own.
4. A stage that would see other data there, or could not be imported, is refused before a cluster is asked for.
"""

import contextlib
import json
import logging
import os
import platform
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import packages_distributions
from typing import Any

import dagster as dg

from smalti.errors import SmaltiError, StoreNotFound
from smalti.storage import Store
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.places import REFERENCE
from smalti_dagster.resources.databricks.compute import REFERENCE as SECRET
from smalti_dagster.resources.databricks.compute import DatabricksResource
from smalti_dagster.resources.environment import differing_fields, storage_at
from smalti_dagster.resources.spark import ComputeResource, SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.inventory import inventories_of
from smalti_dagster.sources.unchanged import UNCHANGED_WHILE
from smalti_dagster.stage import RunPartitions, StageInput, StageResult
from smalti_dagster.stages.prepared import prepared_config, prepared_stage
from smalti_dagster.stages.raw import raw_config, raw_stage, state_facts, state_of
from smalti_dagster.stages.shards import shards_config, shards_stage
from smalti_dagster.stages.source import WATCHED

CONFIGS: Mapping[Stage, Callable[[Declaration], type[dg.Config] | None]] = {
    "raw": raw_config,
    "prepared": prepared_config,
    "shards": shards_config,
}
"""The configuration of each stage, with the values of a declaration."""

_STAGES: Mapping[Stage, Callable[[StageInput, Any, StorageResource, SparkResource], StageResult]] = {
    "raw": raw_stage,
    "prepared": prepared_stage,
    "shards": shards_stage,
}
_SETTINGS = {"spark.sql.session.timeZone": "UTC"}  # those of a local session that decide what rows are read


class _SparkIsElsewhereError(Exception):
    """A stage asked for Spark in a process that has none."""


class _NoSpark(SparkResource):
    """Spark in a process that has none."""

    def session(self, report: Any = None) -> Any:  # noqa: ARG002  as in the base class
        raise _SparkIsElsewhereError


def run_stage(
    context: dg.AssetExecutionContext,
    stage: Stage,
    step: StageInput,
    config: Any,
    storage: StorageResource,
    spark: ComputeResource,
    *,
    is_last: bool,
) -> StageResult:
    """Return the result of a stage; with Databricks, the stage runs on the cluster as soon as it needs Spark.

    Args:
        context: of the op.
        stage: which one.
        step: its input.
        config: its configuration.
        storage: where its data are.
        spark: a `SparkResource` or a `DatabricksResource`.
        is_last: True for the last stage of the op, after which no cluster is needed.

    Raises:
        dg.Failure: the cluster would not see the same storage, variables or code; or the run there failed.
    """
    if isinstance(spark, SparkResource):
        return _STAGES[stage](step, config, storage, spark)
    if not isinstance(spark, DatabricksResource):
        raise TypeError(f"the resource `spark` must be a SparkResource or a DatabricksResource, found {type(spark)}")
    try:
        return _STAGES[stage](step, config, storage, _NoSpark())
    except _SparkIsElsewhereError:
        step.log.info("%s needs Spark: it runs on Databricks", step.declared.key(stage).to_user_string())
    _refuse_what_differs(step.declared, config, storage, spark)
    arguments = _encode(stage, step, config, storage)
    probe, place = f"probe-{secrets.token_hex(8)}", inventories_of(step.declared, storage).store()
    state = state_of(step, config, storage) if stage == "raw" else None
    place.put(probe, b"")
    try:
        made, shown = spark.run(context, f"{__name__}:run_on_cluster", {**arguments, "probe": probe}, is_last=is_last)
    finally:
        with contextlib.suppress(OSError, SmaltiError):  # it is empty, and what the stage has made counts
            place.delete(probe)
    metadata = dg.deserialize_value(made.pop("metadata"), dict)
    if stage == "raw":  # as this process sees the source, and the watch sensor: the cluster's mounts have other times
        metadata = {name: each for name, each in metadata.items() if name not in (WATCHED, UNCHANGED_WHILE)}
        metadata |= state_facts(state, step, config, storage)
    return StageResult(metadata={**metadata, **shown}, **made)


def run_on_cluster(
    report: Callable[[str], None],
    stage: Stage,
    declared: dict[str, Any],
    config: dict[str, Any] | None,
    facts: str,
    run: dict[str, Any],
    storage: dict[str, str],
    probe: str,
) -> dict[str, Any]:
    """Run a stage in a process on the cluster; arguments and result are what JSON holds.

    Raises:
        dg.Failure: the cluster does not see the storage that Dagster sees.
    """
    found, values = Declaration.model_validate(declared), CONFIGS[stage]
    given: Mapping[str, Any] = dg.deserialize_value(facts, dict)
    partitions = RunPartitions(tuple(run["keys"]), run["others"]) if "keys" in run else None
    step = StageInput(found, run["id"], _log_to(report), given["upstream"], given["last"], partitions)
    made = values(found)
    typed = made.model_validate(config) if made is not None else None
    opened = storage_at(storage["root"], storage["stage"], refer=os.environ.__getitem__)
    _require_same(opened, inventories_of(found, opened).store(), probe)
    spark = SparkResource()
    with spark.session() as session:
        step.log.info("on the cluster: Spark %s, Python %s", session.version, platform.python_version())
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        result = _STAGES[stage](step, typed, opened, spark)
    return {
        "metadata": dg.serialize_value(dict(result.metadata)),
        "data_version": result.data_version,
        "tags": dict(result.tags),
    }


def _require_same(opened: StorageResource, place: Store, probe: str) -> None:
    try:
        place.get(probe)
    except StoreNotFound as error:
        raise dg.Failure(
            f"the cluster does not see in {opened.root} what Dagster has written there: the root must be a store, or a "
            "path that both have mounted",
            allow_retries=False,
        ) from error


def _encode(stage: Stage, step: StageInput, config: Any, storage: StorageResource) -> dict[str, Any]:
    """Return the arguments of `run_on_cluster`."""
    facts: dict[str, Any] = {
        "upstream": {name: dict(each) for name, each in step.upstream.items()},
        "last": dict(step.last),
    }
    return {
        "stage": stage,
        "declared": step.declared.model_dump(mode="json", include={*Declaration.model_fields}),
        "config": config.model_dump(mode="json") if config is not None else None,
        "facts": dg.serialize_value(facts),  # tables and columns are among them
        "run": {"id": step.run_id, **(asdict(step.partitions) if step.partitions is not None else {})},
        "storage": {"root": storage.root, "stage": storage.stage},
    }


def _refuse_what_differs(
    declared: Declaration, config: Any, storage: StorageResource, databricks: DatabricksResource
) -> None:
    """Return only if the cluster has the variables, the code and the storage of this process.

    Raises:
        dg.Failure: one is missing there; says how to give it.
    """
    texts = json.dumps(
        [declared.model_dump(mode="json", exclude={"automation"}), config.model_dump(mode="json") if config else None]
    )
    for name in REFERENCE.findall(texts):
        if name not in databricks.environment:
            raise _refusal(f"the declaration refers to the variable {name}: name it in `environment`")
    installed = packages_distributions()
    for path in filter(None, (declared.function, *declared.source.functions.values())):
        package = re.split(r"[.:]", path)[0]
        if package not in {each.partition(".")[0] for each in databricks.packages} and package not in installed:
            raise _refusal(f"the cluster has no package {package!r} of {path}: name it in `packages`")
    environ = {
        name: os.environ.get(name, "-") if SECRET.fullmatch(value) else value
        for name, value in databricks.environment.items()
    }
    there = storage_at(storage.root, storage.stage, environ)
    if fields := differing_fields(storage, there):
        raise _refusal(
            f"the cluster would open {storage.root} with another {', '.join(fields)}: put the variables of "
            "docs/storage.md into `environment`"
        )


def _refusal(reason: str) -> dg.Failure:
    return dg.Failure(f"the stage cannot run on Databricks; {reason} (docs/databricks.md)", allow_retries=False)


class _Reports(logging.Handler):
    """Hands lines of a log on, to the log of the run in Dagster."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        mark = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        self._report(f"{mark}{record.getMessage()}")


def _log_to(report: Callable[[str], None]) -> logging.Logger:
    log = logging.Logger("smalti.stage", logging.INFO)  # noqa: LOG001  of this call alone
    log.addHandler(_Reports(report))
    return log
