"""The blocking checks of a version: its bytes, its rows, and what is gone since the newest version that was checked."""

from collections import Counter
from collections.abc import Sequence

import dagster as dg

from assets.checks.sums import SplitSums, class_counts, find_losses, not_in, sums_of_shards, sums_of_table
from assets.declaration import Declaration
from assets.lineage import CHECKED_IN, Passes, entered_config, passes_of, upstream
from assets.places import Place, shards_of
from assets.reports.tables import Value, table
from assets.shard_tags import CHECKED, checked_version, conclude
from assets.shards import prepared_table
from resources.storage import StorageResource
from smalti.catalog import Manifest, load_manifest, verify
from smalti.catalog.header import Header
from smalti.errors import StoreNotFound, VersionNotFound


def build_shard_checks(declared: Declaration) -> list[dg.AssetChecksDefinition]:
    """Return the blocking checks of a data set's shards."""
    if declared.source.kind == "images":
        return [_every_row_is_in_the_shards(declared), _hashes_verify(declared), _no_class_vanished(declared)]
    return [_hashes_verify(declared), _few_rows_vanished(declared)]


def _every_row_is_in_the_shards(declared: Declaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.key("shards"),
        blocking=True,
        description="Every prepared row is in the shards, byte for byte and once, and every image decodes.",
    )
    def every_row_is_in_the_shards(
        context: dg.AssetCheckExecutionContext, storage: StorageResource
    ) -> dg.AssetCheckResult:
        """Compare the number of rows and the sum of their hashes, split by split, with what Spark prepared.

        Images of shards that an earlier version has too, which passed, are not decoded again.
        """
        place, manifest = _pinned(context, declared, storage)
        prepared = prepared_table(declared, upstream(context, declared.key("shards")), storage)
        content = f"{manifest.digest} {prepared.digest}"
        passes = passes_of(context)
        if run := passes.run_for(content):
            return conclude(context, declared, place, manifest, _known(run, content))
        wanted = sums_of_table(prepared)
        found = sums_of_shards(place.store(), manifest, decodes=not_in(_passed_last(passes, place)))
        rows = [_compare(split, wanted.get(split), found.get(split)) for split in sorted({*wanted, *found})]
        unreadable = [path for part in found.values() for path in part.unreadable]
        result = dg.AssetCheckResult(
            passed=all(row["equal"] for row in rows) and not unreadable,
            metadata={
                "content": content,
                "rows": sum(part.rows for part in found.values()),
                "decoded": sum(part.decoded for part in found.values()),
                "splits": table(rows),
                **({"unreadable": unreadable} if unreadable else {}),
            },
        )
        return conclude(context, declared, place, manifest, result)

    return every_row_is_in_the_shards


