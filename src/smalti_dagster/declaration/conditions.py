"""Dagster's automation conditions of the assets of a data set, as declared in `automation.condition`."""

from typing import Any

import dagster as dg

from smalti_dagster.declaration import Declaration, Stage


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
