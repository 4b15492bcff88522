"""The sensors and the schedule, evaluated against a real Dagster instance."""

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.automation import AUTOMATION
from assets.flowers import draw_flower
from assets.lineage import TRAINS_TAG
from assets.raw_images import raw_images
from assets.shard_tags import SHARDS, advance
from pipelines.definitions import defs
from pipelines.jobs import RESHARD_ASSETS
from pipelines.repeat import last_config
from pipelines.schedules import nightly_reshard_schedule
from pipelines.sensors import build_reshard_sensor, train_on_new_version_sensor
from resources.storage import StorageResource
from smalti.catalog import Manifest, rollback
from smalti.spark import list_images
from tests.code_location.events import end, materialise, new_run, switch_on
from tests.code_location.shard_sets import make_version, rows_of

SUCCESS, FAILURE, CANCELED = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED


@pytest.fixture
def stored_instance() -> Iterator[dg.DagsterInstance]:
    """One in a folder: a schedule opens its instance from the outside, and it keeps what is switched on."""
    with dg.instance_for_test() as made:
        yield made


def publish(instance: dg.DagsterInstance, storage: StorageResource, rows: int, *, source: str = "photos") -> Manifest:
    """A version of the shard set with so many rows, not checked yet."""
    return make_version(instance, storage, {"train": rows_of(rows)}, classes=["daisy"], source=source)


def publish_checked(
    instance: dg.DagsterInstance, storage: StorageResource, rows: int, *, source: str = "photos"
) -> Manifest:
    """A version whose blocking checks have passed."""
    made = publish(instance, storage, rows, source=source)
    advance(storage.store(SHARDS), made.version)
    return made


def training_tick(instance: dg.DagsterInstance, storage: StorageResource) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, definitions=defs, resources={"storage": storage}) as context:
        return train_on_new_version_sensor.evaluate_tick(context)


def launch(instance: dg.DagsterInstance, request: dg.RunRequest, job: str = "train_job") -> dg.DagsterRun:
    """What the daemon does with a request: a run with the request's tags and configuration."""
    run_config: Any = dict(request.run_config)
    config = {asset: each["config"] for asset, each in run_config.get("ops", {}).items()}
    return new_run(instance, job, tags=dict(request.tags), config=config)


