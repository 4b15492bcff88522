"""The op of a data set's raw data, preprocessed rows and shards: one process, one Spark session, checks included.

A run evaluates the checks of an asset directly after it. A blocking check that fails ends the op: the stages after it
are not made, and what was made before stays recorded. Each asset, and each check, can be executed by itself, and an op
may make a part of the stages.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import create_model

from smalti_dagster.checks.check import DataCheck, evaluate
from smalti_dagster.checks.content import build_prepared_checks, build_raw_checks
from smalti_dagster.checks.shards import build_shard_checks
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.lineage import entered_config, facts_of, is_reexecuted_whole, latest, made_before, tag_run, upstream
from smalti_dagster.places import shards_of
from smalti_dagster.resources.spark import ComputeResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.shard_tags import release_ended_trainings
from smalti_dagster.sources.partitions import read_before
from smalti_dagster.sources.unchanged import UNCHANGED_WHILE
from smalti_dagster.stage import Facts, RunPartitions, StageInput, stage_op
from smalti_dagster.stages.prepared import prepared_spec
from smalti_dagster.stages.raw import raw_spec
from smalti_dagster.stages.running import CONFIGS, run_stage
from smalti_dagster.stages.shards import shards_spec
from smalti_dagster.stages.source import record_read

TAKEN_FROM = "taken_from_run"
"""In the metadata of a materialisation that records that of the run that failed once more."""

_SPECS: Mapping[Stage, Callable[[Declaration], dg.AssetSpec]] = {
    "raw": raw_spec,
    "prepared": prepared_spec,
    "shards": shards_spec,
}
_CHECKS: Mapping[Stage, Callable[[Declaration], list[DataCheck]]] = {
    "raw": build_raw_checks,
    "prepared": build_prepared_checks,
    "shards": build_shard_checks,
}


def data_config(declared: Declaration, stages: Iterable[Stage]) -> type[dg.Config]:
    """Return the configuration of an op: a section for each of its stages, with the values of a declaration."""
    sections = {stage: CONFIGS[stage](declared) for stage in stages}
    fields: dict[str, Any] = {stage: (each, each()) for stage, each in sections.items() if each is not None}
    return create_model("DataConfig", __base__=dg.Config, __doc__="The stages of a data set.", **fields)


def data_stages(declared: Declaration) -> tuple[Stage, ...]:
    """Return the stages of a data set up to its shards, in order."""
    return tuple(stage for stage in declared.stages if stage != "model")


def data_spec(declared: Declaration, stage: Stage) -> dg.AssetSpec:
    """Return the specification of the asset of a stage up to the shards."""
    return _SPECS[stage](declared)


def data_checks(declared: Declaration, stage: Stage) -> list[DataCheck]:
    """Return the checks of a stage up to the shards."""
    return _CHECKS[stage](declared)


def build_data(declared: Declaration, specs: Iterable[dg.AssetSpec] | None = None) -> dg.AssetsDefinition:
    """Return the op that makes stages of a data set up to its shards, in one process and one Spark session.

    Args:
        declared: The data set.
        specs: The assets; by default all. `prepared` takes its images from the first asset that it depends on.
    """
    given = [data_spec(declared, stage) for stage in data_stages(declared)] if specs is None else list(specs)
    by_stage = {stage: spec for stage in data_stages(declared) for spec in given if spec.key == declared.key(stage)}
    stages = tuple(by_stage)
    checks = {stage: data_checks(declared, stage) for stage in stages}
    inputs: dict[Stage, dg.AssetKey] = {}
    if "prepared" in by_stage:
        inputs["raw"] = _images_of(declared, by_stage["prepared"])

    @stage_op(
        declared.op_of(stages),
        list(by_stage.values()),
        [check.spec for stage in stages for check in checks[stage]],
        config=data_config(declared, stages),
        pool="spark",
        partitions=declared.partitions_definition,
    )
    def data(
        context: dg.AssetExecutionContext, config: Any, storage: StorageResource, spark: ComputeResource
    ) -> Iterator[Any]:
        run = _Run(context, declared, inputs)
        selected = [stage for stage in stages if declared.key(stage) in context.selected_asset_keys]
        for stage in stages:
            if stage in selected:
                is_last = stage == selected[-1]
                yield from _make(run, stage, getattr(config, stage, None), storage, spark, is_last=is_last)
            facts = functools.partial(run.facts, stage)
            is_stopped = yield from evaluate(context, declared, checks[stage], storage, facts)
            if is_stopped:
                return  # Dagster fails the step

    return data


def _images_of(declared: Declaration, prepared: dg.AssetSpec) -> dg.AssetKey:
    """Return the key of the asset whose images are prepared: `raw`, or one that stands between the two."""
    keys = [dep.asset_key for dep in prepared.deps]
    return declared.key("raw") if declared.key("raw") in keys else keys[0]


class _Run:
    """One execution of the op: the facts of its stages, and whether it makes anything anew."""

    def __init__(
        self, context: dg.AssetExecutionContext, declared: Declaration, inputs: Mapping[Stage, dg.AssetKey]
    ) -> None:
        self.context, self.declared, self._inputs = context, declared, inputs
        self.is_anew = False
        rewrites = bool(entered_config(context.run, declared, "shards").get("rewrite"))
        self.reads_again = rewrites or is_reexecuted_whole(context.run)
        self._facts: dict[Stage, Facts] = {}

    def facts(self, stage: Stage) -> Facts:
        """Return the facts of the materialisation of a stage that this op has made, or builds on."""
        if stage not in self._facts:
            self._facts[stage] = upstream(self.context, self.declared.key(stage))
        return self._facts[stage]

    def input(self, stage: Stage) -> Facts:
        """Return the facts that a later stage takes as those of a stage: another asset may stand between the two."""
        key = self._inputs.get(stage, self.declared.key(stage))
        return self.facts(stage) if key == self.declared.key(stage) else upstream(self.context, key)

    def keep(self, stage: Stage, facts: Facts) -> None:
        """Keep the facts of a stage for those after it."""
        self._facts[stage] = facts


def _make(
    run: _Run, stage: Stage, config: Any, storage: StorageResource, spark: ComputeResource, *, is_last: bool
) -> Iterator[dg.MaterializeResult[Any]]:
    """Make an asset, or take it from the run that failed."""
    context, declared, key = run.context, run.declared, run.declared.key(stage)
    made = None if run.is_anew else made_before(context, key)
    if made is not None:
        facts = facts_of(made)
        run.keep(stage, facts)
        context.log.info("%s is taken from run %s, which has made it", key.to_user_string(), made.run_id)
        if made.run_id != context.run.run_id and _is_waited_for(context, key):
            yield _recorded_again(made, key)
        return
    run.is_anew = True  # what comes after it is not taken from elsewhere
    context.log.info(key.to_user_string())
    last = latest(context.instance, key)
    step = StageInput(
        declared,
        context.run.run_id,
        context.log,
        upstream={each: run.input(each) for each in _needs(declared, stage)},
        last=_facts_before(run, last),
        partitions=_partitions_of(context, declared, storage) if declared.partitions is not None else None,
    )
    result = run_stage(context, stage, step, config, storage, spark, is_last=is_last)
    run.keep(stage, result.facts)
    tag_run(context, declared, **result.tags)
    if stage == "shards":
        release_ended_trainings(context, shards_of(declared, storage).store())
    metadata = dict(result.metadata)
    if step.partitions is not None and len(step.partitions.keys) > 1:
        shown = {name: metadata.pop(name) for name in _long(metadata)}
        if shown:
            context.log_event(dg.AssetObservation(key, metadata=shown))
    version = dg.DataVersion(result.data_version)
    tags = record_read(context, declared, result.facts, storage) if stage == "raw" else None
    yield dg.MaterializeResult(asset_key=key, data_version=version, metadata=metadata, tags=tags)


def _facts_before(run: _Run, last: dg.EventLogEntry | None) -> Facts:
    """Return the facts of the materialisation before; without what would spare reading, where all is to be read."""
    facts = facts_of(last) if last is not None else {}
    return {name: fact for name, fact in facts.items() if not (run.reads_again and name == UNCHANGED_WHILE)}


def _long(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of pictures and tables: the materialisations of many partitions have them once, beside them."""
    kinds = (dg.MarkdownMetadataValue, dg.TableMetadataValue)
    return [name for name, value in metadata.items() if isinstance(value, kinds)]


