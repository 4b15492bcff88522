"""The blocking checks of a version: its bytes, its rows, and what is gone since the newest version that was checked."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

import dagster as dg

from assets.checks.check import Check, CheckInput
from assets.checks.rotation import rotate, slot_of
from assets.checks.shard_sums import SetSums, load_sums, save_sums, sums_of_shards
from assets.checks.sums import SplitSums, class_counts, find_losses, not_in, sums_of_table
from assets.declaration import Declaration
from assets.lineage import CHECKED_IN, Passes, entered_config, passes_of
from assets.places import Place, place_of, shards_of
from assets.reports.tables import Value, table
from assets.shard_tags import CHECKED, checked_version, conclude
from assets.shards import prepared_table
from smalti.catalog import Manifest, load_manifest, verify
from smalti.catalog.header import Header
from smalti.errors import StoreNotFound, VersionNotFound
from smalti.format import ShardInfo

_DUE = "due by slot"  # in the metadata of `hashes_verify`: when each part of the set is to be read again


def build_shard_checks(declared: Declaration) -> list[Check]:
    """Return the blocking checks of a data set's shards."""
    checks = _OF_IMAGES if declared.source.kind == "images" else _OF_ROWS
    return [
        Check(dg.AssetCheckSpec(name, asset=declared.key("shards"), blocking=True, description=text), evaluate)
        for name, (text, evaluate) in checks.items()
    ]


def _every_row_is_in_the_shards(step: CheckInput) -> dg.AssetCheckResult:
    """Compare the number of rows and the sum of their hashes, split by split, with what Spark prepared.

    Shards that an earlier run has read are not read again: their sums are added up.
    """
    place, manifest = _pinned(step)
    prepared = prepared_table(step.declared, step.facts, step.storage)
    content = f"{manifest.digest} {prepared.digest}"
    passes = _passes(step)
    if run := passes.run_for(content):
        return conclude(step, place, manifest, _known(run, content))
    wanted = sums_of_table(prepared)
    sums = _sums_of(step, place, manifest)
    found = sums.splits
    rows = [_compare(split, wanted.get(split), found.get(split)) for split in sorted({*wanted, *found})]
    unreadable = [path for part in found.values() for path in part.unreadable]
    result = dg.AssetCheckResult(
        passed=all(row["equal"] for row in rows) and not unreadable,
        metadata={
            "content": content,
            "rows": sum(part.rows for part in found.values()),
            "decoded": sums.read,
            "splits": table(rows),
            **({"unreadable": unreadable} if unreadable else {}),
        },
    )
    return conclude(step, place, manifest, result)


def _hashes_verify(step: CheckInput) -> dg.AssetCheckResult:
    """Read the objects of shards that are new since the check passed last, and of those that the rotation has due.

    A check that a person executes, the first one of a set, and one after a failure reads everything.
    """
    place, manifest = _pinned(step)
    passes, period = _passes(step), step.declared.checks.full_verification
    base = None if passes.is_last_failed else _passed_last(passes, place)
    times = (passes.last_made or {}).get(_DUE) or [] if base is not None else []
    rotation, is_new = rotate(times, period, now=time.time()), not_in(base)
    read = Counter[str]()

    def is_read(shard: ShardInfo) -> bool:
        why = "new" if is_new(shard) else "due" if slot_of(shard.stored.basename) in rotation.due else "not read"
        read[why] += 1
        return why != "not read"

    report = verify(place.store(), version=manifest.version, deep=True, only=is_read)
    problems = [{"shard": each.key, "kind": each.kind, "what": each.message} for each in report.problems]
    result = dg.AssetCheckResult(
        passed=report.ok,
        description=report.summary(),
        metadata={
            "shards": len(manifest.shards),
            "read because new": read["new"],
            "read again": read["due"],
            "not read in this run": read["not read"],
            "full verification": period,
            **({_DUE: dg.MetadataValue.json(list(rotation.times))} if rotation.times else {}),
            **({"problems": table(problems)} if problems else {}),
        },
    )
    return conclude(step, place, manifest, result)


def _no_class_vanished(step: CheckInput) -> dg.AssetCheckResult:
    """Count the labels that are really in the shards, once for each content."""
    place, manifest = _pinned(step)
    names, base = manifest.metadata["classes"], _base_of(manifest, place)
    content = f"{manifest.digest} {','.join(names)}"
    run = _passes(step).run_for(content)
    found = _sums_of(step, place, manifest).splits if run is None else {}
    now = class_counts(found, names) if run is None else _counts_of(manifest, place)
    before = _counts_of(base, place) if base is not None else {}
    losses = _find_losses(step, before, now)
    if run is not None and not losses:
        return conclude(step, place, manifest, _known(run, content))
    rows: list[dict[str, Value]] = [
        {"class": name, "before": before.get(name, 0), **{s: p.labels[label] for s, p in sorted(found.items())}}
        for label, name in enumerate(names)
    ]
    missing = [f"{row['class']} in {split}" for row in rows for split in sorted(found) if not row[split]]
    result = dg.AssetCheckResult(
        passed=not losses and not missing,
        severity=dg.AssetCheckSeverity.ERROR if losses else dg.AssetCheckSeverity.WARN,
        description=_describe_losses(step.declared, losses, _since(base)) if losses else None,
        metadata={
            "content": content,
            "compared with": _since(base),
            "classes": table(rows),
            **({"gone": losses} if losses else {}),
            **({"missing": missing} if missing else {}),
        },
    )
    return conclude(step, place, manifest, result)


