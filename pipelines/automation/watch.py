"""Re-sharding when the declared source changed. The sensor is off until a person switches it on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from assets.declaration import Declaration, Watch
from assets.lineage import facts_of, materialisations
from assets.sources.images import ImagesConfig, images_config, list_again
from assets.sources.rows_config import RowsConfig, rows_config
from assets.sources.unchanged import watched_digest
from pipelines.automation import debounce
from pipelines.automation.partitions import look_at_partitions, request_partitions
from pipelines.automation.states import UNFINISHED
from pipelines.jobs import job_name
from resources.storage import StorageResource
from smalti.spark import is_archive

SEEN_TAG = "smalti/seen"
"""Tag of the runs that the sensor requests: the digest of what it saw."""


def build_watch_sensor(
    declared: Declaration, watch: Watch, *, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Return the sensor that looks at the declared source."""
    job = job_name(declared, "reshard")

    @dg.sensor(
        name=f"{declared.name}_watch_sensor",
        job_name=job,
        minimum_interval_seconds=watch.interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Re-shards {declared.name} when the content of its source has changed, and was then quiet for "
        f"{watch.quiet_seconds} s.",
    )
    def sensor(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        instance = context.instance
        config = rows_config(declared)() if declared.source.kind == "rows" else images_config(declared)()
        event = _last_read(instance, declared, config.described)
        facts = facts_of(event) if event is not None else {}
        partitions = look_at_partitions(instance, declared, storage) if declared.partitions is not None else None
        if partitions is None:
            seen = _look(declared, config, storage, facts)
        else:
            seen = _Seen(config.described, partitions.digest, "digest")
        if seen is None:  # an archive, or a set that is drawn: there is no folder before a run made it
            raw = declared.key("raw").to_user_string()
            return dg.SensorResult(skip_reason=f"{raw} has not read {config.described} yet: launch {job} once")
        verdict = debounce.judge(
            debounce.WatchState.from_cursor(context.cursor),
            seen.digest,
            known=str(facts.get(seen.fact, "")),
            running=_is_under_way(instance, job, seen.digest),
            now=clock(),
            quiet_seconds=watch.quiet_seconds,
        )
        cursor = verdict.watch.to_cursor()
        if verdict.run_key is None:
            note = _describe_failure(instance, event)
            return dg.SensorResult(skip_reason=f"{seen.place}: {verdict.reason}{note}", cursor=cursor)
        run_key, tags = f"{declared.name}:{verdict.run_key}", {SEEN_TAG: seen.digest}
        if partitions is None:
            return dg.SensorResult(run_requests=[dg.RunRequest(run_key=run_key, tags=tags)], cursor=cursor)
        requests, added = request_partitions(instance, declared, partitions.changed, run_key=run_key, tags=tags)
        return dg.SensorResult(run_requests=requests, dynamic_partitions_requests=added, cursor=cursor)

    return sensor


@dataclass(frozen=True)
class _Seen:
    """The content of a source at one moment."""

    place: str
    digest: str
    fact: str
    """Name of the digest in the metadata of `raw`."""


def is_watchable(declared: Declaration) -> bool:
    """Return whether a change of the source can be seen without Spark.

    Of images, of tables given by address, and of rows with a function that tells their version.
    """
    source = declared.source
    is_seen = source.version is not None or (source.form == "table" and source.format is not None)
    return source.kind == "images" or (is_seen and declared.partitions is None)


def _look(
    declared: Declaration, config: ImagesConfig | RowsConfig, storage: StorageResource, facts: Mapping[str, Any]
) -> _Seen | None:
    """Return the content of the declared source as it is now; None if there is no place to look at yet."""
    if isinstance(config, RowsConfig):
        digest = watched_digest(declared, config, storage)
        return _Seen(config.described, digest, "watched") if digest is not None else None
    address = config.address if config.source and not is_archive(config.address) else facts.get("folder")
    if address is None:
        return None
    folder = list_again(declared, str(address), storage)
    return _Seen(folder.source, folder.digest, "digest")


def _is_under_way(instance: dg.DagsterInstance, job: str, digest: str) -> bool:
    """Return whether a run that was requested for this content has not ended yet."""
    wanted = dg.RunsFilter(job_name=job, tags={SEEN_TAG: digest}, statuses=UNFINISHED)
    return bool(instance.get_runs(wanted, limit=1))


def _last_read(instance: dg.DagsterInstance, declared: Declaration, source: str) -> dg.EventLogEntry | None:
    """Return the newest materialisation of `raw` from the declared source; None if it was never read."""
    made = materialisations(instance, declared.key("raw"))
    return next((event for event in made if facts_of(event).get("source") == source), None)


def _describe_failure(instance: dg.DagsterInstance, event: dg.EventLogEntry | None) -> str:
    """Say that the run that read the source last has failed, unless a re-execution has succeeded."""
    run = instance.get_run_by_id(event.run_id) if event is not None and event.run_id else None
    if run is None or not run.is_failure_or_canceled or _was_mended(instance, run):
        return ""
    return f"; run {run.run_id}, which read it last, ended as {run.status.value}: see its log, then re-execute it"


def _was_mended(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a re-execution of a run, or one that it belongs to, has succeeded."""
    root = run.root_run_id or run.run_id
    done = dg.RunsFilter(tags={"dagster/root_run_id": root}, statuses=[dg.DagsterRunStatus.SUCCESS])
    return bool(instance.get_runs(done, limit=1))