def _partitions_of(context: dg.AssetExecutionContext, declared: Declaration, storage: StorageResource) -> RunPartitions:
    """Return the partitions of a run, and what was read of all others."""
    keys = tuple(context.partition_keys)
    return RunPartitions(keys, read_before(context.instance, declared, storage, without=keys))


def _needs(declared: Declaration, stage: Stage) -> tuple[Stage, ...]:
    """Return the stages whose facts a stage needs: the one before it, and of rows also the source."""
    stages = data_stages(declared)
    before = stages[: stages.index(stage)]
    return before if declared.source.kind == "rows" else before[-1:]


def _is_waited_for(context: dg.AssetExecutionContext, key: dg.AssetKey) -> bool:
    """Return whether another op of this run waits for an asset: Dagster would skip it without a materialisation."""
    layer = context.job_def.asset_layer
    waiting = layer.get(key).child_keys & set(layer.executable_asset_keys)
    return bool(waiting - context.selected_asset_keys)


def _recorded_again(made: dg.EventLogEntry, key: dg.AssetKey) -> dg.MaterializeResult[Any]:
    """Return the materialisation of the run that failed as one of this run: the same version, not the newest."""
    recorded: Any = made.asset_materialization
    metadata = {**recorded.metadata, TAKEN_FROM: dg.MetadataValue.dagster_run(made.run_id)}
    return dg.MaterializeResult(
        asset_key=key, data_version=dg.DataVersion(recorded.tags["dagster/data_version"]), metadata=metadata
    )
