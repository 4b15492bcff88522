"""Shards are stored completely and in order while the writer continues, or the write fails."""

import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from smalti.errors import SchemaError, StoreAuthError, StoreError, StoreTimeout
from smalti.format import Schema, Shard, ShardBuilder, ShardOptions, verify_file
from smalti.writer import NoSamples, ShardUploader, UploadOptions
from tests.stores import MemoryStore

SCHEMA = Schema.from_columns({"x": "bytes"})
OPTIONS = ShardOptions(size_limit=1000)
ROW = {"x": bytes(400)}  # two to a shard


def uploader(store, **uploads):
    return ShardUploader(
        store, "train/w1/0", ShardBuilder(SCHEMA, OPTIONS), partition="train", uploads=UploadOptions(**uploads)
    )


def write(target, count):
    for _ in range(count):
        target.write(ROW)


def test_shards_are_below_the_prefix_in_order_with_their_sizes_and_hashes(tmp_path):
    store = MemoryStore()
    target = uploader(store)
    write(target, 5)
    shards = target.finish()
    assert [shard.samples for shard in shards] == [2, 2, 1]
    assert [shard.stored.basename for shard in shards] == [f"train/w1/0/shard.0000{i}.mds" for i in range(3)]
    assert {shard.partition for shard in shards} == {"train"}
    assert sorted(store.objects) == [shard.stored.basename for shard in shards]
    for shard in shards:
        path = tmp_path / "s"
        path.write_bytes(store.objects[shard.stored.basename])
        verify_file(path, shard.stored, what="s")
        assert Shard.open(path, shard)[0]["x"] == bytes(400)


def test_batches_and_samples_give_the_same_objects():
    objects = []
    for by_batch in (True, False):
        store = MemoryStore()
        target = uploader(store)
        if by_batch:
            target.write_batch(pa.record_batch([pa.array([bytes(400)] * 9)], ["x"]))
        else:
            write(target, 9)
        target.finish()
        objects.append(store.objects)
    assert objects[0] == objects[1]
    assert len(objects[0]) == 5


def test_nothing_written_gives_no_shard_and_no_object():
    store = MemoryStore()
    assert uploader(store).finish() == []
    assert store.objects == {}


def test_the_writer_continues_during_uploads_whose_number_is_bounded():
    running, most, lock = 0, 0, threading.Lock()

    class SlowStore(MemoryStore):
        def put(self, key, data):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.05)
            super().put(key, data)
            with lock:
                running -= 1

    store = SlowStore()
    target = uploader(store, max_workers=3)
    write(target, 5)  # the second shard is full: the first two are being uploaded, and `write` did not wait
    assert len(store.objects) == 0
    write(target, 20)
    assert len(target.finish()) == 13
    assert most == 3


def test_upload_that_fails_once_is_tried_again():
    store = MemoryStore()
    store.plant("put", at=1, times=1, error=StoreError("503"))
    target = uploader(store, attempts=2)
    write(target, 5)
    assert len(target.finish()) == 3
    assert len(store.objects) == 3
    assert [call.op for call in store.calls].count("put") == 4


def test_upload_that_fails_for_good_fails_the_write():
    store = MemoryStore()
    store.plant("put", key="*shard.00001.mds", error=StoreError("503 for shard.00001"))
    target = uploader(store, max_workers=1)
    with pytest.raises(StoreError, match=r"shard\.00001"):
        write(target, 50)
    with pytest.raises(StoreError, match=r"shard\.00001"):
        target.finish()
    assert target.abort() == ()
    assert store.objects == {}


def test_last_upload_that_fails_fails_the_finish():
    store = MemoryStore()
    store.plant("put", key="*shard.00002.mds", error=StoreError("503 for shard.00002"))
    target = uploader(store)
    write(target, 5)
    with pytest.raises(StoreError, match=r"shard\.00002"):
        target.finish()


def test_refused_credentials_are_not_tried_again():
    store = MemoryStore()
    store.plant("put", error=StoreAuthError("no"))
    target = uploader(store, attempts=5)
    write(target, 2)
    with pytest.raises(StoreAuthError):
        target.finish()
    assert [call.op for call in store.calls].count("put") == 1


