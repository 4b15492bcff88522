"""Checks of raw and prepared data: classes too small to split, files that are no images, columns that are missing."""

import math
from typing import Any

import dagster as dg

from smalti_dagster.checks.check import Check, CheckInput, declared_check, prepared_rows
from smalti_dagster.checks.columns import build_column_checks
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import entered_config
from smalti_dagster.reports.tables import Value, named, table
from smalti_dagster.sources.inventory import load_counts

_MAX_NAMED = 10


def build_raw_checks(declared: Declaration) -> list[Check]:
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


def build_prepared_checks(declared: Declaration) -> list[Check]:
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
