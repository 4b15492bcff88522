"""Conditional puts on a disk and in memory are atomic."""

import fcntl
import os
import random
import secrets
import sys
import threading
from contextlib import contextmanager

import pytest

from smalti.errors import StoreConflict
from smalti.storage import LocalStore, open_store


@contextmanager
def locked(folder, kind):
    """Hold the folder's lock, as another process would."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, kind)
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (fcntl.LOCK_SH, lambda store, etag: store.put_if_match("k", b"new", etag)),
        (fcntl.LOCK_EX, lambda store, etag: store.put("k", b"new")),
        (fcntl.LOCK_EX, lambda store, etag: store.delete("k")),
    ],
    ids=["a conditional put waits for a put", "a put waits for a conditional one", "a deletion waits for it"],
)
def test_no_other_put_or_delete_happens_between_comparison_and_rename(tmp_path, kind, change):
    store = LocalStore(tmp_path)
    store.put("k", b"old")
    etag = store.get_tagged("k").etag
    thread = threading.Thread(target=change, args=(store, etag), daemon=True)
    with locked(tmp_path, kind):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "it waits"
        assert store.get("k") == b"old"
    thread.join(60)
    assert not thread.is_alive()
    assert not store.exists("k") or store.get("k") == b"new"


def test_no_lock_file_remains(tmp_path):
    store = LocalStore(tmp_path)
    store.put("k", b"old")
    store.put_if_match("k", b"new", store.get_tagged("k").etag)
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_in_memory_exactly_one_of_four_writers_wins_each_round():
    store, wins = open_store(f"memory://{secrets.token_hex(6)}"), []
    store.put("k", b"0")
    start, interval = threading.Barrier(4, timeout=500), sys.getswitchinterval()

    def race():
        for turn in range(100):
            start.wait()
            etag = store.get_tagged("k").etag
            start.wait()
            try:
                store.put_if_match("k", random.randbytes(8), etag)
            except StoreConflict:
                continue
            wins.append(turn)

    threads = [threading.Thread(target=race, daemon=True) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(wins) == list(range(100))