def end_trained(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Record that a run has trained a model and ended well."""
    materialise(instance, "trained_model", {}, run)
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
    assert request.run_key == f"train:{made.digest}"
    assert request.run_config == {"ops": {"trained_model": {"config": {"version": 1, "digest": made.digest}}}}
    assert request.tags[TRAINS_TAG] == made.digest
    dg.validate_run_config(defs.resolve_job_def("train_job"), request.run_config)
    launch(instance, request)
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "checks of version 2 have not all passed" in str(tick.skip_message)


def test_a_tick_that_is_evaluated_twice_asks_under_the_same_run_key(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    """Racing ticks (fault J1): Dagster starts one run for a run key."""
    made = publish_checked(instance, storage, 1)
    keys = [request.run_key for _ in range(2) for request in training_tick(instance, storage).run_requests]
    assert keys == [f"train:{made.digest}"] * 2
    failed = launch(instance, training_tick(instance, storage).run_requests[0])
    end(instance, failed, FAILURE)
    keys = [request.run_key for _ in range(2) for request in training_tick(instance, storage).run_requests]
    assert keys == [f"train:{made.digest}:after:{failed.run_id}"] * 2


def test_a_training_that_failed_or_was_cancelled_is_requested_three_times_and_then_a_person_is_told_what_to_do(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    keys = []
    for outcome in (FAILURE, CANCELED, FAILURE):
        [request] = training_tick(instance, storage).run_requests
        keys.append(request.run_key)
        run = launch(instance, request)
        tick = training_tick(instance, storage)
        assert not tick.run_requests
        assert run.run_id in str(tick.skip_message)
        end(instance, run, outcome)
    assert len(set(keys)) == 3
    tick = training_tick(instance, storage)
    assert not tick.run_requests
    assert "3 runs" in str(tick.skip_message)
    assert run.run_id in str(tick.skip_message)
    assert "re-execute it" in str(tick.skip_message)
    again = new_run(instance, "train_job", parent=run, tags=request.tags)
    end_trained(instance, again)
    assert f"has been given to run {again.run_id}: SUCCESS" in str(training_tick(instance, storage).skip_message)


def test_a_run_that_inherited_the_tag_of_a_training_and_trained_nothing_is_not_taken_for_one(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    """A re-execution of chosen steps has all tags of the run whose training failed."""
    publish_checked(instance, storage, 1)
    [request] = training_tick(instance, storage).run_requests
    failed = launch(instance, request)
    end(instance, failed, FAILURE)
    end(instance, new_run(instance, "train_job", parent=failed, tags=request.tags), SUCCESS)
    assert len(training_tick(instance, storage).run_requests) == 1


def test_a_training_that_dagster_will_retry_by_itself_is_not_requested_beside_that(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    publish_checked(instance, storage, 1)
    run = launch(instance, training_tick(instance, storage).run_requests[0])
    instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    end(instance, run, FAILURE)
    assert not training_tick(instance, storage).run_requests


def test_the_same_content_under_a_new_number_is_not_trained_on_again(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    for rows in (1, 2):
        publish_checked(instance, storage, rows)
        end_trained(instance, launch(instance, training_tick(instance, storage).run_requests[0]))
    again = rollback(storage.store(SHARDS), 1)
    advance(storage.store(SHARDS), again.version)
    assert not training_tick(instance, storage).run_requests


def test_it_repeats_what_a_person_last_chose_for_a_training_of_this_source(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    chosen = {"epochs": 3, "learning_rate": 0.01, "version": 1, "digest": "1"}
    materialise(
        instance,
        "trained_model",
        {"source": "photos"},
        new_run(instance, "train_job", config={"trained_model": chosen}),
    )
    other = new_run(instance, "everything_job", config={"trained_model": {"epochs": 1}})
    materialise(instance, "trained_model", {"source": "drawn flowers"}, other)
    made = publish_checked(instance, storage, 2)
    [request] = training_tick(instance, storage).run_requests
    config = request.run_config["ops"]["trained_model"]["config"]
    assert config == {"epochs": 3, "learning_rate": 0.01, "version": 1, "digest": made.digest}


def test_it_does_not_train_on_a_version_of_another_source_than_it_was_switched_on_for(
    stored_instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    materialise(stored_instance, "raw_images", {"source": "photos"})
    switch_on(stored_instance, "train_on_new_version_sensor", time.time())
    materialise(stored_instance, "raw_images", {"source": "drawn flowers"})
    publish_checked(stored_instance, storage, 1, source="drawn flowers")
    tick = training_tick(stored_instance, storage)
    assert not tick.run_requests
    assert "was made from drawn flowers" in str(tick.skip_message)
    assert "switched on for photos" in str(tick.skip_message)
    publish_checked(stored_instance, storage, 2)
    assert len(training_tick(stored_instance, storage).run_requests) == 1


# ---------------------------------------------------------------- new images


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watcher:
    """The sensor on a folder with one image, with the cursor kept as the daemon keeps it."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, folder: Path) -> None:
        self.instance, self.storage, self.folder = instance, storage, folder
        self.clock, self.cursor = Clock(), None
        self.sensor = build_reshard_sensor(quiet_seconds=60, clock=self.clock)
        self.add("roses/1.jpg", b"one")
        self.materialize()

    def add(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def materialize(self, run: dg.DagsterRun | None = None) -> None:
        """What the asset raw_images reports, in a run that ends well unless one is given."""
        seen = list_images(str(self.folder))
        made_by = run or new_run(self.instance, config={"raw_images": {"source": str(self.folder)}})
        facts = {"folder": seen.source, "digest": seen.digest, "source": str(self.folder)}
        materialise(self.instance, "raw_images", facts, made_by)
        if run is None:
            end(self.instance, made_by, SUCCESS)

    def tick(self, *, after: float = 30.0) -> dg.SensorResult:
        self.clock.now += after
        with dg.build_sensor_context(
            instance=self.instance, definitions=defs, cursor=self.cursor, resources={"storage": self.storage}
        ) as context:
            result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result


@pytest.fixture
def watcher(instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path) -> Watcher:
    return Watcher(instance, storage, tmp_path / "photos")


def test_before_the_first_materialisation_there_is_nothing_to_watch(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    with dg.build_sensor_context(instance=instance, definitions=defs, resources={"storage": storage}) as context:
        tick = build_reshard_sensor().evaluate_tick(context)
    assert not tick.run_requests
    assert "never been materialised" in str(tick.skip_message)


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
            run = launch(watcher.instance, request, "reshard_job")
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
    run = launch(watcher.instance, request, "reshard_job")
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
    run = new_run(watcher.instance, config={"raw_images": {"source": str(watcher.folder)}})
    watcher.materialize(run)
    end(watcher.instance, run, FAILURE)
    message = str(watcher.tick().skip_message)
    assert f"run {run.run_id}, which read it last, ended as FAILURE" in message
    assert "re-execute it" in message
    root = {"dagster/root_run_id": run.run_id}
    end(watcher.instance, new_run(watcher.instance, parent=run, tags=root), SUCCESS)
    assert run.run_id not in str(watcher.tick().skip_message)


def test_a_source_that_went_away_is_an_error_of_the_tick_and_not_a_change(watcher: Watcher) -> None:
    (watcher.folder / "roses" / "1.jpg").unlink()
    (watcher.folder / "roses").rmdir()
    watcher.folder.rmdir()
    with pytest.raises(Exception, match="no such folder"):
        watcher.tick()


# ---------------------------------------------------------------- the clock


def nightly_tick(instance: dg.DagsterInstance) -> object:
    when = datetime(2026, 11, 21, 3, 0, tzinfo=timezone.utc)
    return nightly_reshard_schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=when))


def read_source(instance: dg.DagsterInstance, source: str, **config: Any) -> dg.DagsterRun:
    """A run of a person that read this source, with a configuration."""
    run = new_run(instance, config={"raw_images": {"source": source} if source else {}, **config})
    for asset in ("raw_images", *config):
        materialise(instance, asset, {"source": source or "drawn flowers"}, run)
    end(instance, run, SUCCESS)
    return run


def test_a_night_asks_for_one_run(stored_instance: dg.DagsterInstance) -> None:
    read_source(stored_instance, "/photos")
    request = nightly_tick(stored_instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_key == "nightly:2026-11-21"


def test_a_night_draws_no_flowers_where_no_source_was_ever_chosen(stored_instance: dg.DagsterInstance) -> None:
    skipped = nightly_tick(stored_instance)
    assert isinstance(skipped, dg.SkipReason)
    assert "choose a source" in str(skipped.skip_message)


def test_a_night_is_skipped_while_the_last_run_is_still_going_on(stored_instance: dg.DagsterInstance) -> None:
    """Overlapping re-shards (fault J2)."""
    job = defs.resolve_job_def("reshard_job")
    run = stored_instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    skipped = nightly_tick(stored_instance)
    assert isinstance(skipped, dg.SkipReason)
    assert run.run_id in str(skipped.skip_message)


# ---------------------------------------------------------------- the source


def test_a_night_keeps_the_source_that_it_was_switched_on_for_and_what_was_chosen_with_it(
    stored_instance: dg.DagsterInstance,
) -> None:
    """One click on Materialize draws flowers over a deployment of real photos."""
    read_source(stored_instance, "/photos", preprocessed_images={"image_size": 224})
    switch_on(stored_instance, "nightly_reshard_schedule", time.time())
    read_source(stored_instance, "", preprocessed_images={"image_size": 32})
    request = nightly_tick(stored_instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_config == {
        "ops": {
            "raw_images": {"config": {"source": "/photos"}},
            "preprocessed_images": {"config": {"image_size": 224}},
        }
    }
    read_source(stored_instance, "/photos", preprocessed_images={"image_size": 256})
    again = nightly_tick(stored_instance)
    assert isinstance(again, dg.RunRequest)
    assert again.run_config["ops"]["preprocessed_images"]["config"] == {"image_size": 256}


def test_automation_that_was_switched_on_first_keeps_the_first_source(stored_instance: dg.DagsterInstance) -> None:
    switch_on(stored_instance, "nightly_reshard_schedule", time.time() - 1)
    read_source(stored_instance, "/photos")
    read_source(stored_instance, "")
    request = nightly_tick(stored_instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_config == {"ops": {"raw_images": {"config": {"source": "/photos"}}}}


def test_automation_does_not_repeat_what_was_chosen_for_one_run(instance: dg.DagsterInstance) -> None:
    once = {"rewrite": True, "accept_removed": ["tulips"]}
    read_source(instance, "/photos", mds_shards={**once, "size_limit": "1mb"})
    config = last_config(instance, RESHARD_ASSETS, "/photos")
    assert config["ops"]["mds_shards"] == {"config": {"size_limit": "1mb"}}


def test_without_the_run_that_chose_the_source_nothing_is_requested(instance: dg.DagsterInstance) -> None:
    """A run without its configuration would draw flowers."""
    materialise(instance, "raw_images", {"source": "/photos"})
    with pytest.raises(LookupError, match="launch a run of it by hand once"):
        last_config(instance, RESHARD_ASSETS, "/photos")
    read_source(instance, "/photos")
    materialise(instance, "raw_images", {"source": "/photos"})
    assert last_config(instance, RESHARD_ASSETS, "/photos") == {
        "ops": {"raw_images": {"config": {"source": "/photos"}}}
    }


def test_the_watched_folder_is_that_of_the_source_that_the_sensor_was_switched_on_for(
    stored_instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    watcher = Watcher(stored_instance, storage, tmp_path / "photos")
    switch_on(stored_instance, "reshard_on_new_images_sensor", time.time())
    read_source(stored_instance, "")
    message = str(watcher.tick().skip_message)
    assert f"{watcher.folder}: nothing changed" in message
    assert "last read from drawn flowers" in message
    watcher.add("roses/2.jpg", b"two")
    watcher.tick()
    [request] = watcher.tick(after=60).run_requests
    assert request.run_config == {"ops": {"raw_images": {"config": {"source": str(watcher.folder)}}}}


def test_a_manual_run_with_another_source_says_that_automation_does_not_follow_it(
    stored_instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    read_source(stored_instance, "/photos")
    switch_on(stored_instance, "nightly_reshard_schedule", time.time())
    path = tmp_path / "other" / "roses" / "1.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(draw_flower("roses", number=1, size=(40, 32)))
    config = {"ops": {"raw_images": {"config": {"source": str(tmp_path / "other")}}}}
    done = dg.materialize([raw_images], instance=stored_instance, resources={"storage": storage}, run_config=config)
    said = str(done.asset_materializations_for_node("raw_images")[0].metadata["automation"].value)
    assert "nightly_reshard_schedule keeps /photos" in said
    assert "switch it off and on again" in said
    switch_on(stored_instance, "reshard_on_new_images_sensor", time.time())
    again = dg.materialize([raw_images], instance=stored_instance, resources={"storage": storage}, run_config=config)
    said = str(again.asset_materializations_for_node("raw_images")[0].metadata["automation"].value)
    assert "reshard_on_new_images_sensor" not in said


def test_the_names_of_automation_are_those_of_the_definitions() -> None:
    schedules = [schedule.name for schedule in defs.get_repository_def().schedule_defs]
    sensors = [sensor.name for sensor in defs.get_repository_def().sensor_defs]
    assert {*schedules, *sensors} == set(AUTOMATION)
