"""C8 and C10 to C14: deaths between two steps of a put, objects that go, halves of uploads, strangers, clocks."""

import contextlib
import datetime
import os
import re
import shutil
import signal

import pytest

from smalti.cache import CacheOptions
from smalti.catalog import history, load_manifest, publish, verify
from smalti.catalog.commit import PublishingClock
from smalti.errors import ShardNotFound, SmaltiError, StoreError, StoreNotFound
from smalti.storage import LocalStore
from smalti.writer import MDSWriter
from tests.catalog.conftest import make_draft
from tests.faults.cache_steps import die_before
from tests.faults.published_set import drafted, published, rows_of
from tests.faults.ways_of_reading import ALONE_AND_THREADS
from tests.faultstore import Toxic
from tests.seeds import SEED
from tests.shard_sets import write_set
from tests.storage.test_process import in_fork
from tests.stores import MemoryStore

__all__ = ["make_draft"]


@pytest.mark.search
@pytest.mark.slow
@pytest.mark.process
def test_c8_a_publisher_killed_before_any_step_on_disk_leaves_the_old_version_or_the_new_one(tmp_path, make_draft):
    """Opening, syncing, linking, renaming, removing: every step in the folder, the last one of a life each.

    `make test` takes one step in three.
    """
    first = LocalStore(tmp_path / "first")
    publish(first, make_draft(first, 3))
    draft = make_draft(first, 3, first=10)
    for number in range(1, 200, 1 if SEED is not None else 3):
        root = tmp_path / f"set-{number}"
        shutil.copytree(tmp_path / "first", root)
        store = LocalStore(root)

        def work(number=number, store=store):
            die_before(store.root, number)
            return publish(store, draft, mode="append").version

        ended = in_fork(work)
        assert rows_of(store) in ([3], [3, 6]), f"killed before step {number}"
        made = publish(store, draft, mode="append")
        assert (made.version, rows_of(store)) == (2, [3, 6])
        assert verify(store).ok
        if ended == "2":
            break
    assert number > 15


@pytest.mark.slow
@pytest.mark.torch
def test_c10_a_shard_that_a_lifecycle_rule_deleted_is_named_with_its_version(faults, tmp_path, make_draft):
    from smalti.dataset import open_dataset

    store = published(faults, make_draft)
    manifest = load_manifest(store)
    key = manifest.shards[0].stored.basename
    dataset = open_dataset("s3://bucket/set", cache=CacheOptions(local=str(tmp_path / "cache")), storage_options={})
    faults.delete(f"set/{key}")
    with pytest.raises(ShardNotFound, match=rf"{re.escape(key)}.*version digest {manifest.digest[:12]}"):
        dataset[0]
    report = verify(store)
    assert not report.ok
    assert key in report.summary()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_c10_a_shard_deleted_in_the_middle_of_an_epoch_ends_it_with_its_name_and_version(faults, tmp_path, way):
    """The last of forty shards goes after the first batch: what stands before it is delivered, and then all is said."""
    from smalti.torch import StreamingDataLoader, StreamingDataset

    faults.put_folder(write_set(tmp_path / "set", 400), "set/")
    dataset = StreamingDataset(
        remote="s3://bucket/set",
        cache=CacheOptions(local=str(tmp_path / "cache"), predownload=10, download_timeout=20),
        batch_size=5,
        shuffle=False,
    )
    last = dataset.stream.shards[-1]
    taken, key = [], last.stored.basename

    def read():
        for batch in StreamingDataLoader(dataset, **way):
            taken.extend(batch["id"].tolist())
            faults.delete(f"set/{key}")

    with pytest.raises(ShardNotFound, match=rf"{re.escape(key)}.*version digest {dataset.manifest.digest[:12]}"):
        read()
    assert taken == list(range(len(taken)))
    assert 5 <= len(taken) <= 400 - last.samples