def _few_rows_vanished(step: CheckInput) -> dg.AssetCheckResult:
    """Compare the numbers of rows that the two manifests say for each split."""
    place, manifest = _pinned(step)
    base = _base_of(manifest, place)
    before = _rows_of(load_manifest(place.store(), version=base.version)) if base is not None else {}
    now = _rows_of(manifest)
    losses = _find_losses(step, before, now)
    rows: list[dict[str, Value]] = [
        {"split": s, "before": before.get(s, 0), "rows": now.get(s, 0)} for s in sorted({*before, *now})
    ]
    result = dg.AssetCheckResult(
        passed=not losses,
        description=_describe_losses(step.declared, losses, _since(base)) if losses else None,
        metadata={
            "compared with": _since(base),
            "splits": table(rows),
            **({"gone": losses} if losses else {}),
        },
    )
    return conclude(step, place, manifest, result)


def _pinned(step: CheckInput) -> tuple[Place, Manifest]:
    """Return the version that was materialised: a newer one may have been published since."""
    place, version = shards_of(step.declared, step.storage), int(step.facts["version"])
    return place, load_manifest(place.store(), version=version)


def _sums_of(step: CheckInput, place: Place, manifest: Manifest) -> SetSums:
    """Return the sums of a version, and keep those of its shards; a check that a person executes reads all shards."""
    kept = place_of(step.declared, step.storage, "checks").store()
    sums = sums_of_shards(place.store(), manifest, {} if step.is_alone else load_sums(kept))
    if sums.read:
        save_sums(kept, sums)
    return sums


def _passes(step: CheckInput) -> Passes:
    """Return the times that a check passed before; none for one that a person executes, which is made again."""
    return Passes(()) if step.is_alone else passes_of(step.instance, step.key)


def _passed_last(passes: Passes, place: Place) -> Manifest | None:
    """Return the version for which a check passed the last time; None if there is none, or it is gone."""
    facts = passes.last_made
    if facts is None or "version" not in facts or facts.get("set", place.url) != place.url:
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
    sums = sums_of_shards(store, load_manifest(store, version=checked.version))
    return class_counts(sums.splits, checked.metadata["classes"])


def _rows_of(manifest: Manifest) -> dict[str, int]:
    """Return how many rows each split has."""
    counts: Counter[str] = Counter()
    for shard in manifest.shards:
        counts[str(shard.partition)] += shard.samples
    return dict(counts)


def _find_losses(step: CheckInput, before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Say what is gone beyond what the run accepted; a re-execution of the check alone may accept more than that."""
    facts, declared = step.facts, step.declared
    entered = entered_config(step.run, declared.data_op).get("shards") or {}
    accepted = {*facts.get("accept_removed", []), *entered.get("accept_removed", [])}
    share = float(facts.get("max_row_loss", declared.checks.max_row_loss))
    names = "classes" if declared.source.kind == "images" else "splits"
    return find_losses(before, now, accepted=accepted, max_row_loss=share, names=names)


def _describe_losses(declared: Declaration, losses: Sequence[str], since: str) -> str:
    return (
        f"Since {since}, the newest whose blocking checks passed: {'; '.join(losses)}. The tag {CHECKED!r} stays "
        f"there. If data was lost by mistake, put it back and run {declared.name}_reshard_job again; if it is meant to "
        f"go, run that with `accept_removed` below `shards` in the configuration of {declared.data_op}: names, rows, "
        "or * for both."
    )


_OF_IMAGES: dict[str, tuple[str, Callable[[CheckInput], dg.AssetCheckResult]]] = {
    "every_row_is_in_the_shards": (
        "Every prepared row is in the shards, byte for byte and once, and every image decodes.",
        _every_row_is_in_the_shards,
    ),
    "hashes_verify": ("Every shard has the size and the hashes of its entry.", _hashes_verify),
    "no_class_vanished": (
        "No class, and no more than a share of the rows, is gone since the newest version whose blocking checks "
        "passed. A warning: a class of the raw images is missing from a split.",
        _no_class_vanished,
    ),
}
_OF_ROWS: dict[str, tuple[str, Callable[[CheckInput], dg.AssetCheckResult]]] = {
    "hashes_verify": _OF_IMAGES["hashes_verify"],
    "few_rows_vanished": (
        "No split, and no more than a share of the rows, is gone since the newest version whose blocking checks "
        "passed.",
        _few_rows_vanished,
    ),
}
