"""Notifications of failed runs, failed blocking checks, and sensors and schedules that fail again and again.

It is no `run_failure_sensor`: that kind moves its cursor on even if a message could not be delivered.

1. Each tick looks at the runs that failed within the last day, and since the sensor was switched on. What a channel has
   accepted is noted in a tag of the run, so that nothing is sent twice and what was not delivered is sent again.
2. A run that Dagster will retry is not reported; its last retry is.
3. A message that is not delivered makes the tick fail, which says why; the other messages are sent all the same.
4. A sensor or schedule is reported once, when its last `_ERRORS` ticks have failed.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import dagster as dg

from smalti_dagster.automation.failed_runs import data_set_of, describe_run, first_line
from smalti_dagster.declaration import Declaration
from smalti_dagster.places import expand
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.notifications import Channels, DeliveryError, Message, NotificationsResource
from smalti_dagster.runs.steps import awaits_retry

NOTIFIED_TAG = "smalti/notified"
"""Tag of a failed run, followed by the sensor's name: the run's id, then the channels that got the message."""

_WINDOW_SECONDS = 24 * 3600.0
_TICK_SECONDS = 30.0  # no message is begun later; Dagster ends a tick after 60
_LOOKED_AT = 1000
_ERRORS = 3
_STARTED_AT_MOST = 3  # ticks of one sensor that have not ended


class FailureReport:
    """One tick: what it sends to which channels, and what could not be delivered."""

    def __init__(self, notifications: NotificationsResource, channels: Channels, *, has_texts: bool) -> None:
        self.notifications, self.channels, self.has_texts = notifications, channels, has_texts
        self.faults: dict[str, str] = {}
        """Channel to why it did not accept a message; it is not asked again in this tick."""
        self.sent = 0
        self._until = time.monotonic() + _TICK_SECONDS

    def send(self, message: Message, told: Sequence[str] = ()) -> list[str]:
        """Send a message to the channels that have not got it yet, and return all that have."""
        told = list(told)
        for name in self.channels.names():
            if name in told or name in self.faults or time.monotonic() > self._until:
                continue
            try:
                self.notifications.send(name, self.channels, message)
            except DeliveryError as error:
                self.faults[name] = str(error)
            else:
                told.append(name)
                self.sent += 1
        return told

    def outcome(self) -> str:
        """Return what the tick has done, in a sentence."""
        if self.faults:
            faults = "; ".join(f"{channel}: {fault}" for channel, fault in self.faults.items())
            return f"not everything was delivered, and is sent again with the next tick: {faults}"
        return f"messages sent: {self.sent}" if self.sent else "nothing new has failed"


def build_failure_sensor(
    name: str = "failure_sensor",
    *,
    declared: Declaration | None = None,
    is_on: bool = False,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """Return the sensor that reports failures: those of a data set to its own channels, else all to the deployment's.

    Args:
        name: Of the sensor.
        declared: The data set.
        is_on: Whether it is on until a person switches it off.
        clock: Returns the present, seconds since 1970.
    """
    whose = f"of {declared.name} " if declared is not None else ""

    @dg.sensor(
        name=name,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING if is_on else dg.DefaultSensorStatus.STOPPED,
        **(declared.labels if declared is not None else {}),
        description=f"Reports failed runs {whose}and their blocking checks, once no retry is left, and sensors and "
        "schedules that fail again and again.",
    )
    @with_resources
    def sensor(context: dg.SensorEvaluationContext, notifications: NotificationsResource) -> dg.SensorResult:
        """Send what was not sent yet."""
        channels = _channels_of(declared) if declared is not None else notifications.channels()
        if not channels.names():
            todo = "set SMALTI_NOTIFY_WEBHOOK, SMALTI_NOTIFY_SLACK or SMALTI_NOTIFY_EMAIL"
            return dg.SensorResult(skip_reason=f"no channel is configured: {todo}", cursor=context.cursor)
        cursor = _read_cursor(context.cursor)
        # Failures from before it was switched on are not news.
        begin = max(context.last_sensor_start_time or cursor.get("since") or clock(), clock() - _WINDOW_SECONDS)
        notify = declared.automation.notify if declared is not None else None
        report = FailureReport(notifications, channels, has_texts=(notify or notifications).error_texts)
        for run in _failed_runs(context, declared, begin):
            _report_run(context.instance, run, name, report)
        cursor["errors"] = _report_errors(context, declared, name, cursor.get("errors") or {}, report)
        cursor.setdefault("since", begin)
        text = json.dumps(cursor)
        if report.faults and text == context.cursor:  # Dagster keeps no cursor of a tick that fails
            raise DeliveryError(report.outcome())
        return dg.SensorResult(skip_reason=report.outcome(), cursor=text)

    return sensor


def _channels_of(declared: Declaration) -> Channels:
    """Return the channels that a data set declares, with variables of the environment filled in."""
    notify = declared.automation.notify
    if notify is None:
        return Channels()
    email = [expand(each) for each in notify.email]
    return Channels(webhook=expand(notify.webhook), slack=expand(notify.slack), email=email)


def _failed_runs(
    context: dg.SensorEvaluationContext, declared: Declaration | None, begin: float
) -> Iterator[dg.DagsterRun]:
    """Iterate over the failed runs that ended after a time and are not retried, oldest first."""
    since = datetime.fromtimestamp(begin, timezone.utc)
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since)
    records = context.instance.get_run_records(wanted, limit=_LOOKED_AT)
    for record in reversed(records):
        run = record.dagster_run
        if (record.end_time or begin) < begin or not _is_of_this_location(context, run):
            continue
        if declared is not None and data_set_of(run) != declared.name:
            continue
        if not awaits_retry(context.instance, run) and "dagster/auto_retry_run_id" not in run.tags:
            yield run


def _is_of_this_location(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    """Return whether a run belongs to the sensor's code location; one without an origin, if its job is known here."""
    ours = context.code_location_origin
    if run.remote_job_origin is not None and ours is not None:
        return run.remote_job_origin.repository_origin.code_location_origin.location_name == ours.location_name
    return context.repository_def is None or context.repository_def.has_job(run.job_name)


