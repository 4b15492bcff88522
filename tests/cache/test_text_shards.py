"""Shards of two files in a cache: both are published, or neither."""

from pathlib import Path

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.catalog import load_manifest
from smalti.errors import StoreError
from smalti.storage import LocalStore
from tests.stores import LoggedStore
from tests.text_writers import JSONWriter


class Watched(LoggedStore):
    """A store that lists the cache's files before it sends the second file of a shard, and can fail to send it."""

    def __init__(self, inner, log, cache: Path, failures: int = 0):
        super().__init__(inner, log)
        self.cache, self.seen, self.failures = cache, [], failures

    def fetch(self, key, out, *, on_chunk=None):
        if key.endswith(".meta"):
            self.seen += [path.name for path in self.cache.rglob("shard*") if path.is_file()]
            if self.failures:
                self.failures -= 1
                raise StoreError(f"{key}: planted")
        return super().fetch(key, out, on_chunk=on_chunk)


@pytest.fixture
def texts(tmp_path):
    with JSONWriter(out=str(tmp_path / "set"), columns={"id": "int", "text": "str"}, size_limit=400) as writer:
        for number in range(40):
            writer.write({"id": number, "text": f"line {number}"})
    return tmp_path / "set"


def cache_of(texts, tmp_path, **options):
    store = Watched(LocalStore(texts), tmp_path / "log", tmp_path / "cache", **options)
    manifest = load_manifest(str(texts))
    chosen = CacheOptions(local=str(tmp_path / "cache"), download_retry=2, download_timeout=30.0)
    return ShardCache(ShardSource(store, manifest.digest, list(manifest.shards), chosen)), store


def test_the_files_of_a_text_shard_are_published_together(texts, tmp_path):
    """A published file may be evicted by another process: half of the shard could be missing at once."""
    cache, store = cache_of(texts, tmp_path)
    assert [row["id"] for row in cache.shard(0)] == list(range(len(cache.shard(0))))
    assert store.seen == []
    assert len([path for path in (tmp_path / "cache").rglob("shard*") if path.is_file()]) == 2


def test_a_failed_second_file_does_not_cost_the_first_one_again(texts, tmp_path):
    cache, store = cache_of(texts, tmp_path, failures=1)
    assert cache.shard(0)[0]["id"] == 0
    assert [key.endswith(".meta") for _, key, _ in store.lines("fetch")] == [
        False,
        True,
    ]  # the failed request is not in the log


def test_a_text_shard_whose_second_file_keeps_failing_leaves_no_files(texts, tmp_path):
    cache, _ = cache_of(texts, tmp_path, failures=9)
    with pytest.raises(StoreError, match="meta file"):
        cache.shard(0)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert left == []
