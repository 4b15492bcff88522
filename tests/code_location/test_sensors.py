"""The sensors and the schedule, evaluated against a real Dagster instance."""

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti.catalog import Manifest, rollback
from smalti.spark import list_images
from smalti_dagster import build_definitions
from smalti_dagster.automation.schedules import build_reshard_schedule
from smalti_dagster.automation.training import build_train_sensor
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.declaration import Automation, Declaration, Source, Watch
from smalti_dagster.lineage import DATA_SET_TAG, TRAINS_TAG
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.shard_tags import advance
from smalti_dagster.sources.rows_config import rows_config
from smalti_dagster.sources.unchanged import watched_digest
from tests.code_location.declared import FLOWERS, declare
from tests.code_location.events import end, materialise, new_run
from tests.code_location.instances import instance_in_folder
from tests.code_location.shard_sets import make_version, rows_of, shards
from tests.code_location.shipped import defs
from tests.code_location.watching import Watcher

DRAWN = "generated images (per_class=160)"
"""Description of the declared source."""

SUCCESS, FAILURE, CANCELED = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED


@pytest.fixture
def stored_instance() -> Iterator[dg.DagsterInstance]:
    """One in a folder: a schedule opens its instance from the outside, and it keeps what is switched on."""
    with instance_in_folder() as made:
        yield made


def publish(instance: dg.DagsterInstance, storage: StorageResource, rows: int, *, source: str = DRAWN) -> Manifest:
    """A version of the shard set with so many rows, not checked yet."""
    return make_version(instance, storage, {"train": rows_of(rows)}, classes=["daisy"], source=source)


def publish_checked(
    instance: dg.DagsterInstance, storage: StorageResource, rows: int, *, source: str = DRAWN
) -> Manifest:
    """A version whose blocking checks have passed."""
    made = publish(instance, storage, rows, source=source)
    advance(shards(storage), made.version)
    return made


def training_tick(
    instance: dg.DagsterInstance,
    storage: StorageResource,
    *,
    cursor: str | None = None,
    started: float | None = None,
    declared: Declaration = FLOWERS,
) -> dg.SensorResult:
    """A tick of the sensor, which was switched on at a time."""
    with dg.build_sensor_context(
        instance=instance,
        definitions=defs,
        resources={"smalti_storage": storage},
        cursor=cursor,
        last_sensor_start_time=started,
    ) as context:
        return build_train_sensor(declared).evaluate_tick(context)


def pinned(version: int, digest: str) -> dict[str, Any]:
    """The whole configuration of a training that is pinned to a version."""
    return {"ops": {"flowers__model": {"config": {"version": version, "digest": digest}}}}


def launch(instance: dg.DagsterInstance, request: dg.RunRequest, job: str = "train") -> dg.DagsterRun:
    """Create a run with the tags and configuration of a request, as the daemon does."""
    run_config: Any = dict(request.run_config)
    config = {op.removeprefix("flowers__"): each["config"] for op, each in run_config.get("ops", {}).items()}
    return new_run(instance, job, tags=dict(request.tags), config=config)


