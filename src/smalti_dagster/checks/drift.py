"""Comparing a version with the newest one whose blocking checks passed: classes, rows, balance and columns."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import dagster as dg

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.manifest import Header
from smalti_dagster.checks.check import DataCheck, declared_check
from smalti_dagster.checks.sums import ALL, class_counts, find_losses
from smalti_dagster.checks.version import (
    VersionInput,
    accepted_by,
    base_facts,
    base_of,
    counts_of,
    how_to_accept,
    known,
    of_version,
    since,
)
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import CONTENT, content_digest
from smalti_dagster.reports.tables import Value, table

BALANCE = "balance"
"""Accepts any other balance of the classes."""


def build_drift_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of what is gone, or has changed, since the newest version that was checked."""
    compared = "since the newest version whose blocking checks passed"
    vanished = f"and no more than a share of the rows (`checks.max_row_loss`), is gone {compared}, unless the run "
    vanished += "accepts it by `accept_removed`."
    if declared.source.kind == "rows":
        columns = f"No column is gone or stored as another type {compared}, unless the run accepts it by its name."
        return [
            *declared_check(
                declared, "shards", "few_rows_vanished", f"No split, {vanished}", of_version(_few_rows_vanished)
            ),
            *declared_check(declared, "shards", "no_column_vanished", columns, of_version(_no_column_vanished)),
        ]
    text = f"No class, {vanished} A warning: a class is missing from a split."
    balance = (
        f"The classes have about the same shares of the images {compared} (`checks.max_class_shift`). If not, look at "
        "the classes with the largest change: a source may have been read in part, or labels may have been mixed up."
    )
    return [
        *declared_check(declared, "shards", "no_class_vanished", text, of_version(_no_class_vanished)),
        *declared_check(declared, "shards", "class_balance_is_kept", balance, of_version(_class_balance_is_kept)),
    ]


def _no_class_vanished(given: VersionInput) -> dg.AssetCheckResult:
    """Count the labels that are really in the shards, once for each content."""
    manifest, place = given.manifest, given.place
    names, base = manifest.metadata["classes"], base_of(given)
    content = f"{manifest.digest} {','.join(names)}"
    run = given.passes.run_for(content)
    sums = given.sums() if run is None else None
    found = sums.splits if sums is not None else {}
    now = class_counts(found, names) if run is None else counts_of(manifest, place)
    before = counts_of(base, place) if base is not None else {}
    losses = _find_losses(given, before, now)
    if run is not None and not losses:
        return known(run, content, **base_facts(base))
    rows: list[dict[str, Value]] = [
        {"class": name, "before": before.get(name, 0), **{s: p.labels[label] for s, p in sorted(found.items())}}
        for label, name in enumerate(names)
    ]
    missing = [f"{row['class']} in {split}" for row in rows for split in sorted(found) if not row[split]]
    description = f"No image of {', '.join(missing)}. Add images, or declare another split." if missing else None
    return dg.AssetCheckResult(
        passed=not losses and not missing,
        severity=dg.AssetCheckSeverity.ERROR if losses else dg.AssetCheckSeverity.WARN,
        description=_describe_losses(given, losses, base) if losses else description,
        metadata={
            CONTENT: content_digest(content),
            "compared_with": since(base),
            **base_facts(base),
            "classes": table(rows),
            **({"rows_read_in_this_run": sums.read} if sums is not None else {}),
            **({"gone": losses} if losses else {}),
            **({"missing": missing} if missing else {}),
        },
    )


def _few_rows_vanished(given: VersionInput) -> dg.AssetCheckResult:
    """Compare the numbers of rows that the two manifests say for each split."""
    base = base_of(given)
    before, now = _rows_of(_load(given, base)), _rows_of(given.manifest)
    losses = _find_losses(given, before, now)
    rows: list[dict[str, Value]] = [
        {"split": s, "before": before.get(s, 0), "rows": now.get(s, 0)} for s in sorted({*before, *now})
    ]
    return dg.AssetCheckResult(
        passed=not losses,
        description=_describe_losses(given, losses, base) if losses else None,
        metadata={
            "compared_with": since(base),
            **base_facts(base),
            "splits": table(rows),
            **({"gone": losses} if losses else {}),
        },
    )


