"""A1 to A16 without a driver of Spark: tasks that die, pause or compete, and stores that fail."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from smalti.catalog import load_manifest, new_write_id, verify
from smalti.catalog.retention.vacuum import vacuum
from smalti.errors import DatasetExists, StoreError, StoreNotFound
from smalti.storage import LocalStore
from tests.faults.jobs_without_spark import ROWS, begin, commit, write
from tests.faultstore import Toxic
from tests.storage.test_process import in_fork
from tests.stores import MemoryStore

pytestmark = pytest.mark.spark  # no session, but the code of its tasks


def shards_of(store):
    return sorted(info.key for info in store.list() if info.key.endswith(".mds"))


def removable(store):
    """Return the objects that a vacuum would remove if everything were old."""
    return sorted(each.key for each in vacuum(store, older_than=0, unsafe_ttl=True).removed)


def kill_at(number):
    def look(batch):
        if batch == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return look


@pytest.mark.slow
@pytest.mark.process
def test_a1_shards_of_a_killed_attempt_are_in_no_version_and_vacuum_lists_them(tmp_path):
    store, write_id = LocalStore(tmp_path), new_write_id()
    begin(store, write_id)

    def killed():
        def look(batch):
            deadline = time.monotonic() + 120
            while batch == 19 and len(shards_of(store)) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            kill_at(19)(batch)

        write(store, write_id, "aaaaaaaa", on_batch=look)

    assert in_fork(killed) == "nothing: killed after the deadline"
    orphans = shards_of(store)
    assert len(orphans) >= 4
    made = commit(store, write_id, [write(store, write_id, "bbbbbbbb")])
    assert made.rows == ROWS
    assert not {shard.stored.basename for shard in made.shards} & set(orphans)
    time.sleep(0.02)  # older than nothing at all, by the clock of the disk
    assert set(orphans) <= set(removable(store))
    assert not {shard.stored.basename for shard in made.shards} & set(removable(store))


@pytest.mark.process
def test_a4_a_frozen_attempt_that_resumes_after_the_commit_changes_nothing(tmp_path):
    """A process that SIGSTOP froze between its shards resumes, stores the other shards, and commits too late."""
    store, write_id = LocalStore(tmp_path), new_write_id()
    begin(store, write_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads alive
        zombie = os.fork()
    if zombie == 0:
        try:
            stop = {10: lambda: os.kill(os.getpid(), signal.SIGSTOP)}
            answer = write(store, write_id, "aaaaaaaa", on_batch=lambda number: stop.get(number, int)())
            os._exit(commit(store, write_id, [answer]).version)
        finally:
            os._exit(99)
    timer = threading.Timer(30, os.kill, (zombie, signal.SIGKILL))
    timer.start()
    assert os.WIFSTOPPED(os.waitpid(zombie, os.WUNTRACED)[1])
    made = commit(store, write_id, [write(store, write_id, "bbbbbbbb")])
    before = shards_of(store)
    os.kill(zombie, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(zombie, 0)[1]) == 1, "it gets the version that the write has"
    timer.cancel()
    assert len(shards_of(store)) > len(before), "it did go on"
    assert load_manifest(store).digest == made.digest
    assert (load_manifest(store).version, load_manifest(store).rows) == (1, ROWS)
    assert verify(store).ok


def test_a5_two_applications_with_the_same_attempt_names_never_share_an_object():
    store = MemoryStore()
    first, second = new_write_id(), new_write_id()
    answers = {each: [write(store, each, "aaaaaaaa")] for each in (first, second)}
    made = commit(store, first, answers[first])
    with pytest.raises(DatasetExists, match="already holds a data set"):
        commit(store, second, answers[second])
    assert all(shard.stored.basename.startswith(f"{first}/") for shard in made.shards)
    assert len(shards_of(store)) == 2 * len(made.shards)
    assert commit(store, second, answers[second], mode="append").rows == 2 * ROWS
    assert verify(store).ok


@pytest.mark.process
def test_a8_a_full_disk_is_a_typed_error_that_leaves_nothing_and_the_task_can_be_run_again(tmp_path):
    """Files are limited to 100 bytes: every write of a shard fails in the middle, as on a full disk."""
    store, write_id = LocalStore(tmp_path / "set"), new_write_id()

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        write(store, write_id, "aaaaaaaa")

    assert in_fork(full).startswith("StoreError: ")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert commit(store, write_id, [write(store, write_id, "bbbbbbbb")]).rows == ROWS


@pytest.mark.slow
def test_a9_one_shard_that_cannot_be_uploaded_fails_the_task_and_nothing_is_visible(faults):
    store, write_id = faults.open("set", request_attempts=1, request_timeout=60), new_write_id()
    faults.plant(Toxic("http", status=503, key="*shard.00003.mds", method="PUT"))
    with pytest.raises(StoreError):
        write(store, write_id, "aaaaaaaa")
    faults.heal()
    assert [info.key for info in faults.open("set").list()] == [], "what was uploaded is removed, no index was sent"


class Recording(MemoryStore):
    """A store that records when shards, manifests and indexes are put; the last shards wait for the latter."""

    def __init__(self):
        super().__init__()
        self.noted, self.is_published = [], threading.Event()

    def put(self, key, data):
        self._note_manifest(key)
        if key.endswith(("shard.00006.mds", "shard.00007.mds")):
            self.is_published.wait(1.0)  # it does not come, or the fault is there
        super().put(key, data)
        if key.endswith(".mds"):
            self.noted.append(key)

    def put_if_absent(self, key, data):
        self._note_manifest(key)
        super().put_if_absent(key, data)

    def _note_manifest(self, key):
        if key.startswith(("_versions/", "index.json")):
            self.noted.append(key)
            self.is_published.set()


@pytest.mark.slow
def test_a10_no_manifest_is_sent_while_an_upload_is_under_way():
    store, write_id = Recording(), new_write_id()
    made = commit(store, write_id, [write(store, write_id, "aaaaaaaa")])
    last = max(store.noted.index(shard.stored.basename) for shard in made.shards)
    published = [place for place, key in enumerate(store.noted) if key.startswith(("_versions/", "index.json"))]
    assert len(made.shards) >= 8
    assert last < min(published)


def test_a11_a_store_that_keeps_an_empty_shard_fails_the_task_and_nothing_is_visible(faults):
    store, write_id = faults.open("set"), new_write_id()
    faults.plant(Toxic("drop_body", key="*.mds", method="PUT"))
    with pytest.raises(StoreError, match="did not take the whole object"):
        write(store, write_id, "aaaaaaaa")
    with pytest.raises(StoreNotFound):
        load_manifest(store)


@pytest.mark.slow
@pytest.mark.process
def test_a16_the_manifest_of_very_many_shards_is_published_in_little_memory():
    """30,000 shards, and as many appended: as single objects they would take 200 MB."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.publish_many_shards", "30000", "250"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.splitlines()[:1] == ["2 60000 6000000"], done.stderr[-2000:]
