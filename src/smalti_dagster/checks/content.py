"""Checks of raw and prepared data: classes too small to split, files that are no images, columns that are missing.

Also here: the check of the columns of rows, by which those that the declaration names are there, before any row is
read.
"""

import math
from typing import Any

import dagster as dg

from smalti_dagster.checks.check import CheckInput, DataCheck, declared_check, prepared_rows
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.lineage import entered_config
from smalti_dagster.reports.tables import Value, named, table
from smalti_dagster.sources.inventory import load_counts

_MAX_NAMED = 10


def build_raw_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of a data set's raw data."""
    if declared.source.kind == "rows":
        return build_column_checks(declared, "raw")
    text = (
        "Every class has at least two images: one to learn from, one to test on. If not, add images to the classes "
        "that are named, or take their folders out of the source."
    )
    return declared_check(declared, "raw", "every_class_can_be_split", text, _every_class_can_be_split)


def _every_class_can_be_split(step: CheckInput) -> dg.AssetCheckResult:
    counts = load_counts(step.declared, step.storage, step.facts["inventory"])
    small = sorted(name for name, count in counts.items() if count < 2)
    return dg.AssetCheckResult(
        passed=not small,
        description=f"{len(small)} of {len(counts)} classes have one image: {named(small, _MAX_NAMED)}"
        if small
        else None,
        metadata={"classes_with_one_image": small},
    )


def build_prepared_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of a data set's preprocessed rows."""
    if declared.source.kind == "rows":
        return build_column_checks(declared, "prepared")
    text = (
        "No more files than declared are no images (`prepare.image.on_bad_image`, `checks.max_bad_share`). If there "
        "are more, replace or remove those that are named, or accept them; nothing is prepared again for that."
    )
    return declared_check(declared, "prepared", "few_images_were_left_out", text, _few_images_were_left_out)


def _few_images_were_left_out(step: CheckInput) -> dg.AssetCheckResult:
    """Compare with what the run accepts; a re-execution of the check alone may accept more than that."""
    chosen = {**step.facts, **entered_config(step.run, step.declared, "prepared")}
    bad, rows = int(step.facts["bad_images"]), int(step.facts["dagster/row_count"])
    most = _most_bad(chosen, step.declared, files=bad + rows)
    about: dict[str, Any] = {"digest": step.facts["digest"], "left_out": bad, "may_be_left_out": most}
    if not bad:
        return dg.AssetCheckResult(passed=True, metadata=about)
    files = step.once(prepared_rows).bad
    shown: list[dict[str, Value]] = [{"file": path, "reason": reason} for path, reason in files]
    what = f"{bad} of {bad + rows} files are no usable images: {named([path for path, _ in files], _MAX_NAMED)}."
    op, share = step.op, math.ceil(10_000 * bad / (bad + rows)) / 10_000
    return dg.AssetCheckResult(
        passed=bad <= most,
        description=f"{what} They are left out."
        if bad <= most
        else f"{what} At most {most} may be left out. Replace or remove them, or accept them: in the declaration by "
        f"`on_bad_image: skip` and `max_bad_share: {share}`, or for one run by the same below `prepared` in the "
        f"configuration of {op}. Nothing is prepared again for that.",
        metadata={**about, "source": str(step.facts.get("source", "")), "files": table(shown)},
    )


def _most_bad(chosen: dict[str, Any], declared: Declaration, *, files: int) -> int:
    """Return how many files may be left out: at least one wherever a share may be."""
    if chosen.get("on_bad_image", declared.image.on_bad_image) == "fail":
        return 0
    share = float(chosen.get("max_bad_share", declared.checks.max_bad_share))
    return math.ceil(round(share * files, 6))


_TEXT = (
    "The rows have the columns that the declaration names in `split`, `partitions` and `shards`. If not, correct the "
    "name in the declaration, or the source. Types and nulls are checked when rows are written: a value that does not "
    "fit its column, or a null that `shards.nulls` does not provide for, stops the run with an error that has the row."
)


def build_column_checks(declared: Declaration, stage: Stage) -> list[DataCheck]:
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
