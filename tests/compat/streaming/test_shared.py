"""Objects in named shared memory: created, attached to from other processes, and removed by their creator alone."""

import os
import pickle
import secrets
import subprocess
import sys
import threading
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as BuiltinSharedMemory
from types import SimpleNamespace

import numpy as np
import pytest

from smalti.compat.streaming.base import shared
from smalti.compat.streaming.base.shared import (
    SharedArray,
    SharedBarrier,
    SharedMemory,
    SharedScalar,
    _get_path,
    _pack_locals,
    _unpack_locals,
    get_shm_prefix,
)
from smalti.compat.streaming.base.util import clean_stale_shared_memory

LEADER, OTHER = SimpleNamespace(is_local_leader=True), SimpleNamespace(is_local_leader=False)


@pytest.fixture
def name():
    return f"smalti-{secrets.token_hex(4)}"


@pytest.fixture
def cleaned():
    """A list; what a test puts there is cleaned up."""
    things = []
    yield things
    for thing in things:
        thing.cleanup()


def exists(name):
    try:
        SharedMemory(name, create=False, auto_cleanup=False).cleanup()
    except FileNotFoundError:
        return False
    return True


def test_memory_is_created_attached_to_and_removed_by_its_creator(name):
    mine = SharedMemory(name, True, 8)
    mine.buf[:3] = b"abc"
    theirs = SharedMemory(name, False)
    either = SharedMemory(name, size=8)
    assert bytes(theirs.buf[:3]) == bytes(either.buf[:3]) == b"abc"
    assert ([len(mine.created_shms), len(mine.opened_shms)], len(either.opened_shms)) == ([1, 0], 1)
    with pytest.raises(FileExistsError):
        SharedMemory(name, True, 8)
    theirs.cleanup()
    either.cleanup()
    assert exists(name)
    mine.cleanup()
    mine.cleanup()
    assert not exists(name)
    with pytest.raises(FileNotFoundError):
        SharedMemory(name, False)


def test_memory_that_is_still_used_or_was_removed_is_cleaned_up_without_an_error(name):
    mine, theirs = SharedMemory(name, size=8), SharedMemory(name, size=8)
    view = np.frombuffer(mine.buf, np.uint8)
    mine.cleanup()
    assert not exists(name)
    assert view.sum() == 0
    again = SharedMemory(name, True, 8)
    os.unlink(f"/dev/shm/{name}") if os.path.exists(f"/dev/shm/{name}") else again.shm.unlink()
    again.cleanup()
    theirs.cleanup()


