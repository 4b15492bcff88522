"""Blocking checks that a project defines itself on a data set's assets: the tag `checked` waits for them, too.

They are ops of their own, which Dagster executes after that of the data set, or whenever a person does.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster_shared.check import CheckError

from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.checks import checks_before_shards
from smalti_dagster.lineage import evaluations, latest


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
