"""Training on new versions of a shard set. The sensor is off until a person switches it on.

It is no `asset_sensor`: that kind moves its cursor on even when it skips, so it cannot wait for the checks of the run
that wrote a version.

1. What it trains on is the version with the tag `checked`, whose blocking checks passed; of several that are new, the
   newest. Version and digest are pinned in the run.
2. Nothing is requested while a training of this data set is running, or the pool of trainings is full.
3. A training that failed or was cancelled is requested again, `MAX_TRIES` times in all. Switching the sensor off and
   on gives new tries; a person who cancels a training for good switches it off.
4. The cursor keeps the runs that were seen, so that a run that is deleted later still counts.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import dagster as dg

from smalti.catalog.manifest import Header, read_header
from smalti.errors import StoreNotFound, VersionNotFound
from smalti.storage import Store
from smalti_dagster.automation.debounce import MAX_TRIES
from smalti_dagster.automation.states import UNFINISHED
from smalti_dagster.checks.check import own_checks
from smalti_dagster.declaration import Declaration
from smalti_dagster.jobs import TRAINING_JOBS, job_name
from smalti_dagster.lineage import DATA_SET_TAG, TRAINS_TAG, VERSION_TAG, facts_of, latest, made_in, run_tags
from smalti_dagster.models.training import TRAINING_POOL
from smalti_dagster.places import shards_of
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.runs.steps import awaits_retry
from smalti_dagster.shard_tags import CHECKED, checked_version, settle
from smalti_dagster.stages.source import source_config

GOING_ON, TRAINED, FAILED, NOTHING = "going on", "trained", "failed", "trained nothing"


@dataclass(frozen=True)
class ContentRuns:
    """The runs that were seen to train on one content, oldest first."""

    digest: str = ""
    runs: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Run id to what became of it, and when it was created."""

    def to_cursor(self) -> str:
        """The text that Dagster keeps for the sensor."""
        return json.dumps(asdict(self))

    @classmethod
    def from_cursor(cls, text: str | None, digest: str) -> "ContentRuns":
        """Return what `to_cursor` wrote about a content; none for another content, or a text that a person edited."""
        try:
            found = cls(**json.loads(text or "{}"))
            runs = {str(run): (str(outcome), float(created)) for run, (outcome, created) in found.runs.items()}
        except (ValueError, TypeError, AttributeError):
            return cls(digest)
        return cls(digest, runs) if found.digest == digest else cls(digest)

    def ended(self, outcome: str, since: float = 0.0) -> list[str]:
        """Return the runs with an outcome that were created after a time, oldest first."""
        return [run for run, (each, created) in self.runs.items() if each == outcome and created > since]