def test_store_that_keeps_an_empty_body_fails_the_write():
    store = MemoryStore()
    store.plant("put", truncate=0)
    target = uploader(store)
    write(target, 2)
    with pytest.raises(StoreError, match="the store has 0"):
        target.finish()


def test_body_that_was_cut_once_is_put_again():
    store = MemoryStore()
    store.plant("put", truncate=10, times=1)
    target = uploader(store)
    write(target, 2)
    (shard,) = target.finish()
    assert len(store.objects[shard.stored.basename]) == shard.stored.num_bytes


def test_a_put_that_never_ends_fails_after_the_timeout():
    store = MemoryStore()
    store.plant("put", delay=1.0)
    target = uploader(store, timeout_seconds=0.05, attempts=1)
    write(target, 2)
    with pytest.raises(StoreTimeout, match=r"within 0\.05 s"):
        target.finish()


def test_abort_deletes_what_was_uploaded_and_nothing_else():
    store = MemoryStore()
    store.put("train/w0/0/shard.00000.mds", b"somebody's")
    store.put("train/w1/note", b"somebody's")
    target = uploader(store)
    write(target, 50)
    assert target.abort() == ()
    assert target.abort() == ()
    assert sorted(store.objects) == ["train/w0/0/shard.00000.mds", "train/w1/note"]
    for use in (target.finish, lambda: target.write(ROW)):
        with pytest.raises(ValueError, match="aborted"):
            use()


def test_abort_names_what_it_could_not_delete():
    store = MemoryStore()
    store.plant("delete", key="*shard.00000.mds", error=StoreError("503"))
    target = uploader(store)
    write(target, 5)
    target.finish()
    assert target.abort() == ("memory-store://test/train/w1/0/shard.00000.mds",)
    assert sorted(store.objects) == ["train/w1/0/shard.00000.mds"]


def test_a_refused_sample_is_not_added_and_the_others_are():
    store = MemoryStore()
    target = uploader(store)
    target.write(ROW)
    with pytest.raises(SchemaError):
        target.write({"x": None})
    target.write(ROW)
    assert [shard.samples for shard in target.finish()] == [2]


def test_mirrors_get_the_same_objects():
    first, second = MemoryStore(), MemoryStore()
    target = ShardUploader(first, "w", ShardBuilder(SCHEMA, OPTIONS), mirrors=[second])
    write(target, 5)
    target.finish()
    assert first.objects == second.objects
    assert len(first.objects) == 3


def test_large_arrays_are_uploaded():
    store = MemoryStore()
    schema = Schema.from_columns({"x": "ndarray:float32:1000"})
    target = ShardUploader(store, "", ShardBuilder(schema, ShardOptions("zstd", size_limit="64kb")))
    for i in range(40):
        target.write({"x": np.full(1000, i, np.float32)})
    shards = target.finish()
    assert sum(shard.samples for shard in shards) == 40
    assert shards[0].stored.basename == "shard.00000.mds.zstd"


def test_whole_shards_of_the_caller_stand_among_those_of_the_builder():
    store = MemoryStore()
    target = uploader(store)
    write(target, 3)  # the third sample stays in the builder
    (shard,) = filled_elsewhere()
    target.write_shard(shard)
    assert [info.stored.basename for info in target.finish()] == [
        f"train/w1/0/shard.{name}.mds" for name in ("00000", "00007", "00001")
    ]
    with pytest.raises(ValueError, match="finished"):
        target.write_shard(shard)


def filled_elsewhere():
    """Return a shard called shard.00007.mds."""
    builder = ShardBuilder(SCHEMA, OPTIONS)
    for _ in range(7):
        builder.add(ROW)
        builder.finish()
    builder.add(ROW)
    return builder.finish()


def test_a_writer_of_whole_shards_refuses_samples():
    target = ShardUploader(MemoryStore(), "w1", NoSamples())
    with pytest.raises(SchemaError, match="whole shards"):
        target.write(ROW)
    target.write_shard(filled_elsewhere()[0])
    assert [info.samples for info in target.finish()] == [1]