def _hashes_verify(declared: Declaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.key("shards"),
        blocking=True,
        description="Every shard has the size and the hashes of its entry.",
    )
    def hashes_verify(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
        """Read every object again."""
        place, manifest = _pinned(context, declared, storage)
        report = verify(place.store(), version=manifest.version, deep=True)
        problems = [{"shard": each.key, "kind": each.kind, "what": each.message} for each in report.problems]
        result = dg.AssetCheckResult(
            passed=report.ok,
            description=report.summary(),
            metadata={"shards": report.num_shards, **({"problems": table(problems)} if problems else {})},
        )
        return conclude(context, declared, place, manifest, result)

    return hashes_verify


def _no_class_vanished(declared: Declaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.key("shards"),
        blocking=True,
        description="No class, and no more than a share of the rows, is gone since the newest version whose blocking "
        "checks passed. A warning: a class of the raw images is missing from a split.",
    )
    def no_class_vanished(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
        """Count the labels that are really in the shards, once for each content."""
        place, manifest = _pinned(context, declared, storage)
        names, base = manifest.metadata["classes"], _base_of(manifest, place)
        content = f"{manifest.digest} {','.join(names)}"
        run = passes_of(context).run_for(content)
        found = sums_of_shards(place.store(), manifest, decodes=lambda _: False) if run is None else {}
        now = class_counts(found, names) if run is None else _counts_of(manifest, place)
        before = _counts_of(base, place) if base is not None else {}
        losses = _find_losses(context, declared, before, now)
        if run is not None and not losses:
            return conclude(context, declared, place, manifest, _known(run, content))
        rows: list[dict[str, Value]] = [
            {"class": name, "before": before.get(name, 0), **{s: p.labels[label] for s, p in sorted(found.items())}}
            for label, name in enumerate(names)
        ]
        missing = [f"{row['class']} in {split}" for row in rows for split in sorted(found) if not row[split]]
        result = dg.AssetCheckResult(
            passed=not losses and not missing,
            severity=dg.AssetCheckSeverity.ERROR if losses else dg.AssetCheckSeverity.WARN,
            description=_describe_losses(declared, losses, _since(base)) if losses else None,
            metadata={
                "content": content,
                "compared with": _since(base),
                "classes": table(rows),
                **({"gone": losses} if losses else {}),
                **({"missing": missing} if missing else {}),
            },
        )
        return conclude(context, declared, place, manifest, result)

    return no_class_vanished


def _few_rows_vanished(declared: Declaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.key("shards"),
        blocking=True,
        description="No split, and no more than a share of the rows, is gone since the newest version whose blocking "
        "checks passed.",
    )
    def few_rows_vanished(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
        """Compare the numbers of rows that the two manifests say for each split."""
        place, manifest = _pinned(context, declared, storage)
        base = _base_of(manifest, place)
        before = _rows_of(load_manifest(place.store(), version=base.version)) if base is not None else {}
        now = _rows_of(manifest)
        losses = _find_losses(context, declared, before, now)
        rows: list[dict[str, Value]] = [
            {"split": s, "before": before.get(s, 0), "rows": now.get(s, 0)} for s in sorted({*before, *now})
        ]
        result = dg.AssetCheckResult(
            passed=not losses,
            description=_describe_losses(declared, losses, _since(base)) if losses else None,
            metadata={
                "compared with": _since(base),
                "splits": table(rows),
                **({"gone": losses} if losses else {}),
            },
        )
        return conclude(context, declared, place, manifest, result)

    return few_rows_vanished


def _pinned(
    context: dg.AssetCheckExecutionContext, declared: Declaration, storage: StorageResource
) -> tuple[Place, Manifest]:
    """Return the version that was materialised: a newer one may have been published since."""
    place, version = shards_of(declared, storage), int(upstream(context, declared.key("shards"))["version"])
    return place, load_manifest(place.store(), version=version)


def _passed_last(passes: Passes, place: Place) -> Manifest | None:
    """Return the version for which a check passed the last time; None if there is none, or it is gone."""
    facts = passes.last_made
    if facts is None or "version" not in facts:
        return None
    try:
        manifest = load_manifest(place.store(), version=int(facts["version"]))
    except (StoreNotFound, VersionNotFound):  # vacuumed since, or another data root
        return None
    return manifest if manifest.digest == facts["digest"] else None


def _known(run: str, content: str) -> dg.AssetCheckResult:
    """Return the result for a content that passed before; `hashes_verify` reads whether its bytes are the same."""
    return dg.AssetCheckResult(
        passed=True,
        description="This very content passed before.",
        metadata={"content": content, CHECKED_IN: dg.MetadataValue.dagster_run(run)},
    )


def _compare(split: str, wanted: SplitSums | None, found: SplitSums | None) -> dict[str, Value]:
    wanted, found = wanted or SplitSums(), found or SplitSums()
    equal = (wanted.rows, wanted.hash_sum) == (found.rows, found.hash_sum)
    return {"split": split, "in the table": wanted.rows, "in the shards": found.rows, "equal": equal}


def _base_of(manifest: Manifest, place: Place) -> Header | None:
    """Return the newest version whose blocking checks passed, if it came before this one."""
    base = checked_version(place.store())
    return base if base is not None and base.version < manifest.version else None


def _since(base: Header | None) -> str:
    return f"version {base.version}" if base is not None else "nothing: no earlier version was checked"


def _counts_of(checked: Header | Manifest, place: Place) -> dict[str, int]:
    """Return how many rows of each class a version has, as it says itself; its checks have confirmed that."""
    counts: Counter[str] = Counter()
    for split in (checked.metadata.get("counts") or {}).values():
        counts.update(split)
    if counts:
        return dict(counts)
    store = place.store()
    sums = sums_of_shards(store, load_manifest(store, version=checked.version), decodes=lambda _: False)
    return class_counts(sums, checked.metadata["classes"])


def _rows_of(manifest: Manifest) -> dict[str, int]:
    """Return how many rows each split has."""
    counts: Counter[str] = Counter()
    for shard in manifest.shards:
        counts[str(shard.partition)] += shard.samples
    return dict(counts)


def _find_losses(
    context: dg.AssetCheckExecutionContext, declared: Declaration, before: dict[str, int], now: dict[str, int]
) -> list[str]:
    """Say what is gone beyond what the run accepted; a re-execution of the check alone may accept more than that."""
    key = declared.key("shards")
    facts, entered = upstream(context, key), entered_config(context.run, key)
    accepted = {*facts.get("accept_removed", []), *entered.get("accept_removed", [])}
    share = float(facts.get("max_row_loss", declared.checks.max_row_loss))
    names = "classes" if declared.source.kind == "images" else "splits"
    return find_losses(before, now, accepted=accepted, max_row_loss=share, names=names)


def _describe_losses(declared: Declaration, losses: Sequence[str], since: str) -> str:
    return (
        f"Since {since}, the newest whose blocking checks passed: {'; '.join(losses)}. The tag {CHECKED!r} stays "
        f"there. If data was lost by mistake, put it back and run {declared.name}_reshard_job again; if it is meant to "
        f"go, run that with `accept_removed` in the configuration of {declared.op('shards')}: names, rows, or * for "
        "both."
    )
