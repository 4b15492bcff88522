"""Copies laid out as the data set (`CacheOptions.mirror`), in a folder that may hold other files of the user."""

from multiprocessing import get_context
from pathlib import Path

import pytest

from smalti.cache import CacheOptions, ShardCache
from smalti.stream import StreamOptions
from smalti.stream.shard_set import find_shard_set
from tests.shard_sets import write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Path(write_set(tmp_path_factory.mktemp("set") / "root", 60))


def cache_of(root, local, limit=None):
    options = CacheOptions(local=str(local), mirror=True)
    found = find_shard_set(StreamOptions(str(root), cache=options))
    return ShardCache(found.sources[0], limit=limit), found


def shard_files(folder):
    return {path.relative_to(folder): path.stat().st_size for path in Path(folder).rglob("*.mds")}


def test_copies_have_the_names_of_the_set_also_on_the_same_machine(root, tmp_path):
    cache, found = cache_of(root, tmp_path)
    for shard_id in range(len(found.shards)):
        cache.shard(shard_id)
    assert shard_files(tmp_path) == shard_files(root)
    assert cache.kept_bytes() == sum(shard_files(root).values())


def test_a_limit_counts_and_evicts_copies_only(root, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("n" * 5000)
    cache, found = cache_of(root, tmp_path, limit=1500)
    for _ in range(2):
        for shard_id in range(len(found.shards)):
            assert cache.shard(shard_id)[0]["id"] >= 0
            assert sum(shard_files(tmp_path).values()) <= 1500
    assert notes.stat().st_size == 5000
    assert 0 < cache.kept_bytes() <= 1500


def test_one_shard_is_evicted_when_asked(root, tmp_path):
    cache, found = cache_of(root, tmp_path)
    assert cache.kept_bytes() == cache.evict_last_needed() == 0
    for shard_id in (0, 1):
        cache.shard(shard_id)
    sizes = [shard.raw.num_bytes for shard in found.shards]
    assert cache.evict(1) == sizes[1]
    assert cache.evict(1) == 0
    assert list(shard_files(tmp_path).values()) == [sizes[0]]
    assert cache.evict_last_needed() == sizes[0]
    assert not shard_files(tmp_path)
    assert cache.shard(1)[0]["id"] > 0, "it is fetched again"


def test_a_set_that_is_its_own_mirror_is_read_in_place_and_never_evicted(tmp_path):
    root = Path(write_set(tmp_path / "root", 60))
    before = shard_files(root)
    cache, found = cache_of(root, root, limit=700)
    for shard_id in range(len(found.shards)):
        cache.shard(shard_id)
    assert cache.evict(0) == cache.evict_last_needed() == cache.kept_bytes() == 0
    assert shard_files(root) == before


def test_a_compressed_set_without_hashes_that_is_unpacked_in_place_is_read_again(tmp_path):
    root = write_set(tmp_path / "root", 10, compression="gz", hashes=())
    cache, _ = cache_of(root, root)
    worker = get_context("fork").Process(target=cache.shard, args=(0,))  # unpacks the shard, as a loader's worker does
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert cache.shard(0)[3]["id"] == 3  # found in place


def test_a_mirror_needs_a_folder():
    with pytest.raises(ValueError, match="`mirror` needs `local`"):
        CacheOptions(mirror=True)
