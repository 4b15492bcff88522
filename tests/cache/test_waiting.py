"""Waiting for another process that fetches the same shard."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from smalti.cache.files import FileLock, lock_of
from smalti.errors import ShardNotFound
from smalti.storage.retry import Deadline
from tests.cache.conftest import DIGEST
from tests.stores import MemoryStore


@pytest.mark.slow
def test_time_spent_waiting_for_another_process_counts_towards_the_not_found_time(fill, make_cache, tmp_path):
    """Otherwise four workers that wait in turn for a missing shard exceed the deadline: the last one times out."""
    store = MemoryStore()
    infos = fill(store)
    info = infos[2]
    del store.objects[info.stored.basename]
    cache = make_cache(store, infos, timeout=10.0)  # "not found" is retried for a second
    target = tmp_path / "cache" / DIGEST / info.raw.basename
    target.parent.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with FileLock(lock_of(target), Deadline(60), "the other process"):
            waiting = pool.submit(cache.shard, 2)
            time.sleep(1.5)
        assert isinstance(waiting.exception(timeout=120), ShardNotFound)
    assert len([call for call in store.calls if call.op == "fetch"]) == 2, "as often as `download_retry` says"
