"""Re-sharding when the declared source changed. The sensor is off until a person switches it on.

Exactly one run for each change, whatever the daemon does between two steps of a tick:

1. What a tick decides depends on the source, on the saved cursor, and on the runs and materialisations of the instance.
2. The key of a request names the content and the last run that was requested for it: a tick that is evaluated again
   has the same key, and a content that comes back has another one.
3. A message of a queue is deleted only when the saved cursor says that there are messages to follow.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from smalti.errors import StoreNotFound
from smalti.sources.image_folder import PartialListing, list_further
from smalti.sources.message_queue import MessageQueue
from smalti.storage import open_store
from smalti_dagster.automation import debounce
from smalti_dagster.automation.debounce import WatchState
from smalti_dagster.automation.partitions import Look, add_partitions, look_at_partitions, request_partitions
from smalti_dagster.automation.states import unfinished_reader
from smalti_dagster.checks.check import own_checks
from smalti_dagster.declaration import Declaration, Watch
from smalti_dagster.jobs import job_name
from smalti_dagster.lineage import facts_of, latest, made_in
from smalti_dagster.places import expand
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.runs.steps import awaits_retry
from smalti_dagster.shard_tags import settle
from smalti_dagster.sources.images import ImagesConfig
from smalti_dagster.stage import Facts
from smalti_dagster.stages.source import (
    WATCHED,
    Versions,
    last_read,
    look,
    new_observations,
    source_config,
    watched_address,
)

SEEN_TAG = "smalti/seen"
"""Tag of the runs that the sensor requests: the digest of what it saw."""

_SECONDS = 20.0
"""Time in which a tick begins pages of a listing, or requests to a queue: Dagster ends a tick after 60 s."""


def build_watch_sensor(
    declared: Declaration, watch: Watch, *, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Return the sensor that looks at the declared source."""
    then = "Re-shards" if declared.automation.condition is None else "Records a new data version of the source of"

    @dg.sensor(
        name=f"{declared.name}_watch_sensor",
        job_name=job_name(declared, "reshard"),
        minimum_interval_seconds=watch.interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        **declared.labels,
        description=f"{then} {declared.name} when the content of its source has changed, and was then quiet for "
        f"{watch.quiet_seconds} s.",
    )
    @with_resources
    def sensor(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        settle(context.instance, declared, storage, own_checks(context, declared))
        return _Tick(context.instance, declared, watch, storage, clock()).result(context.cursor)

    return sensor


@dataclass(frozen=True)
class _Sight:
    """The state of the source as a tick has found it."""

    state: WatchState
    place: str
    """Description of where it has looked."""
    digest: str
    """Digest of the content, or of the messages about it."""
    known: str
    """Digest of the content that was read last."""
    versions: Versions
    """Data versions to record."""
    partitions: Look | None = None
    is_held: bool = True
    """True if the shards hold the content that was read last."""


@dataclass(frozen=True)
class _Tick:
    """One evaluation of the sensor."""

    instance: dg.DagsterInstance
    declared: Declaration
    watch: Watch
    storage: StorageResource
    now: float

    def result(self, cursor: str | None) -> dg.SensorResult:
        """Return the request, the observations and the cursor of this tick, or why it requests nothing."""
        state, event = WatchState.from_cursor(cursor), last_read(self.instance, self.declared)
        sight = self._look(state, event)
        if isinstance(sight, dg.SensorResult):
            return sight
        if self.declared.automation.condition is not None:
            return self._observe(sight)
        running = unfinished_reader(self.instance, self.declared) or self._awaited(event)
        verdict = self._judge(sight, running)
        events, cursor = list(new_observations(self.instance, self.declared, sight.versions)), verdict.watch.to_cursor()
        if not verdict.is_due:
            reason = f"{sight.place}: {verdict.reason}{_describe_failure(self.instance, event)}"
            return dg.SensorResult(skip_reason=reason, asset_events=events, cursor=cursor)
        request = self._request(sight.digest)
        if sight.partitions is None:
            return dg.SensorResult(run_requests=[request], asset_events=events, cursor=cursor)
        requests, added = request_partitions(self.instance, self.declared, sight.partitions.changed, request)
        return dg.SensorResult(
            run_requests=requests, dynamic_partitions_requests=added, asset_events=events, cursor=cursor
        )

    def _judge(self, sight: _Sight, running: dg.DagsterRun | None) -> debounce.Verdict:
        return debounce.judge(
            sight.state,
            sight.digest,
            known=sight.known,
            running=running.run_id if running is not None else "",
            now=self.now,
            quiet_seconds=self.watch.quiet_seconds,
            is_held=sight.is_held,
        )

    def _observe(self, sight: _Sight) -> dg.SensorResult:
        """Record a quiet source's new version, on which the automation conditions of the assets act."""
        events = list(new_observations(self.instance, self.declared, sight.versions))
        verdict = self._judge(replace(sight, known="" if events else sight.digest, is_held=True), None)
        if not verdict.is_due:
            reason = f"{sight.place}: {verdict.reason}"
            return dg.SensorResult(skip_reason=reason, cursor=verdict.watch.to_cursor())
        added: list[dg.AddDynamicPartitionsRequest] = []
        if sight.partitions is not None:
            added = add_partitions(self.instance, self.declared, sight.partitions.changed)
        return dg.SensorResult(
            skip_reason=f"{sight.place}: {verdict.reason}; its data version was recorded",
            asset_events=events,
            dynamic_partitions_requests=added,
            cursor=replace(verdict.watch, requested="", tries=0).to_cursor(),
        )

    def _request(self, digest: str) -> dg.RunRequest:
        """Return a request whose key is not used up: it follows the last run that was requested for this content."""
        after = "".join(f":after:{run.run_id}" for run in self._requested(digest)[:1])
        return dg.RunRequest(run_key=f"{self.declared.name}:reshard:{digest}{after}", tags={SEEN_TAG: digest})

    def _requested(self, digest: str) -> Sequence[dg.DagsterRun]:
        """Return the runs that were requested for a content, newest first."""
        job = job_name(self.declared, "reshard")
        return self.instance.get_runs(dg.RunsFilter(job_name=job, tags={SEEN_TAG: digest}))

    def _look(self, state: WatchState, event: dg.EventLogEntry | None) -> _Sight | dg.SensorResult:
        facts = facts_of(event) if event is not None else {}
        is_held = event is None or self._is_held(event)
        if self.declared.partitions is not None:
            return self._look_at_partitions(state)
        if self.watch.queue:
            return self._look_at_messages(state, self.watch.queue, event.run_id if event is not None else "")
        if self.watch.listing == "paged":
            return self._look_at_pages(state, facts, is_held=is_held)
        try:
            seen = look(self.declared, self.storage, facts)
        except StoreNotFound as error:
            if not self.watch.file:
                raise
            return dg.SensorResult(skip_reason=f"waiting for {self.watch.file}: {error}", cursor=state.to_cursor())
        if seen is None:  # an archive, or images that are generated: there is no folder before a run made it
            return self._unread(state)
        known = str(facts.get(seen.fact, ""))
        return _Sight(state, seen.place, seen.digest, known, {None: seen.digest}, is_held=is_held)

    def _is_held(self, event: dg.EventLogEntry) -> bool:
        """Return whether the shards hold what a materialisation of `raw` has read: they were made after it."""
        shards = latest(self.instance, self.declared.key("shards"))
        return shards is not None and shards.timestamp >= event.timestamp

    def _awaited(self, event: dg.EventLogEntry | None) -> dg.DagsterRun | None:
        """Return the run that has read the source last if Dagster is about to start it again."""
        run = self.instance.get_run_by_id(event.run_id) if event is not None and event.run_id else None
        return run if run is not None and awaits_retry(self.instance, run) else None

    def _look_at_partitions(self, state: WatchState) -> _Sight:
        found = look_at_partitions(self.instance, self.declared, self.storage)
        known = "" if found.changed else found.digest
        place = source_config(self.declared).described
        return _Sight(state, place, found.digest, known, found.versions, found)

    def _look_at_pages(self, state: WatchState, facts: Facts, *, is_held: bool) -> _Sight | dg.SensorResult:
        """List a part of the source; what is there is known when the listing has come to its end."""
        config = source_config(self.declared)
        address = watched_address(config, facts) if isinstance(config, ImagesConfig) else None
        if address is None:
            return self._unread(state)
        store = open_store(address, self.storage.options_for(address))
        listing = list_further(store, state.listing, seconds=_SECONDS)
        if not listing.is_complete:
            reason = f"{config.described}: listed {listing.count} images so far; the next tick goes on"
            return dg.SensorResult(skip_reason=reason, cursor=replace(state, listing=listing).to_cursor())
        if not listing.count:
            raise StoreNotFound(f"{config.described}: the folder is empty or does not exist; nothing is requested")
        rested, known = replace(state, listing=PartialListing()), str(facts.get(WATCHED, ""))
        return _Sight(rested, config.described, listing.digest, known, {None: listing.digest}, is_held=is_held)

    def _look_at_messages(self, state: WatchState, address: str, last_run: str) -> _Sight | dg.SensorResult:
        """Take messages from the queue; the digest of those that no run has followed stands for the content."""
        queue = MessageQueue(expand(address))
        if state.messages and self._was_published(state.messages):
            state = replace(state, messages="", requested="", tries=0, seen="")
        # What the saved cursor knows of as not requested yet may go: the run that follows reads it in any case.
        is_saved = bool(state.messages) and state.messages != state.requested
        if found := queue.drain(seconds=_SECONDS) if is_saved else queue.peek():
            # The run makes the digest another one if a message is delivered once more.
            messages = hashlib.sha256(f"{state.messages} {found} {last_run}".encode()).hexdigest()
            state = replace(state, messages=messages)
        place = source_config(self.declared).described
        if not state.messages:
            return dg.SensorResult(skip_reason=f"{place}: no message is waiting", cursor=state.to_cursor())
        return _Sight(state, place, state.messages, "", {None: f"messages {state.messages[:12]}"})

    def _was_published(self, messages: str) -> bool:
        """Return whether a run that was requested for messages, or one that executes it again, has made the shards."""
        shards = self.declared.key("shards")
        return any(made_in(self.instance, shards, run.run_id) is not None for run in self._requested(messages))

    def _unread(self, state: WatchState) -> dg.SensorResult:
        raw, job = self.declared.key("raw").to_user_string(), job_name(self.declared, "reshard")
        reason = f"{raw} has not read {source_config(self.declared).described} yet: launch {job} once"
        return dg.SensorResult(skip_reason=reason, cursor=state.to_cursor())


def _describe_failure(instance: dg.DagsterInstance, event: dg.EventLogEntry | None) -> str:
    """Say that the run that read the source last has failed, unless a re-execution has succeeded."""
    run = instance.get_run_by_id(event.run_id) if event is not None and event.run_id else None
    if run is None or not run.is_failure_or_canceled or _was_mended(instance, run):
        return ""
    return f"; run {run.run_id}, which read it last, ended as {run.status.value}: see its log"


def _was_mended(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a re-execution of a run, or one that it belongs to, has succeeded."""
    root = run.root_run_id or run.run_id
    done = dg.RunsFilter(tags={"dagster/root_run_id": root}, statuses=[dg.DagsterRunStatus.SUCCESS])
    return bool(instance.get_runs(done, limit=1))