def _report_run(instance: dg.DagsterInstance, run: dg.DagsterRun, sensor: str, report: FailureReport) -> None:
    """Send the message about a run to the channels that have not got it, and note them."""
    tag = f"{NOTIFIED_TAG}.{sensor}"
    owner, *told = run.tags.get(tag, "").split() or [""]
    told = told if owner == run.run_id else []  # a re-execution has the tags of the run before it
    if set(report.channels.names()) <= set(told):
        return
    link = report.notifications.link_to(run.run_id)
    now = report.send(describe_run(instance, run, link, has_texts=report.has_texts), told)
    if len(now) > len(told) and instance.has_run(run.run_id):
        instance.add_run_tags(run.run_id, {tag: " ".join([run.run_id, *now])})


def _report_errors(
    context: dg.SensorEvaluationContext,
    declared: Declaration | None,
    sensor: str,
    before: dict[str, list[str]],
    report: FailureReport,
) -> dict[str, list[str]]:
    """Report sensors and schedules that fail again and again; return those that do, with the channels that know."""
    failing: dict[str, list[str]] = {}
    if context.instance.schedule_storage is None:  # one in memory, which has no ticks
        return failing
    for state in context.instance.all_instigator_state():
        name = state.instigator_name
        if name == sensor or state.status.value == "STOPPED" or not _is_ours(context, declared, state):
            continue
        newest = context.instance.get_ticks(
            state.instigator_origin_id, state.selector_id, limit=_ERRORS + _STARTED_AT_MOST
        )
        ticks = [tick for tick in newest if tick.status.value != "STARTED"][:_ERRORS]
        if len(ticks) < _ERRORS or any(tick.status.value != "FAILURE" for tick in ticks):
            continue
        error = ticks[0].error
        text = first_line(error, has_texts=report.has_texts) if error is not None else "its ticks do not say why"
        message = Message(
            title=f"{name} fails again and again",
            text=f"The last {_ERRORS} ticks of {name} failed.\n{text}\nNothing is automatic until it works again: look "
            "at its ticks in the UI, and mend the cause.",
            facts={"kind": "automation", "data_set": declared.name if declared else "", "name": name, "error": text},
        )
        failing[name] = report.send(message, before.get(name, []))
    return failing


_KINDS = ("reshard_schedule", "watch_sensor", "train_sensor", "automation_sensor", "failure_sensor")
"""Endings of the names of a set's schedules and sensors: the name of another set may begin with that of this one."""


def _is_ours(context: dg.SensorEvaluationContext, declared: Declaration | None, state: Any) -> bool:
    """Return whether a sensor or schedule is one of this code location, and of the data set if one is given."""
    ours = context.code_location_origin
    location = state.origin.repository_origin.code_location_origin.location_name
    if ours is not None and location != ours.location_name:
        return False
    return declared is None or state.instigator_name in {f"{declared.name}_{kind}" for kind in _KINDS}


def _read_cursor(text: str | None) -> dict[str, Any]:
    """Return what the last tick has kept; nothing for a text that a person edited."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
