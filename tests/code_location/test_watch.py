"""Exactly one run for each change of a source: what flaps, grows in parts, sends messages, breaks and comes back.

The daemon is played by `Watcher`; tests/nightly/test_daemon.py has a real one, which is killed.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import moto.server
import pytest

from smalti.errors import StoreError
from smalti.sources import image_folder, message_queue
from smalti.storage import LocalStore
from smalti.storage.store import ListingPage
from smalti_dagster.automation import watch
from smalti_dagster.automation.partitions import request_partitions
from smalti_dagster.automation.states import unfinished_reader
from smalti_dagster.automation.watch import SEEN_TAG
from smalti_dagster.declaration import Partitions, Source
from smalti_dagster.lineage import DATA_SET_TAG, TRAINS_TAG
from smalti_dagster.resources.storage import S3Storage, StorageResource
from tests.code_location.declared import FLOWERS, declare
from tests.code_location.events import end, materialise, new_run
from tests.code_location.watching import SUCCESS, Watcher

FAILURE = dg.DagsterRunStatus.FAILURE


@pytest.fixture
def watcher(instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path) -> Watcher:
    """The sensor on a folder with one image, which a run has read."""
    made = Watcher(instance, storage, tmp_path / "photos")
    made.add("roses/1.jpg", b"one")
    made.materialize()
    return made


# ---------------------------------------------------------------- J1, J2, J8, J10


def test_j1_a_tick_that_is_evaluated_again_at_any_point_gives_one_run(watcher: Watcher) -> None:
    """The daemon dies after an evaluation: the next one begins with the cursor before it, or a racing one has it."""
    watcher.add("roses/2.jpg", b"two")
    assert watcher.evaluate().cursor == watcher.evaluate().cursor
    watcher.tick()
    watcher.clock.now += 60
    before = watcher.cursor
    first, second = watcher.evaluate(), watcher.evaluate()
    assert [run.run_key for run in first.run_requests or []] == [run.run_key for run in second.run_requests or []]
    [run] = watcher.launch(first)
    assert watcher.launch(second) == []
    late = watcher.evaluate(cursor=before)  # the run exists, and the cursor after it was not saved
    assert not late.run_requests
    assert f"run {run.run_id}, which may read it, has not ended" in str(late.skip_message)
    watcher.materialize(run)
    end(watcher.instance, run, SUCCESS)
    assert "nothing changed" in str(watcher.evaluate(cursor=before).skip_message)
    assert watcher.follow(5, after=100) == 0


def test_j1_a_source_that_flaps_gives_one_run_for_each_content_that_stays(watcher: Watcher) -> None:
    for _ in range(5):  # each content stays for less than the quiet period
        watcher.add("roses/2.jpg", b"two")
        assert watcher.follow(1) == 0
        (watcher.folder / "roses" / "2.jpg").unlink()
        assert watcher.follow(1) == 0
    watcher.add("roses/2.jpg", b"two")
    assert watcher.follow(5) == 1
    (watcher.folder / "roses" / "2.jpg").unlink()
    assert watcher.follow(5) == 1
    assert watcher.follow(5) == 0


def test_j2_a_change_waits_for_the_run_of_a_schedule_and_needs_none_if_that_has_read_it(watcher: Watcher) -> None:
    scheduled = new_run(watcher.instance)
    watcher.add("roses/2.jpg", b"two")
    assert watcher.follow(5) == 0
    assert scheduled.run_id in str(watcher.tick().skip_message)
    watcher.materialize(scheduled)
    end(watcher.instance, scheduled, SUCCESS)
    assert watcher.follow(5) == 0


BEGUN = {DATA_SET_TAG: "flowers"}
TRAINS = {**BEGUN, TRAINS_TAG: "digest"}


@pytest.mark.parametrize(
    ("job", "stages", "tags", "is_waited_for"),
    [
        ("flowers_reshard_job", [], {}, True),
        ("flowers_everything_job", [], {}, True),
        ("flowers_everything_job", [], TRAINS, False),
        ("flowers_train_job", [], TRAINS, False),
        ("flowers_train_best_job", [], BEGUN, False),
        ("flowers_study_job", [], BEGUN, False),
        ("flowers_promote_job", [], BEGUN, False),
        ("__ASSET_JOB", ["raw"], {}, True),
        ("__ASSET_JOB", ["shards", "model"], {}, True),
        ("__ASSET_JOB", ["model"], BEGUN, False),
        ("__ASSET_JOB", ["study"], BEGUN, False),
        ("a_job_of_the_project", [], BEGUN, True),
        ("a_job_of_the_project", [], {}, False),
        ("trees_reshard_job", [], {DATA_SET_TAG: "trees"}, False),
    ],
)
@pytest.mark.parametrize(
    "status",
    [dg.DagsterRunStatus.STARTED, pytest.param(dg.DagsterRunStatus.NOT_STARTED, marks=pytest.mark.nightly)],
)
def test_j2_the_runs_that_are_waited_for_are_those_that_make_data(
    instance: dg.DagsterInstance,
    job: str,
    stages: list[str],
    tags: dict[str, str],
    is_waited_for: bool,
    status: dg.DagsterRunStatus,
) -> None:
    keys = frozenset(dg.AssetKey(["flowers", stage]) for stage in stages)
    run = instance.add_run(dg.DagsterRun(job, tags=tags, status=status, asset_selection=keys or None))
    found = unfinished_reader(instance, FLOWERS)
    assert (found.run_id if found is not None else None) == (run.run_id if is_waited_for else None)


def test_j2_a_re_execution_that_has_the_tags_of_a_training_is_waited_for(instance: dg.DagsterInstance) -> None:
    """It may read its source once more."""
    first = new_run(instance, "everything", tags=TRAINS)
    end(instance, first, FAILURE)
    again = new_run(instance, "everything", parent=first, tags=TRAINS)
    found = unfinished_reader(instance, FLOWERS)
    assert found is not None
    assert found.run_id == again.run_id


def test_j2_a_training_does_not_keep_a_change_from_being_read(watcher: Watcher) -> None:
    new_run(watcher.instance, "train", tags=TRAINS)
    watcher.add("roses/2.jpg", b"two")
    assert watcher.follow(5) == 1


def test_j8_partitions_that_changed_are_read_by_one_run_and_not_by_several_at_once(
    instance: dg.DagsterInstance,
) -> None:
    """Runs beside each other would each publish the other's partitions as they were before."""
    declared = declare(source=Source(folder="/photos/{partition}"), partitions=Partitions(by="key"), train=None)
    instance.add_dynamic_partitions("flowers_partitions", ["a", "b", "c"])
    asked = dg.RunRequest(run_key="one", tags={SEEN_TAG: "digest"})
    [request], [added] = request_partitions(instance, declared, ["a", "c", "d"], asked)
    span = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "d"}
    assert (request.run_key, dict(request.tags)) == ("one", {SEEN_TAG: "digest", **span})
    assert list(added.partition_keys) == ["d"]