def end_trained(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Record that a run has trained a model and ended well."""
    materialise(instance, "model", {}, run)
    end(instance, run, SUCCESS)


def test_without_a_version_there_is_nothing_to_train_on(instance: dg.DagsterInstance, storage: StorageResource) -> None:
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "no version" in str(tick.skip_message)


def test_a_version_whose_blocking_checks_have_not_passed_is_not_trained_on(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish(instance, storage, 1)
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "no version" in str(tick.skip_message)
    assert "checks of version 1 have not all passed" in str(tick.skip_message)


def test_a_checked_version_asks_for_one_run_that_is_pinned_to_it(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    made = publish_checked(instance, storage, 1)
    publish(instance, storage, 2)  # its checks failed, or are not done yet
    [request] = training_tick(instance, storage).run_requests
    assert request.run_key == f"flowers:train:{made.digest}"
    assert request.run_config == pinned(1, made.digest)
    assert request.tags[TRAINS_TAG] == made.digest
    dg.validate_run_config(defs.resolve_job_def("flowers_train_job"), request.run_config)
    launch(instance, request)
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "checks of version 2 have not all passed" in str(tick.skip_message)


def test_a_tick_that_is_evaluated_twice_asks_under_the_same_run_key(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    """Racing ticks (fault J1): Dagster starts one run for a run key, and none for one that was used (fault J10)."""
    made = publish_checked(instance, storage, 1)
    keys = [request.run_key for _ in range(2) for request in training_tick(instance, storage).run_requests]
    assert keys == [f"flowers:train:{made.digest}"] * 2
    failed = launch(instance, training_tick(instance, storage).run_requests[0])
    end(instance, failed, FAILURE)
    keys = [request.run_key for _ in range(2) for request in training_tick(instance, storage).run_requests]
    assert keys == [f"flowers:train:{made.digest}:after:{failed.run_id}"] * 2


def test_a_training_that_failed_is_requested_three_times_and_then_a_person_is_told_what_to_do(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    keys = []
    for _ in range(3):
        [request] = training_tick(instance, storage).run_requests
        keys.append(request.run_key)
        run = launch(instance, request)
        tick = training_tick(instance, storage)
        assert not tick.run_requests
        assert run.run_id in str(tick.skip_message)
        end(instance, run, FAILURE)
    assert len(set(keys)) == 3
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "3 runs" in str(tick.skip_message)
    assert run.run_id in str(tick.skip_message)
    assert "re-execute it" in str(tick.skip_message)
    again = new_run(instance, "train", parent=run, tags=request.tags)
    end_trained(instance, again)
    assert f"has been given to run {again.run_id}: trained" in str(training_tick(instance, storage).skip_message)


def test_a_run_that_inherited_the_tag_of_a_training_and_trained_nothing_is_not_taken_for_one(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    """A re-execution of chosen steps has all tags of the run whose training failed."""
    publish_checked(instance, storage, 1)
    [request] = training_tick(instance, storage).run_requests
    failed = launch(instance, request)
    end(instance, failed, FAILURE)
    end(instance, new_run(instance, "train", parent=failed, tags=request.tags), SUCCESS)
    assert len(training_tick(instance, storage).run_requests) == 1


def test_a_training_that_dagster_will_retry_by_itself_is_not_requested_beside_that(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    run = launch(instance, training_tick(instance, storage).run_requests[0])
    instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    end(instance, run, FAILURE)
    assert not training_tick(instance, storage).run_requests


def test_a_training_that_was_cancelled_is_requested_again_three_times_in_all_until_the_sensor_is_switched_off_and_on(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    keys = set()
    for _ in range(3):
        [request] = training_tick(instance, storage).run_requests
        keys.add(request.run_key)
        run = launch(instance, request)
        end(instance, run, CANCELED)
    assert len(keys) == 3
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert f"was given to 3 runs, which failed or were cancelled; the last is {run.run_id}." in str(tick.skip_message)
    [again] = training_tick(instance, storage, started=time.time() + 1).run_requests
    assert again.run_key not in keys
    publish_checked(instance, storage, 2)
    assert len(training_tick(instance, storage).run_requests) == 1


def test_of_two_newer_versions_in_one_tick_the_newest_is_trained_on(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    newest = publish_checked(instance, storage, 2)
    [request] = training_tick(instance, storage).run_requests
    assert request.run_config == pinned(2, newest.digest)


def test_a_newer_version_waits_for_the_training_that_is_going_on_and_for_its_retry(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    run = launch(instance, training_tick(instance, storage).run_requests[0])
    publish_checked(instance, storage, 2)
    assert f"waits for run {run.run_id} (STARTED)" in str(training_tick(instance, storage).skip_message)
    instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    end(instance, run, FAILURE)
    assert f"waits for the retry of run {run.run_id}" in str(training_tick(instance, storage).skip_message)
    instance.add_run_tags(run.run_id, {"dagster/auto_retry_run_id": "another"})
    assert len(training_tick(instance, storage).run_requests) == 1


@pytest.mark.parametrize("job", ["train", "everything"])
def test_a_training_that_a_person_launched_is_waited_for_although_it_has_no_tags_yet(
    instance: dg.DagsterInstance, storage: StorageResource, job: str
) -> None:
    publish_checked(instance, storage, 1)
    run = new_run(instance, job, status=dg.DagsterRunStatus.NOT_STARTED)
    assert f"waits for run {run.run_id} (NOT_STARTED)" in str(training_tick(instance, storage).skip_message)


def test_a_training_of_the_best_of_a_study_is_waited_for_although_it_has_no_tags_yet(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    run = instance.add_run(dg.DagsterRun("flowers_train_best_job", status=dg.DagsterRunStatus.NOT_STARTED))
    assert f"waits for run {run.run_id} (NOT_STARTED)" in str(training_tick(instance, storage).skip_message)


def test_a_full_pool_of_trainings_is_waited_for(storage: StorageResource) -> None:
    with instance_in_folder(concurrency={"pools": {"default_limit": 1}}) as instance:
        publish_checked(instance, storage, 1)
        instance.event_log_storage.initialize_concurrency_limit_to_default("training")
        other = new_run(instance, "reshard", tags={DATA_SET_TAG: "trees"})
        assert instance.event_log_storage.claim_concurrency_slot("training", other.run_id, "trees__model").is_claimed
        message = str(training_tick(instance, storage).skip_message)
        assert f"waits for a slot of the pool 'training', which has 1: run {other.run_id}" in message
        instance.event_log_storage.free_concurrency_slots_for_run(other.run_id)
        assert len(training_tick(instance, storage).run_requests) == 1


def test_a_training_whose_run_was_deleted_is_not_forgotten(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    run = launch(instance, training_tick(instance, storage).run_requests[0])
    end_trained(instance, run)
    cursor = training_tick(instance, storage).cursor
    instance.delete_run(run.run_id)
    tick = training_tick(instance, storage, cursor=cursor)
    assert f"has been given to run {run.run_id}: trained" in str(tick.skip_message)
    assert len(training_tick(instance, storage, cursor="edited by a person").run_requests) == 1


def test_a_run_that_was_deleted_before_it_had_ended_counts_as_one_that_failed(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    cursor, keys = None, []
    for _ in range(3):
        tick = training_tick(instance, storage, cursor=cursor)
        [request] = tick.run_requests
        keys.append(request.run_key)
        run = launch(instance, request)
        cursor = training_tick(instance, storage, cursor=tick.cursor).cursor
        instance.delete_run(run.run_id)
    assert len(set(keys)) == 3
    assert "was given to 3 runs" in str(training_tick(instance, storage, cursor=cursor).skip_message)


def test_the_same_content_under_a_new_number_is_not_trained_on_again(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    for rows in (1, 2):
        publish_checked(instance, storage, rows)
        end_trained(instance, launch(instance, training_tick(instance, storage).run_requests[0]))
    again = rollback(shards(storage), 1)
    advance(shards(storage), again.version)
    assert not training_tick(instance, storage).run_requests


def test_with_new_samples_a_version_with_fewer_waits_for_one_that_has_them(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    declared = FLOWERS.model_copy(update={"train": FLOWERS.train.model_copy(update={"new_samples": 3})})
    publish_checked(instance, storage, 1)  # before there is a model, any version is enough
    [request] = training_tick(instance, storage, declared=declared).run_requests
    run = launch(instance, request)
    materialise(instance, "model", {"version": 1}, run)
    end(instance, run, SUCCESS)
    publish_checked(instance, storage, 3)
    skipped = training_tick(instance, storage, declared=declared)
    assert "has 2 samples more than version 1 of the last model, and `new_samples` is 3" in str(skipped.skip_message)
    made = publish_checked(instance, storage, 4)
    [request] = training_tick(instance, storage, declared=declared).run_requests
    assert request.run_config == pinned(3, made.digest)


def test_it_trains_as_is_declared_and_not_as_a_person_last_chose(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    end_trained(instance, new_run(instance, "train", config={"model": {"epochs": 3}}))
    made = publish_checked(instance, storage, 2)
    [request] = training_tick(instance, storage).run_requests
    assert request.run_config == pinned(1, made.digest)


def test_it_does_not_train_on_a_version_of_another_source_than_is_declared(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1, source="/other/photos")
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "was made from /other/photos, and the declaration says generated images" in str(tick.skip_message)
    publish_checked(instance, storage, 2)
    assert len(training_tick(instance, storage).run_requests) == 1


def test_a_training_of_another_data_set_on_the_same_content_does_not_count(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    made = publish_checked(instance, storage, 1)
    run = new_run(instance, "train", tags={TRAINS_TAG: made.digest, DATA_SET_TAG: "trees"})
    end(instance, run, SUCCESS)
    assert len(training_tick(instance, storage).run_requests) == 1


# ---------------------------------------------------------------- new images


def read_once(instance: dg.DagsterInstance, storage: StorageResource, folder: Path) -> Watcher:
    """The sensor on a folder with one image, which a run has read."""
    made = Watcher(instance, storage, folder)
    made.add("roses/1.jpg", b"one")
    made.materialize()
    return made


@pytest.fixture
def watcher(instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path) -> Watcher:
    return read_once(instance, storage, tmp_path / "photos")


def test_a_set_that_is_drawn_has_no_folder_to_watch_before_the_first_run(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    with dg.build_sensor_context(instance=instance, definitions=defs, resources={"smalti_storage": storage}) as context:
        tick = build_watch_sensor(FLOWERS, Watch()).evaluate_tick(context)
    assert not tick.run_requests
    assert "launch flowers_reshard_job once" in str(tick.skip_message)


def test_a_declared_folder_that_was_never_read_is_requested_when_it_is_quiet(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    watcher = read_once(instance, storage, tmp_path / "photos")
    instance.wipe_assets([dg.AssetKey(["flowers", "raw"])])
    assert not watcher.tick().run_requests
    assert len(watcher.tick(after=60).run_requests) == 1


def test_a_run_that_read_another_source_does_not_change_what_is_watched(watcher: Watcher) -> None:
    materialise(watcher.instance, "raw", {"source": "/other", "folder": "/other", "digest": "other"})
    assert f"{watcher.folder}: nothing changed" in str(watcher.tick().skip_message)


def test_requests_carry_no_configuration_so_that_the_declaration_counts(watcher: Watcher) -> None:
    materialise(
        watcher.instance, "raw", {}, new_run(watcher.instance, config={"prepared": {"image_size": 32}}, status=SUCCESS)
    )
    watcher.add("roses/2.jpg", b"two")
    watcher.tick()
    [request] = watcher.tick(after=60).run_requests
    assert request.run_config == {}


def test_an_unchanged_folder_asks_for_nothing(watcher: Watcher) -> None:
    for _ in range(5):
        tick = watcher.tick(after=100)
        assert not tick.run_requests
        assert "nothing changed" in str(tick.skip_message)


def test_a_changed_folder_asks_for_exactly_one_run_when_it_is_quiet(watcher: Watcher) -> None:
    watcher.add("roses/2.jpg", b"two")
    requests = []
    for _ in range(10):
        requests.append(watcher.tick().run_requests or [])
        for request in requests[-1]:
            run = launch(watcher.instance, request, "reshard")
    assert [len(found) for found in requests] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert list_images(str(watcher.folder)).digest in str(requests[2][0].run_key)
    watcher.materialize(run)
    assert "nothing changed" in str(watcher.tick().skip_message)


def test_an_upload_in_progress_is_waited_for(watcher: Watcher) -> None:
    for number in range(6):
        watcher.add(f"roses/{number}.jpg", bytes(number + 1))
        assert not watcher.tick(after=50).run_requests
    assert len(watcher.tick(after=60).run_requests) == 1


def test_a_file_that_was_replaced_by_one_of_the_same_size_counts_as_a_change(watcher: Watcher) -> None:
    watcher.add("roses/1.jpg", b"ONE")
    assert "changed" in str(watcher.tick().skip_message)


def test_a_change_that_was_taken_back_before_its_run_read_it_is_requested_when_it_comes_again(watcher: Watcher) -> None:
    """A, B, A, B: the run that was requested for B finds A."""
    watcher.add("roses/2.jpg", b"two")
    watcher.tick()
    [request] = watcher.tick(after=60).run_requests
    run = launch(watcher.instance, request, "reshard")
    (watcher.folder / "roses" / "2.jpg").rename(watcher.folder.parent / "2.jpg")
    watcher.materialize(run)
    (watcher.folder.parent / "2.jpg").rename(watcher.folder / "roses" / "2.jpg")
    for after in (100, 100):
        tick = watcher.tick(after=after)
        assert not tick.run_requests
        assert "has not ended yet" in str(tick.skip_message)
    end(watcher.instance, run, SUCCESS)
    assert not watcher.tick().run_requests
    [second] = watcher.tick(after=60).run_requests
    assert second.run_key != request.run_key


def test_a_run_that_read_the_folder_and_failed_is_named_until_a_re_execution_has_succeeded(watcher: Watcher) -> None:
    run = new_run(watcher.instance)
    watcher.materialize(run)
    end(watcher.instance, run, FAILURE)
    message = str(watcher.tick().skip_message)
    assert f"run {run.run_id}, which read it last, ended as FAILURE: see its log" in message
    root = {"dagster/root_run_id": run.run_id}
    end(watcher.instance, new_run(watcher.instance, parent=run, tags=root), SUCCESS)
    assert run.run_id not in str(watcher.tick().skip_message)


def test_a_source_that_went_away_is_an_error_of_the_tick_and_not_a_change(watcher: Watcher) -> None:
    (watcher.folder / "roses" / "1.jpg").unlink()
    (watcher.folder / "roses").rmdir()
    watcher.folder.rmdir()
    with pytest.raises(Exception, match="no such folder"):
        watcher.tick()
    watcher.add("roses/1.jpg", b"one")
    watcher.add("roses/2.jpg", b"two")
    assert watcher.follow(9) == 1


@pytest.mark.parametrize(("kind", "log"), [("delta", "_delta_log"), ("iceberg", "metadata"), ("parquet", ".")])
def test_a_table_is_watched_by_the_files_of_its_log(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path, kind: str, log: str
) -> None:
    (tmp_path / "table" / log).mkdir(parents=True, exist_ok=True)
    (tmp_path / "table" / log / "0.json").write_text("{}")
    source = Source(table=str(tmp_path / "table"), format=kind)
    declared = declare(source=source, train=None)
    config = rows_config(declared)()
    facts = {"source": config.described, "watched": watched_digest(declared, config, storage)}
    for stage in ("raw", "shards"):
        materialise(instance, stage, facts, new_run(instance, status=SUCCESS))
    sensor, messages = build_watch_sensor(declared, Watch(quiet_seconds=0)), []
    for _ in range(2):
        with dg.build_sensor_context(instance=instance, resources={"smalti_storage": storage}) as context:
            messages.append(str(sensor.evaluate_tick(context).skip_message))
        (tmp_path / "table" / log / "1.json").write_text("{}")
    assert "nothing changed" in messages[0]
    assert "the content changed" in messages[1]
    assert names_of(build_definitions(declared)) == {"flowers_reshard_schedule", "flowers_watch_sensor"}


# ---------------------------------------------------------------- the clock


def nightly_tick(instance: dg.DagsterInstance) -> object:
    when = datetime(2026, 11, 21, 3, 0, tzinfo=timezone.utc)
    schedule = build_reshard_schedule(FLOWERS, "0 3 * * *")
    return schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=when))


def test_a_tick_asks_for_one_run_as_is_declared(stored_instance: dg.DagsterInstance) -> None:
    new_run(stored_instance, config={"prepared": {"image_size": 32}}, status=SUCCESS)
    request = nightly_tick(stored_instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_key == "flowers:scheduled:2026-11-21T03:00:00+00:00"
    assert request.run_config == {}


def test_a_tick_is_skipped_while_the_last_run_is_still_going_on(stored_instance: dg.DagsterInstance) -> None:
    """Overlapping re-shards (fault J2)."""
    run = new_run(stored_instance)
    skipped = nightly_tick(stored_instance)
    assert isinstance(skipped, dg.SkipReason)
    assert run.run_id in str(skipped.skip_message)


def test_what_is_declared_is_what_runs_by_itself() -> None:
    quiet = declare(automation=Automation(reshard=None, watch=None, train_on_new_version=False))
    assert names_of(build_definitions(quiet)) == set()
    assert names_of(build_definitions(FLOWERS)) == {
        "flowers_reshard_schedule",
        "flowers_watch_sensor",
        "flowers_train_sensor",
    }
    assert names_of(build_definitions(declare(source=Source(table="t"), train=None))) == {"flowers_reshard_schedule"}


def names_of(found: dg.Definitions) -> set[str]:
    return {each.name for each in (*(found.schedules or []), *(found.sensors or []))}
