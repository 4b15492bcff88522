"""Warnings about raw and prepared images: classes too small to split, and files that were left out."""

import dagster as dg

from assets.checks.check import Check, CheckInput
from assets.declaration import Declaration
from assets.sources.inventory import load_counts


def build_raw_checks(declared: Declaration) -> list[Check]:
    """Return the checks of a data set's raw data; none of rows."""
    if declared.source.kind == "rows":
        return []
    spec = dg.AssetCheckSpec(
        "every_class_can_be_split",
        asset=declared.key("raw"),
        description="Every class has at least two images: one to learn from, one to test on.",
    )
    return [Check(spec, _every_class_can_be_split)]


def _every_class_can_be_split(step: CheckInput) -> dg.AssetCheckResult:
    """Warn, because a set may well have a class that is too small to matter."""
    counts = load_counts(step.declared, step.storage, step.facts["inventory"])
    small = {name: count for name, count in counts.items() if count < 2}
    return dg.AssetCheckResult(
        passed=not small, severity=dg.AssetCheckSeverity.WARN, metadata={"classes with one image": sorted(small)}
    )


def build_prepared_checks(declared: Declaration) -> list[Check]:
    """Return the checks of a data set's preprocessed rows; none where a function makes them."""
    if declared.source.kind == "rows":
        return []
    spec = dg.AssetCheckSpec(
        "few_images_were_left_out",
        asset=declared.key("prepared"),
        description=f"At most {declared.checks.max_bad_share:.2%} of the files were left out as bad images.",
    )
    return [Check(spec, _few_images_were_left_out)]


def _few_images_were_left_out(step: CheckInput) -> dg.AssetCheckResult:
    """Warn: which files they are stands in the asset's metadata."""
    bad, rows = int(step.facts["bad_images"]), int(step.facts["dagster/row_count"])
    share = bad / (bad + rows)
    return dg.AssetCheckResult(
        passed=share <= step.declared.checks.max_bad_share,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"left out": bad, "share": share},
    )
