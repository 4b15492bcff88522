"""A writer that is interrupted, forked or called again loses no sample and deletes no shard of a version."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from smalti.catalog import load_manifest
from smalti.errors import SmaltiError
from smalti.format import Schema, Shard, ShardBuilder, ShardOptions
from smalti.storage import open_store
from smalti.writer import MDSWriter, ShardUploader, UploadOptions, uploader
from tests.stores import MemoryStore

SCHEMA = Schema.from_columns({"x": "bytes"})
OPTIONS = ShardOptions(size_limit=1000)
ROW = {"x": bytes(400)}  # two to a shard


def stored_rows(folder):
    """Return the number of samples of the newest version that can be read."""
    shards = load_manifest(open_store(folder)).shards
    return sum(len(Shard.open(folder / info.raw.basename, info)) for info in shards)


# ---------------------------------------------------------------------- after publishing has begun


def finish_twice(writer):
    writer.finish()
    with pytest.raises(ValueError, match="finished or aborted"):
        writer.finish()


def fail_after_finish(writer):
    with writer:
        writer.finish()
        raise ZeroDivisionError


def test_second_finish_leaves_the_published_version_whole(tmp_path):
    writer = MDSWriter(out=tmp_path, columns={"x": "bytes"})
    writer.write(ROW)
    finish_twice(writer)
    assert stored_rows(tmp_path) == 1


def test_error_after_finish_in_the_block_leaves_the_published_version_whole(tmp_path):
    writer = MDSWriter(out=tmp_path, columns={"x": "bytes"})
    writer.write(ROW)
    with pytest.raises(ZeroDivisionError):
        fail_after_finish(writer)
    assert stored_rows(tmp_path) == 1


def finish_in_block(writer):
    with writer:
        writer.finish()


def test_publishing_that_fails_unclearly_in_the_block_deletes_no_shard(tmp_path):
    writer = MDSWriter(out=tmp_path, columns={"x": "bytes"})
    writer.write(ROW)
    shutil.rmtree(tmp_path / "_versions")
    (tmp_path / "_versions").write_text("a file where the folder of the versions belongs")
    with pytest.raises(OSError, match="_versions"):
        finish_in_block(writer)
    assert len(list(tmp_path.rglob("shard.00000.mds"))) == 1


# ---------------------------------------------------------------------- interrupts


@pytest.fixture(autouse=True)
def interrupts_arrive():
    """Have Ctrl-C raise `KeyboardInterrupt`: a background job of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class InterruptingStore(MemoryStore):
    """A store that interrupts the main thread, as Ctrl-C does, while it waits for the first put."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()
        self.is_first = True

    def put(self, key, data):
        if self.is_first:
            self.is_first = False
            # More than once: a signal between two instructions before the main thread's wait does not end that wait.
            for _ in range(12):
                os.kill(os.getpid(), signal.SIGINT)
                if self.go_on.wait(5):
                    break
            assert self.go_on.is_set()
            time.sleep(0.1)  # the object arrives while `abort` is running
        super().put(key, data)


def write_many(target):
    for _ in range(20):
        target.write(ROW)


def test_interrupted_write_cannot_be_finished_as_if_nothing_were_missing():
    store = InterruptingStore()
    target = ShardUploader(store, "w", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(max_workers=1))
    with pytest.raises(KeyboardInterrupt):
        write_many(target)
    store.go_on.set()
    for call in (target.finish, lambda: target.write(ROW)):
        with pytest.raises(ValueError, match="this writer was interrupted"):
            call()
    assert target.abort() == ()
    assert store.objects == {}


def test_interrupted_finish_cannot_be_repeated_with_a_shard_missing():
    store = InterruptingStore()
    target = ShardUploader(store, "w", ShardBuilder(SCHEMA, OPTIONS), uploads=UploadOptions(max_workers=4))
    target.write(ROW)
    with pytest.raises(KeyboardInterrupt):
        target.finish()
    store.go_on.set()
    with pytest.raises(ValueError, match="this writer was interrupted"):
        target.finish()
    assert target.abort() == ()
    assert store.objects == {}


class InterruptedByBlocks(MemoryStore):
    """A store whose first put of block lists is interrupted, as by Ctrl-C."""

    is_first = True

    def put(self, key, data):
        if "/blocks." in key and self.is_first:
            self.is_first = False
            raise KeyboardInterrupt
        super().put(key, data)


def write_four(target, row):
    for _ in range(4):
        target.write(row)
    target.finish()


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_interrupt_while_block_lists_are_stored_is_raised_once_and_then_explained(monkeypatch, max_bytes):
    monkeypatch.setattr(uploader, "_BLOCK_FILE_BYTES", max_bytes)  # stored by `write`, or by `finish`
    store, row = InterruptedByBlocks(), {"x": bytes(150_000)}
    builder = ShardBuilder(SCHEMA, ShardOptions(size_limit=200_000))
    target = ShardUploader(store, "w", builder, uploads=UploadOptions(max_workers=1))
    with pytest.raises(KeyboardInterrupt):
        write_four(target, row)
    for call in (target.finish, lambda: target.write(row)):
        with pytest.raises(ValueError, match="this writer was interrupted"):
            call()
    assert target.abort() == ()
    assert store.objects == {}


WANT_OF_MEMORY = """
import resource
from smalti.format import Schema, ShardBuilder, ShardOptions

builder = ShardBuilder(Schema.from_columns({"x": "bytes"}), ShardOptions(size_limit=None))
row = {"x": bytes(1 << 22)}
builder.add(row)
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 27), -1))
taken = 1
try:
    while taken < 200:
        builder.add(row)
        taken += 1
except MemoryError:
    print("out of memory", taken > 10)
for call in (builder.finish, lambda: builder.add(row)):
    try:
        call()
    except ValueError as error:
        print("make a new builder" in str(error))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_builder_that_ran_out_of_memory_gives_no_shard_that_lacks_samples():
    done = subprocess.run(
        [sys.executable, "-c", WANT_OF_MEMORY], capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.stdout.split("\n"), done.stderr) == (["out of memory True", "True", "True", ""], "")


# ---------------------------------------------------------------------- forks


def abort_in_fork(target, connection):
    connection.send(target.abort())


def write_in_fork(target, connection):
    try:
        write_many(target)
    except SmaltiError as error:
        connection.send(str(error))


def finish_in_fork(target, connection):
    try:
        target.finish()
    except SmaltiError as error:
        connection.send(str(error))


@pytest.mark.process
@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # Python 3.12: it is, on purpose
@pytest.mark.parametrize("work", [abort_in_fork, write_in_fork, finish_in_fork])
def test_a_forked_copy_of_a_writer_leaves_the_parents_shards_alone(tmp_path, work):
    target = ShardUploader(open_store(tmp_path), "w", ShardBuilder(SCHEMA, OPTIONS))
    for _ in range(5):
        target.write(ROW)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=work, args=(target, there))
    child.start()
    assert here.poll(120)
    answer = here.recv()
    child.join(120)
    assert child.exitcode == 0
    assert answer == () if work is abort_in_fork else "made before a fork" in answer
    shards = target.finish()
    assert [shard.samples for shard in shards] == [2, 2, 1]
    assert all((tmp_path / shard.stored.basename).stat().st_size == shard.stored.num_bytes for shard in shards)