def build_train_sensor(declared: Declaration, *, interval_seconds: int = 30) -> dg.SensorDefinition:
    """Return the sensor that trains on versions whose blocking checks passed; it looks at such intervals."""
    job = job_name(declared, "train")

    @dg.sensor(
        name=f"{declared.name}_train_sensor",
        job_name=job,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        **declared.labels,
        description=f"Trains on the version of {declared.name} with the tag `{CHECKED}`, the newest whose blocking "
        f"checks passed: once for every digest, and again if that failed or was cancelled, at most {MAX_TRIES} times.",
    )
    @with_resources
    def sensor(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        """Request a run for a digest that was not trained on yet, pinned to that version."""
        settle(context.instance, declared, storage, own_checks(context, declared))
        store = shards_of(declared, storage).store()
        header = checked_version(store)
        waiting = _unchecked(context.instance, declared, header)
        if header is None:
            none = f"no version of {declared.name} has passed its blocking checks yet{waiting}"
            return dg.SensorResult(skip_reason=none, cursor=context.cursor)
        name = f"version {header.version} ({header.digest[:12]})"
        # Empty for a version that something else than the pipeline made.
        source, wanted = str(header.lineage.get("source", "")), source_config(declared).described
        if source and source != wanted:
            other = f"{name} was made from {source}, and the declaration says {wanted}"
            todo = f"launch {job} by hand, or change the declaration"
            return dg.SensorResult(skip_reason=f"{other}: {todo}", cursor=context.cursor)
        seen = _look(context.instance, declared, ContentRuns.from_cursor(context.cursor, header.digest))
        started = context.last_sensor_start_time or 0.0
        reason = (
            _why_not_again(seen, started)
            or _why_not_yet(context.instance, declared, store, header)
            or _why_not_now(context.instance, declared)
        )
        if reason:
            return dg.SensorResult(skip_reason=f"{name} {reason}{waiting}", cursor=seen.to_cursor())
        return dg.SensorResult(run_requests=[_request(declared, header, seen)], cursor=seen.to_cursor())

    return sensor


def _unchecked(instance: dg.DagsterInstance, declared: Declaration, checked: Header | None) -> str:
    """Say that there is a newer version whose checks have not passed, if there is one."""
    event = latest(instance, declared.key("shards"))
    newest = int(facts_of(event).get("version", 0)) if event is not None else 0
    if newest <= (checked.version if checked is not None else 0):
        return ""
    return f"; the blocking checks of version {newest} have not all passed: see run {event.run_id if event else ''}"


def _look(instance: dg.DagsterInstance, declared: Declaration, before: ContentRuns) -> ContentRuns:
    """Return the trainings on a content as they are now; one that was deleted before it had ended has failed."""
    tags = {TRAINS_TAG: before.digest, DATA_SET_TAG: declared.name}
    records = instance.get_run_records(dg.RunsFilter(tags=tags), ascending=True)
    now = {each.dagster_run.run_id: each for each in records}
    runs = {
        run: (FAILED if outcome == GOING_ON else outcome, created)
        for run, (outcome, created) in before.runs.items()
        if run not in now
    }
    for run, record in now.items():
        known = before.runs.get(run, ("", 0.0))[0]
        outcome = known if known in (TRAINED, NOTHING) else _outcome(instance, declared, record.dagster_run)
        runs[run] = (outcome, record.create_timestamp.timestamp())
    return ContentRuns(before.digest, runs)


def _outcome(instance: dg.DagsterInstance, declared: Declaration, run: dg.DagsterRun) -> str:
    """Return what became of a run.

    A run that re-executed other steps only has the tags of the run whose training failed, and trained nothing.
    """
    if not run.is_finished or awaits_retry(instance, run):
        return GOING_ON
    if run.is_success:
        return TRAINED if made_in(instance, declared.key("model"), run.run_id) is not None else NOTHING
    return FAILED


def _why_not_again(seen: ContentRuns, started: float) -> str:
    """Return why a content is not trained on once more; empty if it may be.

    Args:
        seen: The trainings on it.
        started: When the sensor was switched on; what ended badly before that does not count.
    """
    for outcome in (TRAINED, GOING_ON):
        if runs := seen.ended(outcome):
            return f"has been given to run {runs[-1]}: {outcome}"
    failed = seen.ended(FAILED, started)
    if len(failed) < MAX_TRIES:
        return ""
    return (
        f"was given to {len(failed)} runs, which failed or were cancelled; the last is {failed[-1]}. Look at its log "
        "and mend the cause, then re-execute it, which resumes from its newest checkpoint, or switch this sensor off "
        "and on for new tries"
    )


def _why_not_yet(instance: dg.DagsterInstance, declared: Declaration, store: Store, header: Header) -> str:
    """Return how many samples a version lacks before the sensor trains on it; empty if it has enough."""
    wanted = declared.train.new_samples if declared.train else 0
    event = latest(instance, declared.key("model")) if wanted else None
    version = None if event is None else facts_of(event).get("version")
    if version is None:
        return ""
    try:
        more = header.rows - read_header(store, int(version)).rows
    except (StoreNotFound, VersionNotFound):  # of another place, or removed
        return ""
    if more >= wanted:
        return ""
    return f"has {more} samples more than version {version} of the last model, and `new_samples` is {wanted}"


def _why_not_now(instance: dg.DagsterInstance, declared: Declaration) -> str:
    """Return which training has to end first; empty if none."""
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        if _trains(declared, run):
            return f"waits for run {run.run_id} ({run.status.value}), which trains on another version"
    retried = {DATA_SET_TAG: declared.name, "dagster/will_retry": "true"}
    for run in instance.get_runs(dg.RunsFilter(tags=retried, statuses=[dg.DagsterRunStatus.FAILURE])):
        if _trains(declared, run) and awaits_retry(instance, run):
            return f"waits for the retry of run {run.run_id}, which trains on another version"
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        pool = storage.get_concurrency_info(TRAINING_POOL)
        taken = pool.active_run_ids | pool.pending_run_ids
        if pool.limit is not None and len(taken) >= pool.limit:
            others = ", ".join(sorted(taken))
            return f"waits for a slot of the pool {TRAINING_POOL!r}, which has {pool.limit}: run {others}"
    return ""


def _trains(declared: Declaration, run: dg.DagsterRun) -> bool:
    """Return whether a run trains on the data set, or will; a run that a person launched has no tags at first."""
    if run.tags.get(DATA_SET_TAG) == declared.name and TRAINS_TAG in run.tags:
        return True
    if run.asset_selection:
        return declared.key("model") in run.asset_selection
    return run.job_name in {job_name(declared, kind) for kind in TRAINING_JOBS}


def _request(declared: Declaration, header: Header, seen: ContentRuns) -> dg.RunRequest:
    pinned = {"version": header.version, "digest": header.digest}
    after = f":after:{list(seen.runs)[-1]}" if seen.runs else ""  # a run key is used up for ever
    return dg.RunRequest(
        run_key=f"{declared.name}:train:{header.digest}{after}",
        run_config={"ops": {declared.model_op: {"config": pinned}}},
        tags={**run_tags(declared), TRAINS_TAG: header.digest, VERSION_TAG: str(header.version)},
    )
