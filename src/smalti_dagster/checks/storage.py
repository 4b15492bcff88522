"""The check of a data set's places: whether they can be reached and written, before a long run relies on it."""

import time
from typing import Any

import dagster as dg

from smalti.errors import SmaltiError, StoreNotFound
from smalti.redaction import redact
from smalti.spark import is_archive
from smalti.storage import open_store
from smalti.storage.probe import probe_store
from smalti_dagster.declaration import PARTITION, Declaration
from smalti_dagster.places import place_of, shards_of
from smalti_dagster.reports.tables import table
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.spark import ComputeResource, SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import load_function
from smalti_dagster.sources.images import images_config, is_manifest
from smalti_dagster.sources.rows import read_frame
from smalti_dagster.sources.rows_config import rows_config

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
        description="The source can be read, by Spark if it is one of rows; and the places that this data set writes "
        "to can be reached, listed, read, written and cleaned up, and honour conditional puts. It is executed here or "
        "by storage_reachable_job, before the first run.",
    )
    @with_resources
    def check(storage: StorageResource, spark: ComputeResource) -> dg.AssetCheckResult:
        """Put a small object below each place of the data set, and remove it; look at the source."""
        return probe_places(declared, storage, spark)

    return check


def probe_places(declared: Declaration, storage: StorageResource, spark: ComputeResource) -> dg.AssetCheckResult:
    """Return what is wrong with the places that a data set writes to, and with its source."""
    places = {place.url: place for place in (place_of(declared, storage, "probe"), shards_of(declared, storage))}
    probes = [probe_store(place.url, place.storage_options) for place in places.values()]
    problems = [f"{probe.url}: {problem}" for probe in probes for problem in probe.problems]
    rows: list[dict[str, Any]] = [
        {"place": probe.url, "step": step.name, "seconds": round(step.seconds, 3), "problem": step.problem}
        for probe in probes
        for step in probe.steps
    ]
    begin = time.monotonic()
    if problem := _problem_of_source(declared, storage, spark):
        problems.append(problem)
    seconds = round(time.monotonic() - begin, 3)
    rows.append({"place": redact(declared.source.text), "step": "source", "seconds": seconds, "problem": problem})
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


def _problem_of_source(declared: Declaration, storage: StorageResource, spark: ComputeResource) -> str:
    """Return why the source cannot be read; "" if it can, or if only the cluster of a job knows."""
    try:
        if declared.source.kind == "images":
            _look_at_images(declared, storage)
        elif isinstance(spark, SparkResource):
            with spark.session() as session:
                read_frame(session, declared, rows_config(declared)(), storage).schema  # noqa: B018 -- Spark looks at it
    except (SmaltiError, dg.Failure) as error:
        return str(error.message if isinstance(error, SmaltiError) else error.description)
    return ""


def _look_at_images(declared: Declaration, storage: StorageResource) -> None:
    """Raise if a folder or manifest of images is not there; an archive is looked at when it is fetched."""
    config = images_config(declared)()
    if not config.source:
        load_function(str(declared.source.generate))
        return
    address = config.address.partition(PARTITION)[0]
    if is_archive(address):
        return
    folder, _, name = address.rpartition("/") if is_manifest(address) else (address, "", "")
    store = open_store(folder, storage.options_for(folder))
    if next(iter(store.list(name)), None) is None:
        raise StoreNotFound(f"{redact(address)}: there is no such folder or file, or it is empty; check `source`")
