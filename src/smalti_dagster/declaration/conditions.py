"""Dagster's automation conditions and freshness policies of the assets of a data set, as declared in `automation`."""

import functools
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.declaration.automation import cron_ticks

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
