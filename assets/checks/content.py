"""Warnings about raw and prepared images: classes too small to split, and files that were left out."""

import dagster as dg

from assets.declaration import Declaration
from assets.lineage import upstream
from assets.sources.inventory import load_inventory
from resources.storage import StorageResource


def build_raw_checks(declared: Declaration) -> list[dg.AssetChecksDefinition]:
    """Return the checks of a data set's raw data; none of rows."""
    if declared.source.kind == "rows":
        return []

    @dg.asset_check(
        asset=declared.key("raw"),
        description="Every class has at least two images: one to learn from, one to test on.",
    )
    def every_class_can_be_split(
        context: dg.AssetCheckExecutionContext, storage: StorageResource
    ) -> dg.AssetCheckResult:
        """A warning, because a set may well have a class that is too small to matter."""
        counts = load_inventory(declared, storage, upstream(context, declared.key("raw"))["inventory"]).counts
        small = {name: count for name, count in counts.items() if count < 2}
        return dg.AssetCheckResult(
            passed=not small, severity=dg.AssetCheckSeverity.WARN, metadata={"classes with one image": sorted(small)}
        )

    return [every_class_can_be_split]


def build_prepared_checks(declared: Declaration) -> list[dg.AssetChecksDefinition]:
    """Return the checks of a data set's preprocessed rows; none where a function makes them."""
    if declared.source.kind == "rows":
        return []
    most = declared.checks.max_bad_share

    @dg.asset_check(
        asset=declared.key("prepared"), description=f"At most {most:.2%} of the files were left out as bad images."
    )
    def few_images_were_left_out(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """A warning: which files they are stands in the asset's metadata."""
        facts = upstream(context, declared.key("prepared"))
        bad, rows = int(facts["bad_images"]), int(facts["dagster/row_count"])
        share = bad / (bad + rows)
        return dg.AssetCheckResult(
            passed=share <= most,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"left out": bad, "share": share},
        )

    return [few_images_were_left_out]
