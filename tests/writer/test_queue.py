"""Shards are sealed on threads: bounded in number, in order, and with failures raised by the next call."""

import threading
import time
import weakref

import pyarrow as pa
import pytest

from smalti.errors import SchemaError, StoreError
from smalti.format import FileInfo, Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.format.writing.sealing import BuiltShard
from smalti.writer import MDSWriter, ShardUploader, UploadOptions
from smalti.writer.progress import UploadProgress
from tests.stores import MemoryStore

SCHEMA = Schema.from_columns({"x": "bytes"})
OPTIONS = ShardOptions(size_limit=1000)
ROW = {"x": bytes(400)}  # two to a shard


class TrackedShard:
    """A filled shard that records when it is freed."""

    def __init__(self, number):
        self.number = number
        self.threads = None

    def seal(self):
        name = f"shard.{self.number:05}.mds"
        return BuiltShard(ShardInfo(SCHEMA, 1, FileInfo(name, 3)), (b"abc",))


class TrackedBuilder:
    """A builder that makes a shard of each sample, and counts the shards in memory."""

    def __init__(self):
        self.alive, self.most, self.made = 0, 0, 0
        self.lock = threading.Lock()

    def add(self, _):
        shard = TrackedShard(self.made)
        self.made += 1
        with self.lock:
            self.alive += 1
            self.most = max(self.most, self.alive)
        weakref.finalize(shard, self._gone)
        return [shard]

    def add_batch(self, batch):
        return [self.add(None)[0] for _ in range(batch)]

    def finish(self):
        return []

    def _gone(self):
        with self.lock:
            self.alive -= 1


class BlockedStore(MemoryStore):
    """A store whose puts wait for an event."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def put(self, key, data):
        assert self.gate.wait(120)
        super().put(key, data)


def wait_until(claim):
    deadline = time.monotonic() + 120
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("workers", [1, 3])
def test_slow_store_stops_the_writer_instead_of_filling_the_memory(workers):
    store = MemoryStore()
    store.plant("put", delay=0.01)
    builder = TrackedBuilder()
    target = ShardUploader(store, "w", builder, uploads=UploadOptions(max_workers=workers))
    for _ in range(20):
        target.write({})
    assert len(target.finish()) == 20
    # Those that are being uploaded, and the one that waits.
    assert builder.most <= workers + 1
    wait_until(lambda: builder.alive == 0)


def test_uncompressed_bytes_of_few_shards_are_in_memory_at_a_time():
    lock, live, most = threading.Lock(), 0, 0

    def gone():
        nonlocal live
        with lock:
            live -= 1

    class Counting(MemoryStore):
        def put(self, key, data):
            nonlocal live, most
            with lock:
                live += 1
                most = max(most, live)
            weakref.finalize(data, gone)
            time.sleep(0.005)
            super().put(key, data)

    target = ShardUploader(Counting(), "w", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(max_workers=2))
    for _ in range(60):
        target.write(ROW)
    assert len(target.finish()) == 30
    assert most <= 2


def test_shards_are_sealed_on_other_threads_while_the_writer_continues():
    store = BlockedStore()
    target = ShardUploader(store, "w", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(max_workers=3))
    for _ in range(7):  # three shards are full, and none can be stored
        target.write(ROW)
    assert store.objects == {}
    store.gate.set()
    assert [shard.samples for shard in target.finish()] == [2, 2, 2, 1]


def test_shards_are_in_order_though_the_first_takes_longest():
    store = MemoryStore()
    store.plant("put", key="*00000.mds", delay=0.2)
    target = ShardUploader(store, "w", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(max_workers=4))
    for _ in range(8):
        target.write(ROW)
    names = [shard.stored.basename for shard in target.finish()]
    assert names == [f"w/shard.{i:05}.mds" for i in range(4)]
    puts = [call.key for call in store.calls if call.op == "put"]
    assert sorted(puts) == names


def test_failure_on_a_thread_is_raised_by_the_very_next_call():
    store = MemoryStore()
    store.plant("put", error=StoreError("503 for good"))
    target = ShardUploader(store, "w", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(attempts=1))
    for _ in range(3):
        target.write(ROW)
    wait_until(lambda: target._add == target._refuse)
    for _ in range(2):
        with pytest.raises(StoreError, match="503 for good"):
            target.write(ROW)
    with pytest.raises(StoreError, match="503 for good"):
        target.finish()
    assert target.abort() == ()
    with pytest.raises(ValueError, match="finished or aborted"):
        target.write(ROW)


def test_shard_that_cannot_be_sealed_fails_the_write_and_leaves_nothing():
    class Broken(TrackedShard):
        def seal(self):
            raise MemoryError

    class BrokenBuilder(TrackedBuilder):
        def add(self, _):
            return [Broken(0)]

    store = MemoryStore()
    target = ShardUploader(store, "w", BrokenBuilder())
    target.write({})
    with pytest.raises(MemoryError):
        target.finish()
    assert target.abort() == ()
    assert store.objects == {}


def write_until_failure(writer):
    with writer:
        for _ in range(10_000):
            writer.write(ROW)


def test_writer_that_fails_on_a_thread_publishes_nothing_and_deletes_the_rest(tmp_path):
    writer = MDSWriter(out=tmp_path, columns={"x": "bytes"}, size_limit=1000, retry=1)
    (tmp_path / writer.write_id).mkdir()
    blocked = tmp_path / writer.write_id / "0"
    for _ in range(3):
        writer.write(ROW)
    wait_until(lambda: blocked.is_dir() and any(path.suffix == ".mds" for path in blocked.iterdir()))
    blocked.rename(tmp_path / "aside")
    blocked.write_text("a file where the folder of the shards belongs")
    with pytest.raises(StoreError):
        write_until_failure(writer)
    assert writer.manifest is None
    assert not (tmp_path / "index.json").exists()


def test_refused_sample_leaves_the_writer_usable_and_other_errors_do_not(tmp_path):
    with MDSWriter(out=tmp_path, columns={"x": "bytes"}) as writer:
        writer.write(ROW)
        with pytest.raises(SchemaError) as caught:
            writer.write({"x": 5})
        assert (caught.value.column, caught.value.row) == ("x", 1)
        writer.write(ROW)
    assert writer.manifest.rows == 2


def test_shards_of_a_batch_are_bounded_too():
    store = MemoryStore()
    target = ShardUploader(store, "", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(max_workers=1))
    target.write_batch(pa.record_batch([pa.array([bytes(400)] * 11)], ["x"]))
    assert [shard.samples for shard in target.finish()] == [2, 2, 2, 2, 2, 1]


def test_progress_of_uploads_counts_shards_and_bytes_and_ends_with_the_last_state(capsys):
    progress = UploadProgress()
    progress.close()
    assert capsys.readouterr().err == ""
    progress = UploadProgress()
    for number in range(3):
        progress.add(ShardInfo(SCHEMA, 1, FileInfo(f"shard.{number:05}.mds", 1_500_000)))
    progress.close()
    assert capsys.readouterr().err == "stored 1 shards, 1.5 MB\nstored 3 shards, 4.5 MB\n"
