"""Stages of a data set as plain functions, and the properties that its assets have in common.

A stage takes a `StageInput` and its configuration, makes one library call, and returns a `StageResult`. It knows
neither the run's instance nor who calls it: input and result are values that JSON holds, but for the log.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.declaration.conditions import condition_of, freshness_of
from smalti_dagster.faults import retrying
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.runs.usage import Usage, sampled_usage

Facts = Mapping[str, Any]
"""Metadata of a materialisation as plain values, under the names they were written with."""


@dataclass(frozen=True)
class RunPartitions:
    """The partitions of a run, of a data set that has some."""

    keys: tuple[str, ...]
    """Those that the run reads."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Of all others that were read before: what the latest materialisation of `raw` says it has read, by key."""


@dataclass(frozen=True)
class StageInput:
    """The input of a stage, beside its configuration and the resources."""

    declared: Declaration
    run_id: str
    log: logging.Logger
    upstream: Mapping[Stage, Facts] = field(default_factory=dict)
    """Facts of the stages before that this one builds on."""
    last: Facts = field(default_factory=dict)
    """Facts of the materialisation before this one; empty if there is none."""
    partitions: RunPartitions | None = None
    """Of the run; None for a data set without any."""


@dataclass(frozen=True)
class StageResult:
    """A materialisation as a stage describes it."""

    metadata: Mapping[str, Any]
    data_version: str
    tags: Mapping[str, object] = field(default_factory=dict)
    """Facts that the run is tagged with, by the last part of their tags' names."""

    @property
    def facts(self) -> Facts:
        """The metadata as plain values, as a later stage reads them from the event log."""
        return plain(self.metadata)


def plain(metadata: Mapping[str, Any]) -> Facts:
    """Return metadata as plain values."""
    return {name: each.value if isinstance(each, dg.MetadataValue) else each for name, each in metadata.items()}


def stage_spec(
    declared: Declaration,
    stage: Stage,
    *,
    code: str,
    kinds: set[str],
    deps: Iterable[dg.AssetKey] = (),
    description: str | None = None,
) -> dg.AssetSpec:
    """Return the specification of a stage's asset: its key, group, owners, tags, freshness and code.

    Args:
        declared: The data set.
        stage: Which of its assets.
        code: Version of the function; another one, or another declaration, marks the asset as out of date.
        kinds: What the asset is made with and of.
        deps: Keys of the assets that it is made from.
        description: For the UI, in Markdown.
    """
    return dg.AssetSpec(
        key=declared.key(stage),
        deps=list(deps),
        description=description,
        group_name=declared.group or declared.name,
        owners=declared.owners or None,
        tags={"data_set": declared.name, **declared.tags},
        kinds=kinds,
        code_version=declared.code_version(stage, code),
        automation_condition=condition_of(declared, stage),
        freshness_policy=freshness_of(declared, stage),
        skippable=True,  # a re-execution after failure takes it from the run that failed
    )


def stage_op(
    name: str,
    specs: Iterable[dg.AssetSpec],
    checks: Iterable[dg.AssetCheckSpec],
    *,
    config: type[dg.Config],
    pool: str,
    partitions: dg.PartitionsDefinition[str] | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator that makes a function the op of some assets and their checks, each of which may run alone.

    A backfill of many partitions is one run. A transient fault of the storage makes Dagster execute the step again.
    Each materialisation gets the time and memory that it took, as metadata. Nothing is recorded once the run is over.
    """

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        function.__annotations__["config"] = config

        @functools.wraps(function)
        def measured(context: dg.AssetExecutionContext, *, storage: StorageResource, **others: Any) -> Iterator[Any]:
            storage.guard(context.log)
            with sampled_usage() as usage:
                for event in function(context, storage=storage, **others):
                    result = _with_usage(event, usage)
                    storage.refuse_if_over()
                    yield result

        made: dg.AssetsDefinition = dg.multi_asset(
            name=name,
            specs=list(specs),
            check_specs=list(checks),
            can_subset=True,
            pool=pool,
            partitions_def=partitions,
            backfill_policy=dg.BackfillPolicy.single_run() if partitions is not None else None,
        )(with_resources(retrying(measured)))
        return made

    return decorate


def _with_usage(event: Any, usage: Usage) -> Any:
    """Return a materialisation with the time and memory since the event before; its own comes first, and wins."""
    figures = usage.take()
    if isinstance(event, dg.MaterializeResult):
        own = event.metadata or {}
        return event._replace(metadata={**own, **figures, **own})
    return event
