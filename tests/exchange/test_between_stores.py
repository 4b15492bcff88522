"""Copies between disks and an S3 server, with faults, and with a SIGKILL in the middle."""

import signal
import subprocess
import sys

import pytest

from smalti.catalog import load_manifest, new_write_id, publish, verify
from smalti.errors import StoreNotFound
from smalti.exchange import CopyOptions, copy_version, sync
from smalti.storage import open_store
from tests.faultstore import FaultStore, Toxic
from tests.shard_sets import write_set

KILLED_AFTER = """
import os, signal, sys
from smalti.exchange import CopyOptions, copy_version

count = 0

def on_progress(done, total):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

copy_version(sys.argv[1], sys.argv[2], options=CopyOptions(max_workers=2), on_progress=on_progress)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("source") / "set"
    write_set(root, 100)
    write_set(root, 40, mode="append")
    draft = load_manifest(root).redraft(new_write_id(), row_hash=verify(root).row_hash)
    publish(root, draft, mode="overwrite")
    return root


@pytest.fixture(scope="module")
def faults():
    with FaultStore() as server:
        yield server


@pytest.fixture
def store(faults, clean):
    faults.reset()
    return faults.open("copies/one")


@pytest.fixture
def clean(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def assert_same(one, other):
    first, second = load_manifest(one), load_manifest(other)
    assert (first.digest, first.row_hash, first.write_id) == (second.digest, second.row_hash, second.write_id)
    assert first.row_hash
    assert verify(other).ok


def test_killed_in_the_middle_a_copy_shows_nothing_and_the_next_one_continues(source, tmp_path):
    target = tmp_path / "copy"
    command = [sys.executable, "-c", KILLED_AFTER, str(source), str(target), "5"]
    assert subprocess.run(command, check=False, timeout=500).returncode == -signal.SIGKILL
    with pytest.raises(StoreNotFound, match="no shard set"):
        load_manifest(target)
    report = copy_version(source, target)
    assert 5 <= report.num_present < 18
    assert report.num_present + report.num_objects == 17
    assert_same(source, target)


def test_what_a_crash_of_the_machine_left_without_its_bytes_is_copied_again(source, tmp_path):
    first = load_manifest(source).shards[0].raw
    path = tmp_path / "copy" / first.basename
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(first.num_bytes))
    copy_version(source, tmp_path / "copy")
    assert_same(source, tmp_path / "copy")


def test_to_a_server_and_back_through_faults_the_bytes_stay(source, store, faults, tmp_path):
    faults.plant(
        Toxic("http", status=503, code="SlowDown", key="*.mds", count=3),
        Toxic("lost_ack", key="*.mds", method="PUT", nth=5, count=2),
        Toxic("reset_peer", key="*.mds", method="GET", after=100, count=2),
        Toxic("corrupt", key="*.mds", nth=3, count=1),
        Toxic("lost_ack", key="*/00000001.json", method="PUT", count=1),
    )
    copy_version(source, store)
    copy_version(store, tmp_path / "back")
    assert_same(source, store)
    assert_same(source, tmp_path / "back")


def test_an_object_that_the_server_acknowledges_and_drops_is_put_again(source, store, faults):
    faults.plant(Toxic("drop_body", key="*.mds", method="PUT", nth=2, count=1))
    copy_version(source, store)
    assert_same(source, store)


def test_only_new_shards_are_sent_to_a_mirror(source, store, faults, tmp_path):
    root = tmp_path / "set"
    copy_version(source, root)
    sync(root, store)
    write_set(root, 30, mode="append")
    faults.forget()
    report = sync(root, store, history=True)
    sent = [entry.key for entry in faults.log("PUT", ".mds")]
    assert sorted(sent) == sorted(f"copies/one/{shard.raw.basename}" for shard in load_manifest(root).shards[17:])
    assert report.num_objects == len(sent)
    assert (load_manifest(store).digest, verify(store).ok) == (load_manifest(root).digest, True)


def test_within_one_server_the_bytes_do_not_pass_this_machine_unless_they_are_checked(source, store, faults):
    copy_version(source, store)
    faults.forget()
    copy_version(store, faults.open("copies/two"), options=CopyOptions(server_side=True))
    assert faults.log("GET", ".mds") == []
    assert_same(store, faults.open("copies/two"))
    faults.forget()
    copy_version(store, faults.open("copies/three"), options=CopyOptions(server_side=True, read_back=True))
    assert {entry.key.split("/")[1] for entry in faults.log("GET", ".mds")} == {"three"}
    assert not open_store("s3://bucket/x", faults.options | {"requester_pays": True}).can_copy_from(store)
