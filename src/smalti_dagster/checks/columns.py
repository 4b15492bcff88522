"""The check of the columns of rows: those that the declaration names are there, before any row is read."""

import dagster as dg

from smalti_dagster.checks.check import Check, CheckInput, declared_check
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.reports.tables import Value, table

_TEXT = (
    "The rows have the columns that the declaration names in `split`, `partitions` and `shards`. If not, correct the "
    "name in the declaration, or the source. Types and nulls are checked when rows are written: a value that does not "
    "fit its column, or a null that `shards.nulls` does not provide for, stops the run with an error that has the row."
)


def build_column_checks(declared: Declaration, stage: Stage) -> list[Check]:
    """Return the check of a stage whose rows the declaration names columns of; none of images."""
    if declared.source.kind == "images":
        return []

    def check(step: CheckInput) -> dg.AssetCheckResult:
        found = {column.name: column.type for column in step.facts["dagster/column_schema"].columns}
        named = _named_in(step.declared, stage)
        rows: list[dict[str, Value]] = [
            {"column": name, "named in": where, "type": found.get(name, "missing")} for where, name in named
        ]
        missing = [f"`{where}` names {name!r}" for where, name in named if name not in found]
        return dg.AssetCheckResult(
            passed=not missing,
            description=f"{'; '.join(missing)}: the columns are {', '.join(found)}" if missing else None,
            metadata={"columns": table(rows)} if rows else {},
        )

    return declared_check(declared, stage, "columns_are_as_declared", _TEXT, check)


def _named_in(declared: Declaration, stage: Stage) -> list[tuple[str, str]]:
    """Return the columns that the rows of a stage need: the field that names each, and its name."""
    named: list[tuple[str, str | None]] = []
    if stage == "raw":
        column = declared.partitions.column if declared.partitions is not None else None
        named += [("split.key", declared.split.key), ("split.column", declared.split.column)]
        named += [("partitions.column", column)]
    if declared.stages[declared.stages.index("shards") - 1] == stage:
        named += [("shards.columns", name) for name in declared.columns or {}]
        named += [("shards.nulls", name) for name in declared.shards.nulls]
    return [(where, name) for where, name in named if name is not None]
