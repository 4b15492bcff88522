"""The source of a data set as an external asset: what its data version is, and how that is recorded.

The version is what the watch sensor compares: a digest of the listing, or what is declared in its place. Three parts
record it, and only if it differs from what was recorded last: the sensor when it looks, the observe job, and a run that
reads the source. Such a run also notes which version it has read, because Dagster would note the one that was recorded
before the step began.
"""

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from smalti.redaction import redact
from smalti.sources.image_folder import ImageFolder, extend_digest
from smalti.spark import is_archive
from smalti.storage import open_store
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import DATA_SET_TAG, READS_TAG, facts_of, latest, made_in, reads
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.images import ImagesConfig, images_config, is_manifest, list_again
from smalti_dagster.sources.inventory import inventories_of, inventory_key
from smalti_dagster.sources.partitions import PARTITIONS, ReadPartitions, list_all_partitions
from smalti_dagster.sources.rows_config import RowsConfig, rows_config
from smalti_dagster.sources.unchanged import watched_digest
from smalti_dagster.stage import Facts

WATCHED = "watched"
"""In the metadata of `raw`: what the watch sensor compares, if that is not the digest of what was read."""

Versions = Mapping[str | None, str]
"""Data versions by partition; of a source without partitions, one under None."""

_VERSION = "dagster/data_version"
_IS_OBSERVED = "__source_asset_observation__"
"""The mark of an output whose observations are recorded already, as of Dagster's own `observable_source_asset`."""
_EMPTY = "empty"  # version of a partition that has nothing
_READERS = 10  # newest runs of a source that are looked at
_EVENTS_AT_ONCE = 1000  # observations of partitions; each is written by itself


def build_source(declared: Declaration) -> dg.AssetSpec | dg.AssetsDefinition:
    """Return the external asset, which can be observed by itself if that needs no Spark."""
    source = declared.source
    spec = dg.AssetSpec(
        key=declared.source_key,
        description=f"The source of {declared.name}, which is not made here: {redact(source.text) or 'generated'}.",
        group_name=declared.group or declared.name,
        owners=declared.owners or None,
        tags={"data_set": declared.name, **declared.tags},
        kinds={source.form},
        partitions_def=declared.partitions_definition,
        skippable=True,  # an observation is made of a new version alone
    )
    if not is_watchable(declared):
        return spec
    with warnings.catch_warnings():
        # In beta, and the only kind of asset whose observations automation conditions and staleness go by.
        warnings.simplefilter("ignore", dg.BetaWarning)

        @dg.multi_observable_source_asset(specs=[spec], name=f"{declared.name}__source")  # type: ignore[untyped-decorator]
        @with_resources
        def source_asset(context: dg.AssetExecutionContext, storage: StorageResource) -> Iterator[Any]:
            if not _is_alone(context) and last_read(context.instance, declared) is None:
                context.log.info("nothing to compare with: this run reads the source for the first time")
            else:
                for each in observe(context.instance, declared, storage):
                    context.log_event(each)  # with its partition, which a result cannot have
            # Without an output, Dagster would skip in silence all that a run of every asset makes from it.
            yield dg.Output(None, spec.key.to_python_identifier(), metadata={_IS_OBSERVED: True})

    made: dg.AssetsDefinition = source_asset
    return made


def _is_alone(context: dg.AssetExecutionContext) -> bool:
    """Return whether the run does nothing but look at the source."""
    return len(list(context.op_execution_context.job_def.nodes)) == 1


def observe(
    instance: dg.DagsterInstance, declared: Declaration, storage: StorageResource
) -> Sequence[dg.AssetObservation]:
    """Return observations of the source as it is now, of versions that are not those recorded last.

    Raises:
        StoreNotFound: the source is gone.
        dg.Failure: there is nothing to look at before a run has made it.
    """
    event = last_read(instance, declared)
    versions = versions_now(declared, storage, facts_of(event) if event is not None else {})
    if versions is None:
        raise dg.Failure(
            f"{declared.key('raw').to_user_string()} has not read {source_config(declared).described} yet: launch "
            f"{declared.name}_reshard_job once",
            allow_retries=False,
        )
    return new_observations(instance, declared, versions)


def source_config(declared: Declaration) -> ImagesConfig | RowsConfig:
    """Return what the declaration says about the source."""
    return rows_config(declared)() if declared.source.kind == "rows" else images_config(declared)()


def is_watchable(declared: Declaration) -> bool:
    """Return whether a change of the source can be seen without Spark.

    Of images, of tables given by address, and of rows with a function that returns their version.
    """
    source = declared.source
    is_seen = source.version is not None or (source.form == "table" and source.format is not None)
    return source.kind == "images" or (is_seen and declared.partitions is None)


def last_read(instance: dg.DagsterInstance, declared: Declaration) -> dg.EventLogEntry | None:
    """Return the newest materialisation of `raw` from the declared source; None if it was never read.

    If the newest of all is from another source, the runs that have read this one are found by their tag: a run of many
    partitions has a materialisation for each, so that these may be many.
    """
    described, key = source_config(declared).described, declared.key("raw")
    newest = latest(instance, key)
    if newest is None or _is_from(newest, described):
        return newest
    wanted = dg.RunsFilter(tags={DATA_SET_TAG: declared.name, READS_TAG: reads(described)})
    for run in instance.get_runs(wanted, limit=_READERS):
        made = made_in(instance, key, run.run_id)  # none, if the run ended before, or has taken it from another
        if made is not None and _is_from(made, described):
            return made
    return None


