"""What happens when something appears: new images are sharded, new shard set versions are trained on.

Both sensors are off until a person switches them on. Neither is an `asset_sensor`: that kind moves its cursor on
even when it skips, so it cannot wait for the checks of the run that wrote a version.
"""

import time
from collections.abc import Callable, Sequence

import dagster as dg

from assets.automation import kept_source, switched_on
from assets.lineage import TRAINS_TAG, facts_of, latest, made_in, materialisations
from assets.shard_tags import CHECKED, SHARDS, checked_version
from pipelines.debounce import MAX_TRIES, Watch, judge
from pipelines.jobs import RESHARD_ASSETS, TRAIN_ASSETS, reshard_job, train_job
from pipelines.repeat import last_config
from pipelines.schedules import UNFINISHED
from resources.storage import StorageResource
from smalti.catalog.header import Header

QUIET_SECONDS = 60.0
IMAGES_TAG = "smalti/images"
"""Tag of the runs that the sensor of new images requests: the digest of what it saw."""
_TRAIN_SENSOR = "train_on_new_version_sensor"
_RESHARD_SENSOR = "reshard_on_new_images_sensor"


@dg.sensor(
    name=_TRAIN_SENSOR,
    job=train_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description=f"Trains on the version with the tag `{CHECKED}`, the newest whose blocking checks passed: once for "
    f"every digest, and again if that failed, at most {MAX_TRIES} times.",
)
def train_on_new_version_sensor(
    context: dg.SensorEvaluationContext, storage: StorageResource
) -> dg.RunRequest | dg.SkipReason:
    """Request a run for a digest that was not trained on yet, pinned to that version."""
    header = checked_version(storage.store(SHARDS))
    waiting = _unchecked(context.instance, header)
    if header is None:
        return dg.SkipReason(f"no version of the shard set has passed its blocking checks yet{waiting}")
    name = f"version {header.version} ({header.digest[:12]})"
    source = str(header.lineage.get("source", ""))  # empty for a version that something else than the pipeline made
    if source and switched_on(context.instance, _TRAIN_SENSOR) is not None:
        kept = kept_source(context.instance, _TRAIN_SENSOR)
        if kept is not None and source != kept:
            return dg.SkipReason(
                f"{name} was made from {source}, and this sensor was switched on for {kept}: launch train_job by hand, "
                "or switch the sensor off and on again to follow the new source"
            )
    runs = context.instance.get_runs(dg.RunsFilter(tags={TRAINS_TAG: header.digest}))
    if reason := _why_not_again(context.instance, runs):
        return dg.SkipReason(f"{name} {reason}{waiting}")
    return _train_request(context.instance, header, source, runs)


def _unchecked(instance: dg.DagsterInstance, checked: Header | None) -> str:
    """Say that there is a newer version whose checks have not passed, if there is one."""
    event = latest(instance, "mds_shards")
    newest = int(facts_of(event).get("version", 0)) if event is not None else 0
    if newest <= (checked.version if checked is not None else 0):
        return ""
    return f"; the blocking checks of version {newest} have not all passed: see run {event.run_id if event else ''}"


def _why_not_again(instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun]) -> str:
    """Return why no training is requested, given those of the version, newest first; empty if one is due.

    A run that re-executed other steps only has the tags of the run whose training failed, and was not one.
    """
    failed = []
    for run in runs:
        if not run.is_success:
            failed.append(run)
        if (
            not run.is_finished
            or run.is_complete_and_waiting_to_retry
            or (run.is_success and made_in(instance, "trained_model", run.run_id) is not None)
        ):
            return f"has been given to run {run.run_id}: {run.status.value}"
    if len(failed) < MAX_TRIES:
        return ""
    return (
        f"was given to {len(failed)} runs, and none of them succeeded; the last is {failed[0].run_id}: "
        f"{failed[0].status.value}. Look at its log and mend the cause, then re-execute it, which goes on from its "
        "newest checkpoint"
    )


