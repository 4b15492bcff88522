"""Training on new versions of a shard set. The sensor is off until a person switches it on.

It is no `asset_sensor`: that kind moves its cursor on even when it skips, so it cannot wait for the checks of the run
that wrote a version.
"""

from collections.abc import Sequence

import dagster as dg

from assets.declaration import Declaration
from assets.lineage import DATA_SET_TAG, TRAINS_TAG, VERSION_TAG, facts_of, latest, made_in, run_tags
from assets.places import shards_of
from assets.shard_tags import CHECKED, checked_version
from assets.sources.images import images_config
from pipelines.automation.debounce import MAX_TRIES
from pipelines.jobs import job_name
from resources.storage import StorageResource
from smalti.catalog.header import Header


def build_train_sensor(declared: Declaration) -> dg.SensorDefinition:
    """Return the sensor that trains on versions whose blocking checks passed."""
    job = job_name(declared, "train")

    @dg.sensor(
        name=f"{declared.name}_train_sensor",
        job_name=job,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Trains on the version of {declared.name} with the tag `{CHECKED}`, the newest whose blocking "
        f"checks passed: once for every digest, and again if that failed, at most {MAX_TRIES} times.",
    )
    def sensor(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.RunRequest | dg.SkipReason:
        """Request a run for a digest that was not trained on yet, pinned to that version."""
        header = checked_version(shards_of(declared, storage).store())
        waiting = _unchecked(context.instance, declared, header)
        if header is None:
            return dg.SkipReason(f"no version of {declared.name} has passed its blocking checks yet{waiting}")
        name = f"version {header.version} ({header.digest[:12]})"
        # Empty for a version that something else than the pipeline made.
        source, wanted = str(header.lineage.get("source", "")), images_config(declared)().described
        if source and source != wanted:
            return dg.SkipReason(
                f"{name} was made from {source}, and the declaration says {wanted}: launch {job} by hand, or "
                f"change the declaration"
            )
        wanted_tags = {TRAINS_TAG: header.digest, DATA_SET_TAG: declared.name}
        runs = context.instance.get_runs(dg.RunsFilter(tags=wanted_tags))
        if reason := _why_not_again(context.instance, declared, runs):
            return dg.SkipReason(f"{name} {reason}{waiting}")
        return _request(declared, header, runs)

    return sensor


def _unchecked(instance: dg.DagsterInstance, declared: Declaration, checked: Header | None) -> str:
    """Say that there is a newer version whose checks have not passed, if there is one."""
    event = latest(instance, declared.key("shards"))
    newest = int(facts_of(event).get("version", 0)) if event is not None else 0
    if newest <= (checked.version if checked is not None else 0):
        return ""
    return f"; the blocking checks of version {newest} have not all passed: see run {event.run_id if event else ''}"


def _why_not_again(instance: dg.DagsterInstance, declared: Declaration, runs: Sequence[dg.DagsterRun]) -> str:
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
            or (run.is_success and made_in(instance, declared.key("model"), run.run_id) is not None)
        ):
            return f"has been given to run {run.run_id}: {run.status.value}"
    if len(failed) < MAX_TRIES:
        return ""
    return (
        f"was given to {len(failed)} runs, and none of them succeeded; the last is {failed[0].run_id}: "
        f"{failed[0].status.value}. Look at its log and mend the cause, then re-execute it, which goes on from its "
        "newest checkpoint"
    )


def _request(declared: Declaration, header: Header, runs: Sequence[dg.DagsterRun]) -> dg.RunRequest:
    pinned = {"version": header.version, "digest": header.digest}
    after = f":after:{runs[0].run_id}" if runs else ""  # a run key is used up for ever
    return dg.RunRequest(
        run_key=f"{declared.name}:train:{header.digest}{after}",
        run_config={"ops": {declared.model_op: {"config": pinned}}},
        tags={**run_tags(declared), TRAINS_TAG: header.digest, VERSION_TAG: str(header.version)},
    )
