"""Checks as plain functions, evaluated by the op of the asset that they are about, directly after it.

Also here: blocking checks that a project defines itself on a data set's assets; the tag `checked` waits for them, too.
They are ops of their own, which Dagster executes after that of the data set, or whenever a person does.
"""

import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dagster as dg
from dagster_shared.check import CheckError

from smalti.errors import SmaltiError
from smalti.spark.prepared.table import PreparedTable
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.declaration.checks import CheckName, checks_before_shards, severity_of
from smalti_dagster.lineage import evaluations, latest
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
    """Facts of the materialisation that it checks."""
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
class DataCheck:
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
) -> list[DataCheck]:
    """Return a check of a stage with the severity that the declaration gives it; none if that is `none`."""
    severity = severity_of(name, declared.checks.severity)
    if severity == "none":
        return []
    blocks = severity == "block"
    spec = dg.AssetCheckSpec(name, asset=declared.key(stage), blocking=blocks, description=description)
    return [DataCheck(spec, evaluate if blocks else functools.partial(_warn, evaluate))]


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
    checks: Iterable[DataCheck],
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


def own_checks(context: Any, declared: Declaration) -> tuple[dg.AssetCheckKey, ...]:
    """Return the project's own blocking checks of the raw data, prepared rows and shards of a data set.

    Args:
        context: Of an op or a tick. One that has no code location, as in a test, knows the checks of its job alone.
        declared: The data set.
    """
    graph = _graph_of(context)
    if graph is None:
        return ()
    assets = {declared.key(stage) for stage in declared.stages if stage != "model"}
    before = checks_before_shards(declared.source.kind, declared.checks.severity)
    ours = {*declared.blocking_checks, *before}
    found = [key for key in graph.asset_check_keys if key.asset_key in assets and key.name not in ours]
    return tuple(sorted(key for key in found if graph.get(key).blocking))


def missing_of(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> list[str]:
    """Return the names of those checks that have not passed, or warned, for the newest materialisation of their asset.

    Which one a check was of, Dagster notes with its result.
    """
    return [key.name for key in checks if not _has_passed(instance, key)]


def _has_passed(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> bool:
    newest, last = latest(instance, check.asset_key), next(evaluations(instance, check), None)
    if newest is None or last is None:
        return False
    said = last[1]
    about = said.target_materialization_data
    is_of_newest = about is not None and about.run_id == newest.run_id and about.timestamp >= newest.timestamp
    return is_of_newest and (said.passed or said.severity is dg.AssetCheckSeverity.WARN)


def _graph_of(context: Any) -> Any:
    """Return Dagster's graph of the assets and checks of a code location, else of a job; None if there is neither."""
    try:
        repository = context.repository_def
        if repository is not None:
            return repository.asset_graph
    except (CheckError, dg.DagsterInvariantViolationError):
        pass  # it has no code location
    op = getattr(context, "op_execution_context", None)
    return op.job_def.asset_layer.asset_graph if op is not None else None