def _is_from(event: dg.EventLogEntry, described: str) -> bool:
    """Return whether a materialisation of `raw` is from a source."""
    return bool(facts_of(event).get("source") == described)


# ---------------------------------------------------------------- what is there now


@dataclass(frozen=True)
class Seen:
    """A source without partitions at one moment."""

    place: str
    """Description of where it was looked at."""
    digest: str
    fact: str = "digest"
    """Name of that digest in the metadata of `raw`."""


def look(declared: Declaration, storage: StorageResource, facts: Facts) -> Seen | None:
    """Return a source without partitions as it is now; lists all of it, unless a file stands for it.

    Args:
        declared: the data set.
        storage: for credentials.
        facts: those of the materialisation that has read the source last.

    Returns:
        What was seen; None if there is nothing to look at before a run has made it, as of an archive.

    Raises:
        StoreNotFound: the source is gone.
    """
    config = source_config(declared)
    if isinstance(config, RowsConfig):
        digest = watched_digest(declared, config, storage)
        return Seen(config.described, digest, WATCHED) if digest is not None else None
    address = watched_address(config, facts)
    if address is None:
        return None
    if (mark := file_mark(declared, address, storage)) is not None:
        return Seen(config.described, mark, WATCHED)
    folder = list_again(declared, address, storage)
    watched = watched_fact(declared, folder, None)
    return Seen(folder.source, watched.get(WATCHED, folder.digest), WATCHED if watched else "digest")


def watched_address(config: ImagesConfig, facts: Facts) -> str | None:
    """Return where images can be looked at; None if they were never unpacked or generated."""
    is_there = config.source and not is_archive(config.address)
    return config.address if is_there else facts.get("folder")


def file_mark(declared: Declaration, address: str, storage: StorageResource) -> str | None:
    """Return the size and modification mark of the declared file; None if the declaration names none.

    Raises:
        StoreNotFound: there is no such file.
    """
    watch = declared.automation.watch
    if watch is None or not watch.file:
        return None
    folder = address.rpartition("/")[0] if is_manifest(address) else address
    found = open_store(folder, storage.options_for(folder)).info(watch.file)
    return hashlib.sha256(f"{found.key}\0{found.num_bytes}\0{found.modified}".encode()).hexdigest()


def watched_fact(declared: Declaration, folder: ImageFolder, mark: str | None) -> dict[str, str]:
    """Return what `raw` says beside its digest: the mark of the declared file, or the digest of a paged listing."""
    watch = declared.automation.watch
    if mark is not None:
        return {WATCHED: mark}
    if watch is not None and watch.listing == "paged":
        return {WATCHED: extend_digest("", [(file.path, file) for file in folder.files])}
    return {}


# ---------------------------------------------------------------- what is recorded


def versions_now(declared: Declaration, storage: StorageResource, facts: Facts) -> Versions | None:
    """Return the data versions of the source as it is now; None if there is nothing to look at yet.

    Raises:
        StoreNotFound: the source is gone.
    """
    if declared.partitions is None:
        seen = look(declared, storage, facts)
        return {None: seen.digest} if seen is not None else None
    found = list_all_partitions(images_config(declared)().address, storage)
    return {key: inventory_key(folder) for key, folder in found.items()}


def new_observations(
    instance: dg.DagsterInstance, declared: Declaration, versions: Versions
) -> Sequence[dg.AssetObservation]:
    """Return an observation for each version that is not the one recorded last, a thousand at most."""
    known = recorded_versions(instance, declared)
    changed = {key: version or _EMPTY for key, version in versions.items() if known.get(key) != (version or _EMPTY)}
    return [
        dg.AssetObservation(declared.source_key, partition=key, tags={_VERSION: version})
        for key, version in list(changed.items())[:_EVENTS_AT_ONCE]
    ]


def recorded_versions(instance: dg.DagsterInstance, declared: Declaration) -> Versions:
    """Return the data versions that were recorded last."""
    if declared.partitions is None:
        records = instance.fetch_observations(declared.source_key, limit=1).records
        found = records[0].event_log_entry.asset_observation if records else None
        return {None: found.tags.get(_VERSION, "")} if found is not None else {}
    kind = dg.DagsterEventType.ASSET_OBSERVATION
    tags = instance.event_log_storage.get_latest_tags_by_partition(declared.source_key, kind, [_VERSION])
    return {key: each.get(_VERSION, "") for key, each in tags.items()}


def record_read(
    context: dg.AssetExecutionContext, declared: Declaration, facts: Facts, storage: StorageResource
) -> dict[str, str]:
    """Record the versions that a run has read, and return the tags that say so in the materialisation of `raw`."""
    if str(facts.get("source")) != source_config(declared).described:
        return {}  # an override: another source than the asset stands for
    if declared.partitions is None:
        versions: Versions = {None: str(facts.get(WATCHED, facts["digest"]))}
    else:
        read = ReadPartitions.load(inventories_of(declared, storage), str(facts[PARTITIONS])).own
        versions = dict(read.items())
    for each in new_observations(context.instance, declared, versions):
        context.log_event(each)
    records, name = context.instance.fetch_observations(declared.source_key, limit=1).records, declared.source_key
    tags = {f"dagster/input_event_pointer/{name.to_user_string()}": str(each.storage_id) for each in records}
    if declared.partitions is None:
        tags[f"dagster/input_data_version/{name.to_user_string()}"] = versions[None]
    return tags