def test_j10_a_reset_cursor_does_not_bring_a_run_key_that_is_used_up(watcher: Watcher) -> None:
    """Three runs have ended without reading the content; a person mends the cause and resets the cursor."""
    watcher.add("roses/2.jpg", b"two")
    assert watcher.follow(30, after=61, reads=False) == 3
    watcher.cursor = None
    assert watcher.follow(3, after=61) == 1
    assert len(set(watcher.by_key)) == 4


def test_j10_a_content_that_comes_back_again_and_again_is_read_each_time(watcher: Watcher) -> None:
    runs = 0
    for _ in range(3):
        (watcher.folder / "roses" / "2.jpg").write_bytes(b"two")
        os.utime(watcher.folder / "roses" / "2.jpg", (1e9, 1e9))
        runs += watcher.follow(3, after=61)
        (watcher.folder / "roses" / "2.jpg").unlink()
        runs += watcher.follow(3, after=61)
    assert runs == 6


@pytest.mark.parametrize(("by", "status"), [("sensor", FAILURE), ("schedule", dg.DagsterRunStatus.CANCELED)])
def test_a_change_whose_run_ended_between_raw_and_shards_is_requested_again_until_the_shards_hold_it(
    watcher: Watcher, by: str, status: dg.DagsterRunStatus
) -> None:
    watcher.add("roses/2.jpg", b"two")
    run = new_run(watcher.instance) if by == "schedule" else requested(watcher)
    watcher.materialize(run, shards=False)
    end(watcher.instance, run, status)
    message = str(watcher.tick().skip_message)
    assert "was read, and the shards do not hold it" in message
    assert f"run {run.run_id}, which read it last, ended as {status.value}" in message
    again = requested(watcher)
    materialise(watcher.instance, "shards", {}, again)
    end(watcher.instance, again, SUCCESS)
    assert watcher.follow(5, after=61) == 0
    assert "nothing changed" in str(watcher.tick().skip_message)


def test_a_change_that_never_gets_into_the_shards_is_requested_three_times(watcher: Watcher) -> None:
    watcher.add("roses/2.jpg", b"two")
    for _ in range(3):
        run = requested(watcher)
        watcher.materialize(run, shards=False)
        end(watcher.instance, run, FAILURE)
    assert watcher.follow(5, after=61) == 0
    assert "requested 3 times, and the shards do not hold it" in str(watcher.tick().skip_message)
    watcher.add("roses/3.jpg", b"three")
    assert watcher.follow(5, after=61) == 1


