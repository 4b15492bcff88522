"""Stages of a data set as plain functions, and the properties that its assets have in common.

A stage takes a `StageInput` and its configuration, makes one library call, and returns a `StageResult`. It knows
neither the run's instance nor who calls it: input and result are values that JSON holds, but for the log.

Also here: retries of steps, for which Dagster executes a step again, in the same run, after a fault of the storage that
may well pass.

Every request to a store is retried by the library already, for as long as its deadline allows. This is for outages that
last longer. Other faults are not retried: a second attempt at wrong data or options fails as the first one did.

Also here: Dagster's automation conditions and freshness policies of the assets of a data set, as declared in
`automation`.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from smalti.errors import StoreError, TrainingError
from smalti.storage.errors import is_transient
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.declaration.automation import cron_ticks
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
    """All others that were read before: what the latest materialisation of `raw` says it has read, by key."""


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
    """The partitions of the run; None for a data set without any."""


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


STORE_RETRIES = 2
"""Times that a step is executed again."""


def retrying(function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """Return the function of an op, whose step is executed again after a transient fault of the storage."""

    @functools.wraps(function)
    def tried(context: dg.AssetExecutionContext, *, storage: StorageResource, **others: Any) -> Iterator[Any]:
        try:
            yield from function(context, storage=storage, **others)
        except (StoreError, TrainingError) as error:
            if not is_transient(error):
                raise
            wait = storage.retry_seconds * 4**context.retry_number
            context.log.warning(
                "%s; the step is executed again in %.0f s, at most %s times", error, wait, STORE_RETRIES
            )
            raise dg.RetryRequested(max_retries=STORE_RETRIES, seconds_to_wait=wait) from error

    return tried


_FRIDAY, _TICKS = datetime(2024, 1, 5, 23), 70  # noqa: DTZ001  from when on a pause is looked for, in how many ticks


def condition_of(declared: Declaration, stage: Stage) -> dg.AutomationCondition[Any] | None:
    """Return the condition of an asset; None if the data set declares none, or not for this asset.

    The data assets are requested together in one run; the model when the blocking checks of the shards have passed.
    """
    automation = declared.automation
    if automation.condition is None or (stage == "model" and not automation.train_on_new_version):
        return None
    condition = _declared(declared, stage)
    if stage == "model":  # not in the run that makes the shards, whose checks are not known yet
        condition &= dg.AutomationCondition.all_deps_blocking_checks_passed()
        condition &= ~dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())
    return condition


def _declared(declared: Declaration, stage: Stage) -> dg.AutomationCondition[Any]:
    automation = declared.automation
    if stage == "model":
        return dg.AutomationCondition.eager()
    if automation.condition == "on_missing":
        return dg.AutomationCondition.on_missing()
    if automation.condition == "eager":
        return dg.AutomationCondition.eager()
    at_times = dg.AutomationCondition.on_cron(str(automation.reshard), automation.timezone)
    # An unchanged source is not observed again, and must not be waited for.
    return at_times.ignore(dg.AssetSelection.assets(declared.source_key)) if stage == "raw" else at_times


def freshness_of(declared: Declaration, stage: Stage) -> dg.FreshnessPolicy | None:
    """Return the freshness policy of an asset: of the shards alone, as declared, or by the times of `reshard`."""
    given = declared.automation.freshness
    if given is None or stage != "shards":
        return None
    fail = timedelta(hours=given.fail_hours) if given.fail_hours is not None else _two_pauses(declared)
    if fail is None:
        return None
    warn = timedelta(hours=given.warn_hours) if given.warn_hours is not None else None
    return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn)


def _two_pauses(declared: Declaration) -> timedelta | None:
    """Return twice the longest time between two ticks of the schedule; None if not every tick makes the shards."""
    automation, partitions = declared.automation, declared.partitions
    by_condition = automation.condition in ("eager", "on_missing")
    by_change = partitions is not None and (declared.source.kind == "images" or partitions.start is None)
    if automation.reshard is None or by_condition or by_change:
        return None
    return 2 * _longest_pause(automation.reshard, automation.timezone)


@functools.lru_cache
def _longest_pause(cron: str, timezone: str) -> timedelta:
    """Return the longest time between two ticks, of those from a Friday night on: nights, weekends and months count."""
    ticks = cron_ticks(cron, timezone)
    before = ticks.get_prev_partition_window(_FRIDAY.replace(tzinfo=ZoneInfo(timezone)), respect_bounds=False)
    longest = timedelta(0)
    for _ in range(_TICKS):
        window = ticks.get_next_partition_window(before.end, respect_bounds=False) if before is not None else None
        if window is None:
            break
        longest, before = max(longest, window.end - window.start), window
    return longest