def _class_balance_is_kept(given: VersionInput) -> dg.AssetCheckResult:
    base, most = base_of(given), given.step.declared.checks.max_class_shift
    before = counts_of(base, given.place) if base is not None else {}
    shares = class_shares(before, counts_of(given.manifest, given.place))
    shift = class_shift(shares)
    changes = sorted(shares.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
    rows: list[dict[str, Value]] = [
        {"class": name, "before": f"{was:.1%}", "now": f"{now:.1%}"} for name, (was, now) in changes
    ]
    is_kept = shift <= most or bool({ALL, BALANCE} & accepted_by(given.step))
    moved = ", ".join(f"{row['class']} from {row['before']} to {row['now']}" for row in rows[:5])
    return dg.AssetCheckResult(
        passed=is_kept,
        description=None
        if is_kept
        else f"Since {since(base)}, {shift:.1%} of the images have come to be of another class, at most {most:.1%} "
        f"may: {moved}. {how_to_accept(given.step, f'{BALANCE}, or * for everything')}",
        metadata={
            "compared_with": since(base),
            **base_facts(base),
            "shift": round(shift, 4),
            **({"classes": table(rows)} if rows else {}),
        },
    )


def _no_column_vanished(given: VersionInput) -> dg.AssetCheckResult:
    base = base_of(given)
    manifest = _load(given, base)
    before, now = manifest.schema.columns() if manifest is not None else {}, given.manifest.schema.columns()
    losses = column_losses(before, now, accepted_by(given.step))
    rows: list[dict[str, Value]] = [
        {"column": name, "before": before.get(name, ""), "now": now.get(name, "")} for name in {**before, **now}
    ]
    how = how_to_accept(given.step, "names of columns, or * for everything")
    return dg.AssetCheckResult(
        passed=not losses,
        description=f"Since {since(base)}: {'; '.join(losses)}. {how}" if losses else None,
        metadata={"compared_with": since(base), **base_facts(base), "columns": table(rows)},
    )


def _load(given: VersionInput, base: Header | None) -> Manifest | None:
    return load_manifest(given.place.store(), version=base.version) if base is not None else None


def _rows_of(manifest: Manifest | None) -> dict[str, int]:
    """Return how many rows each split has."""
    counts: Counter[str] = Counter()
    for shard in manifest.shards if manifest is not None else ():
        counts[str(shard.partition)] += shard.samples
    return dict(counts)


def _find_losses(given: VersionInput, before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Say what is gone beyond what the run accepted."""
    step = given.step
    share = float(step.facts.get("max_row_loss", step.declared.checks.max_row_loss))
    names = "classes" if step.declared.source.kind == "images" else "splits"
    return find_losses(before, now, accepted=accepted_by(step), max_row_loss=share, names=names)


def _describe_losses(given: VersionInput, losses: Sequence[str], base: Header | None) -> str:
    return f"Since {since(base)}: {'; '.join(losses)}. {how_to_accept(given.step, 'names, rows, or * for both')}"


def class_shares(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Return the share of each class before and now, among the rows of classes that both versions have. Pure."""
    both = [name for name, count in before.items() if count and now.get(name)]
    of = [sum(counts[name] for name in both) for counts in (before, now)]
    return {name: (before[name] / of[0], now[name] / of[1]) for name in both}


def class_shift(shares: Mapping[str, tuple[float, float]]) -> float:
    """Return the share of the rows that are of another class than before: the total variation distance. Pure."""
    return sum(abs(now - before) for before, now in shares.values()) / 2


def column_losses(before: Mapping[str, str], now: Mapping[str, str], accepted: Collection[str]) -> list[str]:
    """Say which columns, given as name to encoding, are gone or stored as something else, and not accepted. Pure."""
    if ALL in accepted:
        return []
    watched = {name: encoding for name, encoding in before.items() if name not in accepted}
    gone = [f"{name} ({encoding})" for name, encoding in watched.items() if name not in now]
    other = [f"{name} ({was}, now {now[name]})" for name, was in watched.items() if now.get(name, was) != was]
    return [
        *([f"columns are gone: {', '.join(gone)}"] if gone else []),
        *([f"columns are stored as something else: {', '.join(other)}"] if other else []),
    ]