def _train_request(
    instance: dg.DagsterInstance, header: Header, source: str, runs: Sequence[dg.DagsterRun]
) -> dg.RunRequest:
    run_config = last_config(instance, TRAIN_ASSETS, source)
    asset = run_config.setdefault("ops", {}).setdefault("trained_model", {})
    asset["config"] = {**asset.get("config", {}), "version": header.version, "digest": header.digest}
    after = f":after:{runs[0].run_id}" if runs else ""  # a run key is used up for ever
    return dg.RunRequest(
        run_key=f"train:{header.digest}{after}",
        run_config=run_config,
        tags={TRAINS_TAG: header.digest, "smalti/version": str(header.version)},
    )


def build_reshard_sensor(
    *, quiet_seconds: float = QUIET_SECONDS, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Return the sensor that watches the source for which it was switched on."""

    @dg.sensor(
        name=_RESHARD_SENSOR,
        job=reshard_job,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Re-shards when the content of the source for which it was switched on has changed, and was then "
        f"quiet for {quiet_seconds:g} s.",
    )
    def sensor(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        from smalti.spark import list_images

        instance = context.instance
        source = kept_source(instance, _RESHARD_SENSOR)
        if source is None:
            return dg.SensorResult(skip_reason="raw_images has never been materialised: nothing to watch yet")
        event, note = _last_read(instance, source)
        facts = facts_of(event)
        folder = list_images(facts["folder"], storage_options=storage.options_for(facts["folder"]))
        verdict = judge(
            Watch.from_cursor(context.cursor),
            folder.digest,
            known=facts["digest"],
            running=_is_under_way(instance, folder.digest),
            now=clock(),
            quiet_seconds=quiet_seconds,
        )
        cursor = verdict.watch.to_cursor()
        if verdict.run_key is None:
            return dg.SensorResult(skip_reason=f"{facts['folder']}: {verdict.reason}{note}", cursor=cursor)
        request = dg.RunRequest(
            run_key=verdict.run_key,
            run_config=last_config(instance, RESHARD_ASSETS, source),
            tags={IMAGES_TAG: folder.digest},
        )
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return sensor


def _is_under_way(instance: dg.DagsterInstance, digest: str) -> bool:
    """Return whether a run that was requested for this content has not ended yet."""
    return bool(instance.get_runs(dg.RunsFilter(tags={IMAGES_TAG: digest}, statuses=UNFINISHED), limit=1))


def _last_read(instance: dg.DagsterInstance, source: str) -> tuple[dg.EventLogEntry, str]:
    """Return the newest materialisation of `raw_images` from a source, and what a person should know about it.

    Raises:
        LookupError: all of them were deleted.
    """
    event = next((e for e in materialisations(instance, "raw_images") if facts_of(e).get("source") == source), None)
    if event is None:
        raise LookupError(
            f"no materialisation of raw_images from {source} is left, for which this sensor was switched on: launch a "
            "run of it by hand once, or switch the sensor off and on again to follow another source"
        )
    newest, note = latest(instance, "raw_images"), ""
    if newest is not None and (other := facts_of(newest).get("source")) != source:
        note = f"; raw_images was last read from {other}, and this sensor keeps the source that it was switched on for"
    run = instance.get_run_by_id(event.run_id) if event.run_id else None
    if run is not None and run.is_failure_or_canceled and not _was_mended(instance, run):
        note += f"; run {run.run_id}, which read it last, ended as {run.status.value}: see its log, then re-execute it"
    return event, note


def _was_mended(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a re-execution of a run, or one that it belongs to, has succeeded."""
    root = run.root_run_id or run.run_id
    done = dg.RunsFilter(tags={"dagster/root_run_id": root}, statuses=[dg.DagsterRunStatus.SUCCESS])
    return bool(instance.get_runs(done, limit=1))


reshard_on_new_images_sensor = build_reshard_sensor()