def test_a_change_whose_run_dagster_will_start_again_is_not_requested_beside_that(watcher: Watcher) -> None:
    watcher.add("roses/2.jpg", b"two")
    run = requested(watcher)
    watcher.materialize(run, shards=False)
    watcher.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    end(watcher.instance, run, FAILURE)
    assert watcher.follow(5, after=61) == 0
    watcher.instance.add_run_tags(run.run_id, {"dagster/auto_retry_run_id": "deleted"})
    assert watcher.follow(5, after=61) == 1


def requested(watcher: Watcher) -> dg.DagsterRun:
    """The run that one of the next ticks requests."""
    for _ in range(4):
        for run in watcher.launch(watcher.tick(after=61)):
            return run
    raise AssertionError(f"nothing was requested: {watcher.tick().skip_message}")


def test_a_change_is_recorded_as_a_data_version_as_soon_as_it_is_seen(watcher: Watcher) -> None:
    watcher.tick()
    watcher.add("roses/2.jpg", b"two")
    events = [len(watcher.tick().asset_events) for _ in range(3)]
    assert events == [1, 0, 0]


# ---------------------------------------------------------------- a listing in parts


@pytest.fixture
def slow_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A folder whose listing takes four ticks; what is raised while it is listed, if anything."""
    faults: list[Exception] = []

    def list_page(store: LocalStore, after: str) -> ListingPage:
        if faults:
            raise faults[0]
        found = [item for item in store.list() if item.key > after]
        return ListingPage(found[:1], found[0].key if found else after, is_last=len(found) < 2)

    monkeypatch.setattr(image_folder, "_page", list_page)
    monkeypatch.setattr(watch, "_SECONDS", 0)
    return faults


@pytest.fixture
def paged(instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path) -> Watcher:
    made = Watcher(instance, storage, tmp_path / "photos", listing="paged", quiet_seconds=30)
    for number in range(4):
        made.add(f"roses/{number}.jpg", b"one")
    made.materialize()
    return made


def test_a_listing_goes_on_in_the_next_tick_and_a_change_gives_one_run(slow_pages: Any, paged: Watcher) -> None:
    messages = [str(paged.tick().skip_message) for _ in range(4)]
    assert [f"listed {number} images so far" in message for number, message in enumerate(messages, 1)][:3] == [True] * 3
    assert "nothing changed" in messages[3]
    paged.add("roses/4.jpg", b"new")
    assert paged.follow(5) == 0  # seen once
    assert paged.follow(5) == 1  # and once more, which is quiet
    assert paged.follow(15) == 0


def test_j1_a_tick_that_is_lost_in_the_middle_of_a_listing_changes_nothing(slow_pages: Any, paged: Watcher) -> None:
    paged.add("roses/4.jpg", b"new")
    runs = 0
    for _ in range(12):
        paged.evaluate()  # the daemon died
        runs += paged.follow(1)
    assert runs == 1


def test_a_source_that_breaks_in_the_middle_of_a_listing_requests_nothing_and_goes_on(
    slow_pages: Any, paged: Watcher
) -> None:
    paged.add("roses/4.jpg", b"new")
    assert paged.follow(2) == 0
    slow_pages.append(StoreError("the store is down"))
    for _ in range(3):
        with pytest.raises(StoreError, match="down"):
            paged.tick()
    slow_pages.clear()
    assert paged.follow(8) == 1


def test_a_source_that_disappears_is_an_error_of_the_tick(slow_pages: Any, paged: Watcher) -> None:
    paged.folder.rename(paged.folder.with_name("away"))
    with pytest.raises(StoreError, match="the folder is empty or does not exist; nothing is requested"):
        paged.tick()
    paged.folder.with_name("away").rename(paged.folder)
    assert paged.follow(12) == 0


# ---------------------------------------------------------------- a file in place of a listing


def test_a_file_stands_for_the_source_and_its_absence_is_waited_for(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    watcher = Watcher(instance, storage, tmp_path / "photos", file="_SUCCESS")
    watcher.add("roses/1.jpg", b"one")
    assert "waiting for _SUCCESS" in str(watcher.tick().skip_message)
    watcher.add("_SUCCESS", b"")
    assert watcher.follow(5) == 1
    watcher.add("roses/2.jpg", b"two")
    assert watcher.follow(5) == 0
    (watcher.folder / "_SUCCESS").unlink()
    assert watcher.follow(2) == 0
    watcher.add("_SUCCESS", b"again")
    assert watcher.follow(5) == 1


# ---------------------------------------------------------------- messages of a bucket

KEYS = {"aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "SECRETTESTSECRET", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class Bucket:
    """A bucket that sends its events to a queue, and the sensor on it."""

    def __init__(self, aws: str, instance: dg.DagsterInstance, tmp_path: Path) -> None:
        self.name, self.tmp_path = f"b-{secrets.token_hex(6)}", tmp_path
        self.s3, self.sqs = (boto3.client(each, endpoint_url=aws, **KEYS) for each in ("s3", "sqs"))
        self.s3.create_bucket(Bucket=self.name)
        self.queue = self.sqs.create_queue(QueueName=self.name)["QueueUrl"]
        arn = f"arn:aws:sqs:us-east-1:123456789012:{self.name}"
        events = [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=self.name, NotificationConfiguration={"QueueConfigurations": events}
        )
        self.sqs.purge_queue(QueueUrl=self.queue)  # the event that tests the configuration
        storage = S3Storage(root=f"s3://{self.name}/root", endpoint_url=aws, **KEYS)
        self.queue = f"{aws}/123456789012/{self.name}"
        self.watcher = Watcher(instance, storage, tmp_path, f"s3://{self.name}/photos", queue=self.queue)

    def put(self, name: str) -> None:
        self.s3.put_object(Bucket=self.name, Key=f"photos/{name}", Body=name.encode())

    @property
    def waiting(self) -> int:
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["All"])["Attributes"]
        return int(found["ApproximateNumberOfMessages"])


@pytest.fixture
def bucket(aws: str, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(message_queue, "_WAIT_SECONDS", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    made = Bucket(aws, instance, tmp_path)
    made.put("roses/1.jpg")
    return made


def test_messages_give_one_run_and_are_deleted_after_the_cursor_is_saved(bucket: Bucket) -> None:
    watcher = bucket.watcher
    for _ in range(3):  # evaluations whose cursor was lost
        assert not watcher.evaluate().run_requests
        assert bucket.waiting == 1
    assert "the content changed" in str(watcher.tick().skip_message)
    assert bucket.waiting == 1
    watcher.tick()  # knows from its saved cursor that a run has to follow
    assert bucket.waiting == 0
    assert watcher.follow(4) == 1
    assert watcher.follow(4) == 0
    assert "no message is waiting" in str(watcher.tick().skip_message)
    bucket.put("roses/2.jpg")
    assert watcher.follow(6) == 1
    assert watcher.follow(3) == 0


@pytest.mark.nightly  # of a listing: test_j2_a_change_waits_...
def test_messages_that_come_while_a_run_goes_on_give_one_more(bucket: Bucket) -> None:
    watcher = bucket.watcher
    while not (made := watcher.launch(watcher.tick())):
        pass
    bucket.put("roses/2.jpg")
    assert watcher.follow(3) == 0
    watcher.materialize(made[0])
    end(watcher.instance, made[0], SUCCESS)
    assert watcher.follow(6) == 1
    assert watcher.follow(3) == 0


@pytest.mark.nightly  # test_messages_give_one_run_... sees one message three times
def test_a_message_that_is_delivered_twice_does_no_harm(bucket: Bucket) -> None:
    watcher = bucket.watcher
    assert watcher.follow(6) == 1
    bucket.sqs.send_message(QueueUrl=bucket.queue, MessageBody="the same once more")
    assert watcher.follow(6) == 1  # a run that finds nothing new
    assert (watcher.follow(3), bucket.waiting) == (0, 0)


@pytest.mark.nightly  # of a listing: test_j10_a_reset_cursor_...
def test_a_run_that_failed_without_reading_is_requested_again(bucket: Bucket) -> None:
    watcher = bucket.watcher
    while not (made := watcher.launch(watcher.tick())):
        pass
    end(watcher.instance, made[0], FAILURE)
    assert watcher.follow(5) == 1
    assert watcher.follow(5) == 0
    runs = watcher.instance.get_runs(dg.RunsFilter(job_name="flowers_reshard_job"))
    assert len({run.tags[SEEN_TAG] for run in runs}) == 1


def test_a_queue_that_is_gone_fails_the_tick_and_nothing_is_lost_when_it_is_back(bucket: Bucket) -> None:
    watcher = bucket.watcher
    watcher.tick()
    bucket.sqs.delete_queue(QueueUrl=bucket.queue)
    with pytest.raises(StoreError, match="check that the queue exists"):
        watcher.tick()
    bucket.sqs.create_queue(QueueName=bucket.name)
    assert watcher.follow(5) == 1
