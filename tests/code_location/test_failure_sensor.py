"""The sensor that reports failures, on real runs, a real instance and a real webhook."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster_shared.error import SerializableErrorInfo

from smalti.errors import SchemaError, SmaltiError, StoreTimeout
from smalti_dagster.automation import failure
from smalti_dagster.automation.failure import build_failure_sensor
from smalti_dagster.declaration import Automation, Notify
from smalti_dagster.resources.notifications import DeliveryError, NotificationsResource
from smalti_dagster.resources.storage import StorageResource
from tests.code_location.declared import FLOWERS, declare
from tests.code_location.events import end, new_run
from tests.code_location.instances import instance_in_folder
from tests.code_location.shard_sets import execute_checks, make_version, rows_of
from tests.code_location.shipped import defs
from tests.code_location.test_notifications import Hook, serving

SECRET = "T0CANARY"
FAILURE, SUCCESS = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving() as made:
        yield made


class Ticks:
    """The sensor with its cursor, as the daemon keeps it."""

    def __init__(self, instance: dg.DagsterInstance, **channels: Any) -> None:
        self.instance, self.cursor = instance, None
        self.definitions: dg.Definitions | None = defs
        self.sensor = build_failure_sensor()
        self.resource = NotificationsResource(ui_url="http://ui", timeout_seconds=60, **channels)

    def __call__(self, *, started: float | None = 1.0) -> str:
        """Evaluate a tick, and return what it says."""
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            definitions=self.definitions,
            resources={"smalti_notifications": self.resource},
            last_sensor_start_time=started,
        ) as context:
            result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return str(result.skip_message)


def fail(instance: dg.DagsterInstance, error: BaseException, **options: Any) -> dg.DagsterRun:
    """A run of a job with one step that fails."""

    @dg.op(name="flowers__data")
    def data() -> None:
        raise RuntimeError("outermost") from error

    @dg.job(name="flowers_reshard_job", tags={"smalti/data_set": "flowers"})
    def job() -> None:
        data()

    done = job.execute_in_process(instance=instance, raise_on_error=False, **options)
    return done.dagster_run


def facts(hook: Hook) -> list[dict[str, Any]]:
    return [content for _, content in hook.taken]


def test_a_failed_run_is_reported_once_with_data_set_step_error_link_and_what_to_do(
    instance: dg.DagsterInstance, hook: Hook
) -> None:
    tick = Ticks(instance, webhook=hook.url())
    error = StoreTimeout("cannot read s3://bucket/key?X-Amz-Signature=CANARY: no answer\nsecond line")
    run = fail(instance, error)
    assert tick() == "messages sent: 1"
    assert tick() == "nothing new has failed"
    [sent] = facts(hook)
    assert sent["title"] == "flowers: flowers_reshard_job failed"
    assert (sent["data_set"], sent["step"], sent["run"]) == ("flowers", "flowers__data", run.run_id)
    assert sent["error"] == "StoreTimeout: cannot read s3://bucket/key?***: no answer"
    assert sent["link"] == f"http://ui/runs/{run.run_id}"
    assert "re-execute the run from failure" in sent["what_to_do"]
    assert "CANARY" not in str(sent)


@pytest.mark.parametrize("error", [ValueError("alice"), SchemaError("alice"), SmaltiError("`transform` failed: alice")])
def test_the_text_of_an_error_that_may_hold_values_of_rows_is_sent_only_where_it_was_asked_for(
    instance: dg.DagsterInstance, hook: Hook, error: Exception
) -> None:
    fail(instance, error)
    for error_texts in (False, True):
        Ticks(instance, webhook=hook.url(), error_texts=error_texts)()
        [run] = instance.get_runs()
        instance.add_run_tags(run.run_id, {"smalti/notified.failure_sensor": ""})
    name, (cut, whole) = type(error).__name__, facts(hook)
    assert "alice" not in str(cut)
    assert cut["error"] == f"{name}; its text, which may hold values of rows, is in the UI"
    assert cut["link"] == f"http://ui/runs/{run.run_id}"
    assert whole["error"] == f"{name}: {error}"


def test_a_message_that_was_not_delivered_is_sent_again_to_that_channel_alone(
    instance: dg.DagsterInstance, hook: Hook
) -> None:
    with serving() as slack:
        slack.answer = 500
        tick = Ticks(instance, webhook=hook.url(), slack=slack.url(SECRET))
        fail(instance, ValueError("wrong"))
        assert "slack: 127.0.0.1 answered 500" in tick()
        with pytest.raises(DeliveryError, match=r"slack: 127\.0\.0\.1 answered 500"):  # Dagster shows it with the tick
            tick()
        slack.answer = 200
        assert tick() == "messages sent: 1"
        assert [len(each.taken) for each in (hook, slack)] == [1, 3]
        assert tick() == "nothing new has failed"


def test_a_run_is_reported_when_the_last_of_its_retries_has_failed(hook: Hook) -> None:
    with instance_in_folder(run_retries={"enabled": True, "max_retries": 1}) as instance:
        tick = Ticks(instance, webhook=hook.url())
        first = new_run(instance)
        end(instance, first, FAILURE)
        assert tick() == "nothing new has failed"
        tags = {"dagster/root_run_id": first.run_id, "dagster/parent_run_id": first.run_id}
        retry = new_run(instance, parent=first, tags=tags)
        instance.add_run_tags(first.run_id, {"dagster/auto_retry_run_id": retry.run_id})
        assert tick() == "nothing new has failed"
        end(instance, retry, FAILURE)
        assert tick() == "messages sent: 1"
        assert [sent["run"] for sent in facts(hook)] == [retry.run_id]


def test_a_re_execution_that_fails_is_reported_although_it_has_the_tags_of_the_run_before_it(
    instance: dg.DagsterInstance, hook: Hook
) -> None:
    tick = Ticks(instance, webhook=hook.url(), error_texts=True)
    first = fail(instance, ValueError("first"))
    tick()
    inherited = instance.get_run_by_id(first.run_id)
    assert inherited is not None
    fail(instance, ValueError("second"), tags=dict(inherited.tags))
    tick()
    assert [sent["error"] for sent in facts(hook)] == ["ValueError: first", "ValueError: second"]


def test_what_failed_before_the_sensor_was_switched_on_is_no_news(instance: dg.DagsterInstance, hook: Hook) -> None:
    fail(instance, ValueError("old"))
    tick = Ticks(instance, webhook=hook.url())
    assert tick(started=None) == "nothing new has failed"
    fail(instance, ValueError("new"))
    assert tick(started=None) == "messages sent: 1"


def test_a_blocking_check_that_failed_is_named_with_its_description(
    instance: dg.DagsterInstance, storage: StorageResource, hook: Hook
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage)
    make_version(instance, storage, {"train": rows_of(2)}, classes=["daisy"])
    execute_checks(instance, storage, "no_class_vanished")
    tick = Ticks(instance, webhook=hook.url())
    tick.definitions = None  # those here do not have the job that executed the check
    tick()
    [sent] = facts(hook)
    assert (sent["kind"], sent["check"], sent["data_set"]) == ("check", "flowers/shards:no_class_vanished", "flowers")
    assert "1 of 2 classes are gone (roses)" in sent["error"]


def test_a_run_whose_process_died_says_what_ended_it(instance: dg.DagsterInstance, hook: Hook) -> None:
    run = new_run(instance)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    instance.report_run_failed(found, "Run worker process died: terminated by signal 9.")
    Ticks(instance, webhook=hook.url())()
    [sent] = facts(hook)
    assert sent["error"] == "Run worker process died: terminated by signal 9."


def test_without_a_channel_the_tick_says_which_variables_name_one(instance: dg.DagsterInstance) -> None:
    fail(instance, ValueError("wrong"))
    assert "SMALTI_NOTIFY_SLACK" in Ticks(instance)()


def test_a_data_set_reports_its_own_failures_to_its_own_channel_and_its_secret_stays_in_the_environment(
    instance: dg.DagsterInstance, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISION_HOOK", hook.url())
    declared = declare(name="trees", automation=Automation(notify=Notify(webhook="${VISION_HOOK}")))
    tick = Ticks(instance)
    fail(instance, ValueError("flowers' own"))
    tick.sensor = build_failure_sensor("trees_failure_sensor", declared=declared)
    assert tick() == "nothing new has failed"
    fail(instance, ValueError("of trees"), tags={"smalti/data_set": "trees"})
    assert tick() == "messages sent: 1"
    assert [sent["data_set"] for sent in facts(hook)] == ["trees"]
    assert SECRET not in str(declared)


def test_a_sensor_whose_last_three_ticks_failed_is_reported_once_until_it_works_again(hook: Hook) -> None:
    with instance_in_folder() as instance:
        tick, state = Ticks(instance, webhook=hook.url()), switch_on(instance, "flowers_watch_sensor")
        for number, status in enumerate([TickStatus.FAILURE] * 3 + [TickStatus.STARTED, TickStatus.FAILURE]):
            add_tick(instance, state, status, number)
            tick()
            assert len(hook.taken) == (number > 1)
        [sent] = facts(hook)
        assert (sent["name"], sent["error"]) == ("flowers_watch_sensor", "StoreTimeout: no answer")
        for number, status in enumerate([TickStatus.SKIPPED] + [TickStatus.FAILURE] * 3, start=5):
            add_tick(instance, state, status, number)
            tick()
        assert len(hook.taken) == 2


def switch_on(instance: dg.DagsterInstance, name: str) -> Any:
    """The state of a sensor that was switched on."""
    from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("smalti"), "__repository__").get_instigator_origin(
        name
    )
    data = SensorInstigatorData(min_interval=30)
    from dagster._core.definitions.run_request import InstigatorType

    state = InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, data)
    instance.add_instigator_state(state)
    return state


def add_tick(instance: dg.DagsterInstance, state: Any, status: TickStatus, number: int) -> None:
    error = SerializableErrorInfo("smalti.errors.StoreTimeout: no answer\n", [], "StoreTimeout")
    instance.create_tick(
        TickData(
            instigator_origin_id=state.instigator_origin_id,
            instigator_name=state.instigator_name,
            instigator_type=state.instigator_type,
            status=status,
            timestamp=1000.0 + number,
            selector_id=state.selector_id,
            error=error if status is TickStatus.FAILURE else None,
        )
    )


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [("flowers_watch_sensor", True), ("flowers_reshard_schedule", True), ("flowers_two_watch_sensor", False)],
)
def test_a_set_whose_name_begins_with_that_of_another_is_not_taken_for_it(name: str, is_ours: bool) -> None:
    location = SimpleNamespace(location_name="here")
    origin = SimpleNamespace(repository_origin=SimpleNamespace(code_location_origin=location))
    context, state = (
        SimpleNamespace(code_location_origin=location),
        SimpleNamespace(instigator_name=name, origin=origin),
    )
    assert failure._is_ours(context, FLOWERS, state) is is_ours
