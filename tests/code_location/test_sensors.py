"""The sensors and the schedule, evaluated against a real Dagster instance."""

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import pytest

from assets.lineage import TRAINS_TAG
from pipelines.definitions import defs
from pipelines.schedules import nightly_reshard_schedule
from pipelines.sensors import build_reshard_sensor, train_on_new_version_sensor
from resources.storage import StorageResource
from smalti.spark import list_images

DIGEST_1, DIGEST_2 = "1" * 64, "2" * 64


def publish(instance: dg.DagsterInstance, version: int, digest: str, run_id: str = "") -> None:
    """Reports a version of the shard set, as the asset does; in a run if one is given."""
    event = dg.AssetMaterialization("mds_shards", metadata={"version": version, "digest": digest})
    if not run_id:
        instance.report_runless_asset_event(event)
        return
    step = dg.DagsterEvent(
        dg.DagsterEventType.ASSET_MATERIALIZATION.value,
        "reshard_job",
        event_specific_data=dg._core.events.StepMaterializationData(event),  # type: ignore[attr-defined]
    )
    instance.report_dagster_event(step, run_id)


def training_tick(instance: dg.DagsterInstance) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, definitions=defs) as context:
        return train_on_new_version_sensor.evaluate_tick(context)


def launch(instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.DagsterRun:
    """What the daemon does with a request: a run with the request's tags and configuration."""
    job = defs.resolve_job_def("train_job")
    return instance.create_run_for_job(job, tags=dict(request.tags), run_config=dict(request.run_config))


def test_without_a_version_there_is_nothing_to_train_on(instance: dg.DagsterInstance) -> None:
    tick = training_tick(instance)
    assert not tick.run_requests
    assert "no version" in str(tick.skip_message)


def test_a_new_version_asks_for_one_run_that_is_pinned_to_it(instance: dg.DagsterInstance) -> None:
    publish(instance, 3, DIGEST_1)
    [request] = training_tick(instance).run_requests
    assert request.run_key == f"train:{DIGEST_1}"
    assert request.run_config == {"ops": {"trained_model": {"config": {"version": 3, "digest": DIGEST_1}}}}
    assert request.tags[TRAINS_TAG] == DIGEST_1
    dg.validate_run_config(defs.resolve_job_def("train_job"), request.run_config)


def test_a_tick_that_is_evaluated_twice_asks_under_the_same_run_key(instance: dg.DagsterInstance) -> None:
    """Racing ticks (fault J1): Dagster starts one run for a run key."""
    publish(instance, 1, DIGEST_1)
    keys = [request.run_key for _ in range(2) for request in training_tick(instance).run_requests]
    assert keys == [f"train:{DIGEST_1}"] * 2


def test_a_version_is_asked_for_once_whatever_becomes_of_its_run(instance: dg.DagsterInstance) -> None:
    publish(instance, 1, DIGEST_1)
    [request] = training_tick(instance).run_requests
    run = launch(instance, request)
    for _ in range(2):
        tick = training_tick(instance)
        assert not tick.run_requests
        assert run.run_id in str(tick.skip_message)
        instance.report_run_failed(run)


def test_the_same_content_under_a_new_number_is_not_trained_on_again(instance: dg.DagsterInstance) -> None:
    publish(instance, 1, DIGEST_1)
    launch(instance, training_tick(instance).run_requests[0])
    publish(instance, 2, DIGEST_2)
    [second] = training_tick(instance).run_requests
    assert second.run_key == f"train:{DIGEST_2}"
    launch(instance, second)
    publish(instance, 3, DIGEST_1)  # a rollback
    assert not training_tick(instance).run_requests


def test_it_waits_for_the_checks_of_the_run_that_wrote_the_version(instance: dg.DagsterInstance) -> None:
    writer = instance.create_run_for_job(defs.resolve_job_def("reshard_job"), status=dg.DagsterRunStatus.STARTED)
    publish(instance, 1, DIGEST_1, writer.run_id)
    tick = training_tick(instance)
    assert not tick.run_requests
    assert "still" in str(tick.skip_message)
    instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, "reshard_job"), writer.run_id)
    assert len(training_tick(instance).run_requests) == 1


def test_it_does_not_train_on_a_version_whose_run_failed(instance: dg.DagsterInstance) -> None:
    writer = instance.create_run_for_job(defs.resolve_job_def("reshard_job"), status=dg.DagsterRunStatus.STARTED)
    publish(instance, 1, DIGEST_1, writer.run_id)
    instance.report_run_failed(writer)
    tick = training_tick(instance)
    assert not tick.run_requests
    assert "see its checks" in str(tick.skip_message)


def test_it_repeats_what_a_person_last_chose_for_the_training(instance: dg.DagsterInstance) -> None:
    chosen = {"epochs": 3, "learning_rate": 0.01, "version": 1, "digest": DIGEST_1}
    run = instance.create_run_for_job(
        defs.resolve_job_def("train_job"), run_config={"ops": {"trained_model": {"config": chosen}}}
    )
    step = dg.DagsterEvent(
        dg.DagsterEventType.ASSET_MATERIALIZATION.value,
        "train_job",
        event_specific_data=dg._core.events.StepMaterializationData(dg.AssetMaterialization("trained_model")),  # type: ignore[attr-defined]
    )
    instance.report_dagster_event(step, run.run_id)
    publish(instance, 2, DIGEST_2)
    [request] = training_tick(instance).run_requests
    config = request.run_config["ops"]["trained_model"]["config"]
    assert config == {"epochs": 3, "learning_rate": 0.01, "version": 2, "digest": DIGEST_2}


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

    def materialize(self) -> None:
        """What the asset raw_images reports."""
        seen = list_images(str(self.folder))
        self.instance.report_runless_asset_event(
            dg.AssetMaterialization("raw_images", metadata={"folder": seen.source, "digest": seen.digest})
        )

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
    ticks = [watcher.tick() for _ in range(10)]
    assert [len(tick.run_requests or []) for tick in ticks] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    request = ticks[2].run_requests[0]
    assert list_images(str(watcher.folder)).digest in str(request.run_key)
    watcher.materialize()
    assert "nothing changed" in str(watcher.tick().skip_message)


def test_an_upload_in_progress_is_waited_for(watcher: Watcher) -> None:
    for number in range(6):
        watcher.add(f"roses/{number}.jpg", bytes(number + 1))
        assert not watcher.tick(after=50).run_requests
    assert len(watcher.tick(after=60).run_requests) == 1


def test_a_file_that_was_replaced_by_one_of_the_same_size_counts_as_a_change(watcher: Watcher) -> None:
    watcher.add("roses/1.jpg", b"ONE")
    assert "changed" in str(watcher.tick().skip_message)


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


@pytest.fixture
def stored_instance() -> Iterator[dg.DagsterInstance]:
    """One in a folder: a schedule opens its instance by itself, from the outside."""
    with dg.instance_for_test() as made:
        yield made


def test_a_night_asks_for_one_run(stored_instance: dg.DagsterInstance) -> None:
    request = nightly_tick(stored_instance)
    assert isinstance(request, dg.RunRequest)
    assert request.run_key == "nightly:2026-11-21"


def test_a_night_is_skipped_while_the_last_run_is_still_going_on(stored_instance: dg.DagsterInstance) -> None:
    """Overlapping re-shards (fault J2)."""
    job = defs.resolve_job_def("reshard_job")
    run = stored_instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    skipped = nightly_tick(stored_instance)
    assert isinstance(skipped, dg.SkipReason)
    assert run.run_id in str(skipped.skip_message)
