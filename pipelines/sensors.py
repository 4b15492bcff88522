"""What happens when something appears: new images are sharded, new shard set versions are trained on.

Both sensors are off until a person switches them on. Neither is an `asset_sensor`: that kind moves its cursor on
even when it skips, so it cannot wait for the checks of the run that wrote a version.
"""

import time
from collections.abc import Callable

import dagster as dg

from assets.lineage import TRAINS_TAG, facts_of, latest
from pipelines.debounce import Watch, judge
from pipelines.jobs import RESHARD_ASSETS, TRAIN_ASSETS, reshard_job, train_job
from pipelines.repeat import last_config
from resources.storage import StorageResource

QUIET_SECONDS = 60.0


@dg.sensor(
    job=train_job,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Trains once on every new version of the shard set, known by its digest, when its checks have passed.",
)
def train_on_new_version_sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """One run for a digest that no run has trained on yet, pinned to that version."""
    event = latest(context.instance, "mds_shards")
    if event is None:
        return dg.SkipReason("no version of the shard set has been written yet")
    facts = facts_of(event)
    version, digest = int(facts["version"]), str(facts["digest"])
    name = f"version {version} ({digest[:12]})"
    trained = context.instance.get_runs(dg.RunsFilter(tags={TRAINS_TAG: digest}), limit=1)
    if trained:
        return dg.SkipReason(f"{name} has been given to run {trained[0].run_id}: {trained[0].status.value}")
    writer = context.instance.get_run_by_id(event.run_id) if event.run_id else None
    if writer is not None and not writer.is_finished:
        return dg.SkipReason(f"{name} is written, but run {writer.run_id} is still checking it")
    if writer is not None and not writer.is_success:
        return dg.SkipReason(
            f"{name} comes from run {writer.run_id}, which ended as {writer.status.value}: see its checks"
        )
    return _train_request(context.instance, version, digest)


def _train_request(instance: dg.DagsterInstance, version: int, digest: str) -> dg.RunRequest:
    run_config = last_config(instance, TRAIN_ASSETS)
    asset = run_config.setdefault("ops", {}).setdefault("trained_model", {})
    asset["config"] = {**asset.get("config", {}), "version": version, "digest": digest}
    return dg.RunRequest(
        run_key=f"train:{digest}",
        run_config=run_config,
        tags={TRAINS_TAG: digest, "smalti/version": str(version)},
    )


def build_reshard_sensor(
    *, quiet_seconds: float = QUIET_SECONDS, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """The sensor that watches the folder of images which `raw_images` was last read from."""

    @dg.sensor(
        name="reshard_on_new_images_sensor",
        job=reshard_job,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Re-shards when the source folder's content changed and was then quiet for {quiet_seconds:g} s.",
    )
    def sensor(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        from smalti.spark import list_images

        event = latest(context.instance, "raw_images")
        if event is None:
            return dg.SensorResult(skip_reason="raw_images has never been materialised: nothing to watch yet")
        facts = facts_of(event)
        folder = list_images(facts["folder"], storage_options=storage.options_for(facts["folder"]))
        watch = Watch.from_cursor(context.cursor)
        verdict = judge(watch, folder.digest, known=facts["digest"], now=clock(), quiet_seconds=quiet_seconds)
        cursor = verdict.watch.to_cursor()
        if verdict.run_key is None:
            return dg.SensorResult(skip_reason=f"{facts['folder']}: {verdict.reason}", cursor=cursor)
        request = dg.RunRequest(
            run_key=verdict.run_key,
            run_config=last_config(context.instance, RESHARD_ASSETS),
            tags={"smalti/images": folder.digest},
        )
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return sensor


reshard_on_new_images_sensor = build_reshard_sensor()
