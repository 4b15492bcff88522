"""The blocking checks of a version: its bytes, its rows, and what is gone since the newest version that was checked.

Also here: the rotation of full verification, by which each stored shard is read again once in a period, spread over the
runs in it.

A hash of a shard's name puts it into one of a fixed number of slots; each slot has a time at which it is due. The times
are kept in the metadata of the check, so that the state does not grow with the set.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import dagster as dg

from smalti.catalog import Manifest, load_manifest, verify
from smalti.errors import StoreNotFound, VersionNotFound
from smalti.format import ShardInfo
from smalti_dagster.checks.check import DataCheck, prepared_rows
from smalti_dagster.checks.drift import build_drift_checks
from smalti_dagster.checks.likeness import build_likeness_checks
from smalti_dagster.checks.sums import SplitSums, not_in, sums_of_table
from smalti_dagster.checks.version import VersionInput, known, of_version
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.checks import INTEGRITY
from smalti_dagster.lineage import CONTENT, Passes, content_digest
from smalti_dagster.places import Place
from smalti_dagster.reports.tables import Value, table

_DUE = "due_by_slot"  # in the metadata of `hashes_verify`: when each part of the set is to be read again


def build_shard_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of a data set's shards: of what changed, of their integrity, and of images that are alike.

    Those that compare with the version that is `checked` come first: the last blocking one moves that tag.
    """
    checks = [(name, *_INTEGRITY[name]) for name in INTEGRITY[declared.source.kind]]
    return [
        *build_drift_checks(declared),
        *(
            DataCheck(
                dg.AssetCheckSpec(name, asset=declared.key("shards"), blocking=True, description=text), of_version(run)
            )
            for name, text, run in checks
        ),
        *build_likeness_checks(declared),
    ]


def _every_row_is_in_the_shards(given: VersionInput) -> dg.AssetCheckResult:
    """Compare the number of rows and the sum of their hashes, split by split, with what Spark prepared.

    Shards that an earlier run has read are not read again: their sums are added up.
    """
    step, manifest, passes = given.step, given.manifest, given.passes
    prepared = step.once(prepared_rows)
    content = f"{manifest.digest} {prepared.digest}"
    if run := passes.run_for(content):
        return known(run, content)
    wanted = sums_of_table(prepared)
    sums = given.sums()
    found = sums.splits
    rows = [_compare(split, wanted.get(split), found.get(split)) for split in sorted({*wanted, *found})]
    unreadable = [path for part in found.values() for path in part.unreadable]
    return dg.AssetCheckResult(
        passed=all(row["equal"] for row in rows) and not unreadable,
        metadata={
            CONTENT: content_digest(content),
            "rows": sum(part.rows for part in found.values()),
            "rows_read_in_this_run": sums.read,
            "splits": table(rows),
            **({"unreadable": unreadable} if unreadable else {}),
        },
    )


def _hashes_verify(given: VersionInput) -> dg.AssetCheckResult:
    """Read the objects of shards that are new since the check passed last, and of those that the rotation has due.

    A check that a person executes, the first one of a set, and one after a failure reads everything.
    """
    place, manifest, passes, period = (
        given.place,
        given.manifest,
        given.passes,
        given.step.declared.checks.full_verification,
    )
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
    return dg.AssetCheckResult(
        passed=report.ok,
        description=report.summary(),
        metadata={
            "shards": len(manifest.shards),
            "read_because_new": read["new"],
            "read_again": read["due"],
            "not_read_in_this_run": read["not read"],
            "full_verification": period,
            **({_DUE: dg.MetadataValue.json(list(rotation.times))} if rotation.times else {}),
            **({"problems": table(problems)} if problems else {}),
        },
    )


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


def _compare(split: str, wanted: SplitSums | None, found: SplitSums | None) -> dict[str, Value]:
    wanted, found = wanted or SplitSums(), found or SplitSums()
    equal = (wanted.rows, wanted.hash_sum) == (found.rows, found.hash_sum)
    return {"split": split, "in the table": wanted.rows, "in the shards": found.rows, "equal": equal}


_INTEGRITY = {
    "every_row_is_in_the_shards": (
        "Every prepared row is in the shards, byte for byte and once, and every image decodes. If not, run the "
        "re-shard job with `rewrite`.",
        _every_row_is_in_the_shards,
    ),
    "hashes_verify": (
        "Every shard has the size and the hashes of its entry. If not, the table of problems names the objects: "
        "restore them, or run the re-shard job with `rewrite`.",
        _hashes_verify,
    ),
}


Period = Literal["always", "daily", "weekly", "monthly", "never"]

SLOTS = 128
"""Parts into which a set is divided."""

_DAY = 86_400.0
_SECONDS: dict[Period, float] = {"always": 0.0, "daily": _DAY, "weekly": 7 * _DAY, "monthly": 30 * _DAY}


def slot_of(name: str) -> int:
    """Return the slot of a shard."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % SLOTS


@dataclass(frozen=True)
class Rotation:
    """The slots that are due in a run, and the times at which all are due after it."""

    due: frozenset[int]
    times: tuple[int, ...]
    """Seconds since the epoch by slot; empty where nothing is ever due."""


def rotate(times: Sequence[int], period: Period, *, now: float) -> Rotation:
    """Return what is due now, given the times that the last run left; everything if it left none. Pure.

    After a pass over everything, the slots become due one after the other over a whole period.
    """
    if period == "never":
        return Rotation(frozenset(), ())
    seconds = _SECONDS[period]
    if len(times) != SLOTS:
        later = tuple(int(now + seconds * (slot + 1) / SLOTS) for slot in range(SLOTS))
        return Rotation(frozenset(range(SLOTS)), later)
    # Another, shorter period counts from now on.
    due = frozenset(slot for slot, time in enumerate(times) if min(time, now + seconds) <= now)
    return Rotation(due, tuple(int(now + seconds) if slot in due else int(t) for slot, t in enumerate(times)))