@pytest.mark.process
def test_another_process_shares_an_array_and_does_not_remove_it_at_its_end(name, cleaned):
    array = SharedArray((2, 3), np.int64, name)
    cleaned.append(array.shm)
    array[0] = [1, 2, 3]
    code = (
        "import numpy as np; from smalti.compat.streaming.base.shared import SharedArray; "
        f"a = SharedArray((2, 3), np.int64, {name!r}); a[1] = a[0] * 2"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")
    assert array.numpy().tolist() == [[1, 2, 3], [2, 4, 6]]
    assert exists(name)


def test_an_array_has_its_shape_and_dtype_and_a_scalar_its_value(name, cleaned):
    array = SharedArray(4, np.uint8, name)
    cleaned.append(array.shm)
    assert (array.shape, len(array), array.dtype, array.name) == ((4,), 4, np.uint8, name)
    array[1:3] = 7
    assert array[[0, 1, 2]].tolist() == [0, 7, 7]
    scalar = SharedScalar(np.float32, f"{name}-s")
    cleaned.append(scalar.arr.shm)
    scalar.set(1.5)
    assert SharedScalar(np.float32, f"{name}-s").get() == np.float32(1.5)


def test_an_array_can_be_pickled(name, cleaned):
    array = SharedArray(2, np.int32, name)
    cleaned.append(array.shm)
    array[0] = 5
    copy = pickle.loads(pickle.dumps(array))
    assert copy[0] == 5


def test_processes_leave_a_barrier_together_round_after_round(name, tmp_path, cleaned):
    barriers = [SharedBarrier(str(tmp_path / "lock"), name) for _ in range(3)]
    cleaned += [each._arr.shm for each in barriers]
    assert (barriers[1].num_enter, barriers[1].num_exit, barriers[1].flag) == (0, -1, True)
    counts, faults = [0] * 3, []

    def run(place):
        try:
            for turn in range(20):
                counts[place] = turn + 1
                barriers[place](3)
                # Nobody is more than one round ahead, or behind.
                assert min(counts) >= turn + 1
                assert max(counts) <= turn + 2
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert faults == []
    assert counts == [20] * 3
    assert (barriers[0].num_enter, barriers[0].num_exit) == (0, -1)


def test_a_barrier_that_others_never_reach_is_a_timeout(name, tmp_path, monkeypatch, cleaned):
    monkeypatch.setattr(shared, "BARRIER_SECONDS", 0.05)
    lonely = SharedBarrier(str(tmp_path / "lock"), name)
    cleaned.append(lonely._arr.shm)
    with pytest.raises(TimeoutError, match="2 processes to reach the barrier"):
        lonely(2)


def test_ranks_of_a_machine_find_the_entry_that_their_first_one_registers(name, cleaned):
    folders = [f"/{name}/a", f"/{name}/b"]
    number, memory = get_shm_prefix(folders, ["s3://x/a", None], LEADER)
    cleaned.append(memory)
    assert exists(f"{number:06}_locals")
    assert get_shm_prefix(folders, ["s3://x/a", None], OTHER)[0] == number
    with pytest.raises(RuntimeError, match="was not registered by local leader"):
        get_shm_prefix(folders[:1], ["s3://x/a"], OTHER)


def test_a_folder_that_a_running_job_downloads_into_is_a_value_error(name, cleaned):
    folders = [f"/{name}/a", f"/{name}/b"]
    number, memory = get_shm_prefix(folders, ["s3://x/a", "s3://x/b"], LEADER)
    cleaned.append(memory)
    with pytest.raises(ValueError, match=f"Reused local directory: .*{name}/b.* of a running job"):
        get_shm_prefix([f"/{name}/b"], ["s3://x/b"], LEADER, retry=1)
    another, local = get_shm_prefix([f"/{name}/b"], [None], LEADER)
    cleaned.append(local)
    assert another > number
    memory.cleanup()
    local.cleanup()
    again, freed = get_shm_prefix([f"/{name}/b"], ["s3://x/b"], LEADER)
    cleaned.append(freed)
    assert again <= another


def test_cleaning_removes_the_entries_of_this_process_and_nothing_else(name, cleaned):
    folders = [f"/{name}/a"]
    own = SharedMemory(name, True, 8)
    number, first = get_shm_prefix(folders, ["s3://x/a"], LEADER)
    cleaned += [own, first]
    clean_stale_shared_memory()
    assert exists(name), "it has no name of an entry"
    assert not exists(f"{number:06}_locals")
    again, second = get_shm_prefix(folders, ["s3://x/a"], LEADER, retry=0)
    cleaned.append(second)
    first.cleanup()
    assert exists(_get_path(again, "locals")), "the first was removed before"
    assert _unpack_locals(_pack_locals(folders, 7)) == (folders, 7)


def test_a_folder_that_occurs_twice_and_negative_retries_are_value_errors():
    with pytest.raises(ValueError, match=r"Reused local directory: \['/a'\]"):
        get_shm_prefix(["/a", "/b", "/a"], [None] * 3, LEADER)
    with pytest.raises(ValueError, match="at least zero retries"):
        get_shm_prefix(["/a"], [None], LEADER, retry=-1)


def test_memory_that_was_cleaned_up_cannot_be_used(name):
    memory = SharedMemory(name, True, 8)
    memory.cleanup()
    with pytest.raises(ValueError, match="was cleaned up"):
        memory.buf  # noqa: B018


@pytest.fixture
def left_over():
    """Return a function that makes a block as a killed process leaves it."""
    names = []

    def leave(name, data):
        block = BuiltinSharedMemory(name, create=True, size=len(data))
        block.buf[: len(data)] = data
        resource_tracker.unregister(block._name, "shared_memory")
        block.close()
        names.append(name)

    yield leave
    assert not any(map(exists, names))


STALE = np.array([1, -1, 1, 9], np.int32).tobytes()


def test_what_a_killed_process_left_is_taken_over_by_none_of_the_objects(name, tmp_path, cleaned, left_over):
    for kind in "bams":
        left_over(f"{name}-{kind}", STALE)
    barrier = SharedBarrier(str(tmp_path / "lock"), f"{name}-b")
    array = SharedArray((2, 8), np.int64, f"{name}-a")  # larger than what was left
    memory = SharedMemory(f"{name}-m", size=4)
    scalar = SharedScalar(np.int32, f"{name}-s")
    cleaned += [barrier._arr.shm, array.shm, memory, scalar.arr.shm]
    barrier(1)  # returns at once
    assert (barrier.num_enter, array.numpy().any(), bytes(memory.buf[:4]), scalar.get()) == (0, False, bytes(4), 0)
    assert SharedScalar(np.int32, f"{name}-s").arr.shm.opened_shms  # one in use is attached to
    for thing in cleaned:
        thing.cleanup()


def test_an_entry_of_a_killed_job_does_not_block_its_folder_and_one_of_mosaicmls_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "_get_path", lambda number, kind: f"smalti-{tmp_path.name[-8:]}-{number:06}_{kind}")
    folder = str(tmp_path)
    entries = [_pack_locals([folder], 0) + shared._OURS, _pack_locals([folder], 1)]
    blocks = [
        BuiltinSharedMemory(shared._get_path(n, "locals"), create=True, size=len(e)) for n, e in enumerate(entries)
    ]
    for block, entry in zip(blocks, entries, strict=True):
        block.buf[: len(entry)] = entry
    with pytest.raises(ValueError, match="Reused local directory"):
        get_shm_prefix([folder], ["s3://there"], LEADER, retry=0)
    assert not exists(blocks[0].name)
    blocks[1].unlink()
    number, memory = get_shm_prefix([folder], ["s3://there"], LEADER, retry=0)
    assert number == 0
    memory.cleanup()
    for block in blocks:
        block.close()
    resource_tracker.unregister(blocks[0]._name, "shared_memory")


def test_an_array_that_is_larger_than_that_of_a_running_process_is_refused(name, cleaned):
    cleaned.append(SharedArray(2, np.int32, name).shm)
    with pytest.raises(ValueError, match="give the same shape"):
        SharedArray(1 << 20, np.int32, name)
