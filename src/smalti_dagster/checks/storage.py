"""The check of a data set's places: whether they can be reached and written, before a long run relies on it."""

from typing import Any

import dagster as dg

from smalti.storage.probe import probe_store
from smalti_dagster.declaration import Declaration
from smalti_dagster.places import place_of, shards_of
from smalti_dagster.reports.tables import table
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource

STORAGE_REACHABLE = "storage_reachable"
"""Name of the check; `storage_reachable_job` runs those of all data sets."""


def storage_check(declared: Declaration) -> dg.AssetCheckKey:
    """Return the key of a data set's check."""
    return dg.AssetCheckKey(declared.source_key, STORAGE_REACHABLE)


def build_storage_check(declared: Declaration) -> dg.AssetChecksDefinition:
    """Return the check, which is executed alone.

    It is a check of the source, which comes before every stage and which no run makes: a check of `raw` would count as
    not executed after each run that leaves it out, and *Materialize* would execute it in a process of its own.
    """

    @dg.asset_check(
        asset=declared.source_key,
        name=STORAGE_REACHABLE,
        description="The places that this data set writes to can be reached, listed, read, written and cleaned up, and "
        "honour conditional puts. It is executed here or by storage_reachable_job, before the first run.",
    )
    @with_resources
    def check(storage: StorageResource) -> dg.AssetCheckResult:
        """Put a small object below each place of the data set, and remove it."""
        return probe_places(declared, storage)

    return check


def probe_places(declared: Declaration, storage: StorageResource) -> dg.AssetCheckResult:
    """Return what is wrong with the places that a data set writes to."""
    places = {place.url: place for place in (place_of(declared, storage, "probe"), shards_of(declared, storage))}
    probes = [probe_store(place.url, place.storage_options) for place in places.values()]
    problems = [f"{probe.url}: {problem}" for probe in probes for problem in probe.problems]
    rows: list[dict[str, Any]] = [
        {"place": probe.url, "step": step.name, "seconds": round(step.seconds, 3), "problem": step.problem}
        for probe in probes
        for step in probe.steps
    ]
    skews = [probe.clock_skew for probe in probes if probe.clock_skew is not None]
    return dg.AssetCheckResult(
        passed=not problems,
        description="; ".join(problems) or None,
        metadata={
            "stage": storage.stage,
            "steps": table(rows),
            **({"problems": problems} if problems else {}),
            **({"clock_skew_in_seconds": round(max(map(abs, skews)), 1)} if skews else {}),
        },
    )
