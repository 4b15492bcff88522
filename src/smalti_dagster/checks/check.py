"""Checks as plain functions, evaluated by the op of the asset that they are about, directly after it."""

import functools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dagster as dg

from smalti.errors import SmaltiError
from smalti.spark.prepared.table import PreparedTable
from smalti_dagster.checks.own import own_checks
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.declaration.checks import CheckName, severity_of
from smalti_dagster.places import prepared_table
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stage import Facts

T = TypeVar("T")


@dataclass(frozen=True)
class CheckInput:
    """The input of a check."""

    declared: Declaration
    storage: StorageResource
    instance: dg.DagsterInstance
    run: dg.DagsterRun
    key: dg.AssetCheckKey
    facts: Facts
    """Of the materialisation that it is about."""
    op: str = ""
    """Name of the op that makes the asset, as a run's configuration has it; empty for an asset of a user's own."""
    own: tuple[dg.AssetCheckKey, ...] = ()
    """The project's own blocking checks of the data set."""
    is_alone: bool = False
    """True if a person executes it by itself, without the asset."""
    shared: dict[Callable[["CheckInput"], Any], Any] = field(default_factory=dict)
    """Findings that the checks of one materialisation share, by the function that found each."""

    def once(self, find: Callable[["CheckInput"], T]) -> T:
        """Return what a function finds of the materialisation: it is called by the first check that needs it."""
        if find not in self.shared:
            self.shared[find] = find(self)
        found: T = self.shared[find]
        return found


def prepared_rows(step: CheckInput) -> PreparedTable:
    """Return the table of prepared images that the materialisation was made from, or is."""
    return prepared_table(step.declared, step.facts, step.storage)


@dataclass(frozen=True)
class Check:
    """The specification of an asset check, and the function that evaluates it."""

    spec: dg.AssetCheckSpec
    evaluate: Callable[[CheckInput], dg.AssetCheckResult]

    def blocks(self, result: dg.AssetCheckResult) -> bool:
        """Return whether a result stops what comes after the asset; a warning does not."""
        return self.spec.blocking and not result.passed and result.severity is dg.AssetCheckSeverity.ERROR


def declared_check(
    declared: Declaration,
    stage: Stage,
    name: CheckName,
    description: str,
    evaluate: Callable[[CheckInput], dg.AssetCheckResult],
) -> list[Check]:
    """Return a check of a stage with the severity that the declaration gives it; none if that is `none`."""
    severity = severity_of(name, declared.checks.severity)
    if severity == "none":
        return []
    blocks = severity == "block"
    spec = dg.AssetCheckSpec(name, asset=declared.key(stage), blocking=blocks, description=description)
    return [Check(spec, evaluate if blocks else functools.partial(_warn, evaluate))]


def _warn(evaluate: Callable[[CheckInput], dg.AssetCheckResult], step: CheckInput) -> dg.AssetCheckResult:
    """Evaluate a check that stops nothing: neither by what it finds nor by an error."""
    try:
        result = evaluate(step)
    except SmaltiError as error:
        result = dg.AssetCheckResult(passed=False, description=f"It could not be evaluated: {error}")
    return result._replace(severity=dg.AssetCheckSeverity.WARN)


def evaluate(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
    declared: Declaration,
    checks: Iterable[Check],
    storage: StorageResource,
    find_facts: Callable[[], Facts],
) -> Generator[dg.AssetCheckResult, None, bool]:
    """Yield the results of those checks of an asset that are selected; return whether one of them stops the run.

    Args:
        context: Of the op.
        declared: The data set.
        checks: Of one asset.
        storage: Where its data is.
        find_facts: Gives the facts of the materialisation that the checks are about.
    """
    is_stopped = False
    own = own_checks(context, declared)
    shared: dict[Callable[[CheckInput], Any], Any] = {}
    for check in checks:
        if check.spec.key not in context.selected_asset_check_keys:
            continue
        step = CheckInput(
            declared,
            storage,
            context.instance,
            context.run,
            check.spec.key,
            find_facts(),
            op=context.op_def.name if isinstance(context, dg.AssetExecutionContext) else "",
            own=own,
            is_alone=_is_alone(context, check.spec.asset_key),
            shared=shared,
        )
        result = check.evaluate(step)
        result = result._replace(asset_key=check.spec.asset_key, check_name=check.spec.name)
        is_stopped |= check.blocks(result)
        yield result
    return is_stopped


def _is_alone(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> bool:
    """Return whether a check is executed in a run that does not make its asset."""
    if isinstance(context, dg.AssetCheckExecutionContext):
        return asset not in set(context.job_def.asset_layer.executable_asset_keys)
    return asset not in context.selected_asset_keys