@pytest.mark.slow
def test_c11_an_upload_whose_second_part_fails_for_good_is_no_object_and_is_ended(faults, tmp_path):
    """Its first part would be paid for until somebody looks."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(105 << 20)  # s3fs puts up to 100 MiB at once
    store = faults.open("set", request_attempts=2, request_timeout=20)
    faults.plant(Toxic("lost_request", key="*k", method="PUT", nth=2))
    with pytest.raises(StoreError):
        store.put_file("k", tmp_path / "large")
    assert not store.exists("k")
    begun = [entry for entry in faults.log("POST", "k") if "uploads" in entry.query]
    assert begun, "it went in parts"
    ended = [entry for entry in faults.log("DELETE", "k") if "uploadId" in entry.query]
    assert len(ended) == len(begun)


def test_c11_a_writer_killed_within_its_uploads_leaves_nothing_visible(faults, tmp_path):
    def work():
        writer = MDSWriter(out="s3://bucket/set", columns={"x": "bytes"}, size_limit=2000)
        writer.__enter__()
        for _ in range(20):
            writer.write({"x": bytes(400)})
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(work) == "nothing: killed after the deadline"
    left = [info.key for info in faults.open("set").list() if info.key.startswith(("_versions", "index"))]
    assert [key for key in left if not key.startswith("_versions/writes/")] == [], "its marker alone"
    with pytest.raises(StoreNotFound):
        load_manifest(faults.open("set"))
    with MDSWriter(out="s3://bucket/set", columns={"x": "bytes"}) as writer:
        writer.write({"x": b"1"})
    assert load_manifest(faults.open("set")).rows == 1


def test_c12_strangers_below_the_prefix_are_no_part_of_a_set(faults, make_draft):
    store = published(faults, make_draft)
    before = load_manifest(store)
    stray = MemoryStore()
    publish(stray, make_draft(stray, 5))
    for key in ("index.json", "_versions/00000001.json"):
        faults.put(f"set/sub/{key}", stray.get(key))
    faults.put("set/_versions/notes.json", b'{"version": 7}')
    faults.put("set/_versions/00000009.json.bak", stray.get("_versions/00000001.json"))
    faults.put("set/train.json", b"{}")
    assert load_manifest(store) == before
    assert publish(store, drafted(faults, make_draft, first=10), mode="append").rows == 6


@pytest.mark.parametrize("exist_ok", [False, True])
def test_c13_a_writer_at_the_wrong_place_touches_no_file_that_it_did_not_write(tmp_path, exist_ok):
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    for name in ("notes.txt", "photos/1.jpg", "photos/shard.00000.mds", "shard.00000.mds", ".hidden"):
        (home / name).write_bytes(name.encode())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for work in (give_up, finish):
        with contextlib.suppress(RuntimeError, SmaltiError):
            work(home, exist_ok)
    after = {path: path.read_bytes() for path in before if path.is_file()}
    assert after == before


def give_up(home, exist_ok):
    with MDSWriter(out=str(home), columns={"x": "int"}, exist_ok=exist_ok) as writer:
        writer.write({"x": 1})
        raise RuntimeError("changed my mind")


def finish(home, exist_ok):
    with MDSWriter(out=str(home), columns={"x": "int"}, exist_ok=exist_ok) as writer:
        writer.write({"x": 1})


def test_c14_clocks_hours_apart_have_no_say_in_what_is_newest(make_draft):
    """The second publisher's clock is three hours behind, the third's three ahead, the fourth's six behind."""
    store = MemoryStore()
    for turn, hours in enumerate([0, -3, 3, -6]):
        mode = "append" if turn else "create"
        made = publish(store, make_draft(store, 2, first=10 * turn), mode=mode, clock=WrongClock(hours))
        assert made.version == turn + 1
    lines = history(store)
    assert [line.version for line in lines] == [1, 2, 3, 4]
    assert sorted(line.created for line in lines) != [line.created for line in lines], "the clocks did differ"
    assert load_manifest(store).rows == 8


class WrongClock(PublishingClock):
    """A clock that is so many hours off."""

    def __init__(self, hours):
        self.hours = hours

    def now(self):
        return super().now() + datetime.timedelta(hours=self.hours)


def test_c_a_listing_that_is_late_hides_nothing_that_is_published(faults, make_draft):
    """Some look-alikes of S3 list what was written only seconds later: numbers are asked for by name."""
    store = published(faults, make_draft)
    faults.plant(Toxic("late_list", seconds=60.0))
    assert publish(store, drafted(faults, make_draft, first=10), mode="append").version == 2
    assert publish(store, drafted(faults, make_draft, first=20), mode="append").version == 3
    assert [line.rows for line in history(store)] == [3, 6, 9]


@pytest.mark.parametrize("what", ["_versions/*.json", "_versions/*.arrow", "index.json"])
def test_c_a_store_that_keeps_an_empty_body_is_an_error_and_the_old_version_stays(faults, make_draft, what):
    store = published(faults, make_draft)
    draft = drafted(faults, make_draft, first=10)
    faults.plant(Toxic("drop_body", key=f"set/{what}", method="PUT"))
    with pytest.raises(SmaltiError):
        publish(store, draft, mode="append")
    faults.heal()
    assert load_manifest(store).rows in {3, 6}
    assert publish(store, draft, mode="append").rows == 6
    assert rows_of(store) == [3, 6]
