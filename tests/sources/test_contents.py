"""Contents of many files as Arrow arrays: every byte, in order, in bounded batches, from any store."""

import threading

import pytest

from smalti.errors import StoreError, StoreNotFound
from smalti.sources import contents
from smalti.sources.contents import BATCH_BYTES, read_contents
from smalti.storage import open_store
from tests.stores import MemoryStore


def contents_of(number, size):
    return bytes([number % 251]) * size


def test_files_are_read_in_order_and_in_batches_that_stay_valid(tmp_path):
    sizes = [0, 1, BATCH_BYTES - 1, 3, BATCH_BYTES, BATCH_BYTES + 1, 2 * BATCH_BYTES, 3 * BATCH_BYTES + 7, 5, 0]
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(contents_of(number, size))
    arrays = list(read_contents(open_store(tmp_path), [str(number) for number in range(len(sizes))]))
    assert len(arrays) > 3
    found = [value for array in arrays for value in array.to_pylist()]
    assert found == [contents_of(number, size) for number, size in enumerate(sizes)]


def test_empty_files_before_a_file_larger_than_a_batch_keep_their_places(tmp_path):
    large = contents_of(7, 2 * BATCH_BYTES)
    for name, content in {"a": b"", "b": b"", "c": large, "d": b"small"}.items():
        (tmp_path / name).write_bytes(content)
    arrays = read_contents(open_store(tmp_path), ["a", "b", "c", "d"])
    assert [value for array in arrays for value in array.to_pylist()] == [b"", b"", large, b"small"]


def test_memory_is_reused_only_after_its_last_slice_is_gone(tmp_path):
    for number in range(6):
        (tmp_path / str(number)).write_bytes(contents_of(number, BATCH_BYTES))
    slices = [array.slice(0, 1) for array in read_contents(open_store(tmp_path), list("012345"))]
    assert [piece[0].as_py() for piece in slices] == [contents_of(number, BATCH_BYTES) for number in range(6)]


def test_many_small_files_are_several_batches(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    assert [len(array) for array in read_contents(open_store(tmp_path), ["a"] * 2500)] == [1024, 1024, 452]


def test_objects_of_a_remote_store_are_read_in_order():
    store = MemoryStore()
    for number in range(100):
        store.put(f"x/{number}", contents_of(number, number))
    arrays = list(read_contents(store, [f"x/{number}" for number in range(100)]))
    assert [value for array in arrays for value in array.to_pylist()] == [contents_of(n, n) for n in range(100)]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_missing_file_is_named(is_local, tmp_path):
    store = open_store(tmp_path) if is_local else MemoryStore()
    store.put("a", b"1")
    with pytest.raises(StoreNotFound, match="gone"):
        list(read_contents(store, ["a", "gone"]))


def test_no_files_are_no_batches(tmp_path):
    assert list(read_contents(open_store(tmp_path), [])) == []
    assert list(read_contents(MemoryStore(), [])) == []


def test_files_of_known_sizes_are_read_ahead_within_a_limit_of_bytes(monkeypatch):
    monkeypatch.setattr(contents, "_BYTES_AHEAD", 250)
    store = MemoryStore()
    keys = [f"x/{number}" for number in range(8)]
    for key in keys:
        store.put(key, bytes(100))
    lock, active, peak, get = threading.Lock(), 0, 0, store.get

    def counted(key):
        nonlocal active, peak
        with lock:
            active, peak = active + 1, max(peak, active + 1)
        data = get(key)
        with lock:
            active -= 1
        return data

    monkeypatch.setattr(store, "get", counted)
    arrays = list(read_contents(store, ["x/0", *keys], [900, *[100] * 8]))
    assert [len(value) for array in arrays for value in array.to_pylist()] == [100] * 9
    assert peak <= 2


def test_a_large_file_that_grew_since_it_was_listed_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(bytes(2 * BATCH_BYTES + 1))
    with pytest.raises(StoreError, match=r"a changed while its folder was read: it had 5 bytes, and has 16,777,217"):
        list(read_contents(open_store(tmp_path), ["a"], [5]))
