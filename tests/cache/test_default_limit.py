"""The default limit: half of the disk space that is free at the start."""

import shutil

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource, default_cache_limit
from smalti.storage import LocalStore
from tests.cache.conftest import DIGEST, ids
from tests.stores import LoggedStore


@pytest.fixture
def far(fill, tmp_path):
    """A source that has to be copied, to a folder that does not exist yet."""
    store = LoggedStore(LocalStore(tmp_path / "set"), tmp_path / "log")
    return ShardSource(store, DIGEST, fill(store), CacheOptions(local=str(tmp_path / "not" / "yet")))


def limit_of(source, *, free, kind="ext4"):
    """Return the limit on a disk with so many free bytes and this kind of file system."""
    asked = []

    def free_bytes(folder):
        asked.append(folder)
        return free

    limit = default_cache_limit(source, free_bytes=free_bytes, filesystem=lambda _: kind)
    assert all(folder.exists() for folder in asked)
    return limit


def test_the_default_limit_is_half_of_the_free_space(far):
    assert limit_of(far, free=1_000_000) == 500_000


def test_existing_copies_of_the_set_count_as_free_space(far, tmp_path):
    assert len(ids(ShardCache(far))) == 40
    held = sum(path.stat().st_size for path in (tmp_path / "not" / "yet" / DIGEST).rglob("*") if path.is_file())
    assert held == sum(info.raw.num_bytes for info in far.shards)
    assert limit_of(far, free=1_000_000 - held) == 500_000


def test_copies_of_other_sets_do_not_count_as_free_space(far, tmp_path):
    assert len(ids(ShardCache(far))) == 40
    (tmp_path / "not" / "yet" / DIGEST).rename(tmp_path / "not" / "yet" / ("e" * 64))
    assert limit_of(far, free=1_000_000) == 500_000


def test_the_default_limit_is_at_least_the_largest_shard(far):
    assert limit_of(far, free=10) == max(info.raw.num_bytes for info in far.shards)


def test_there_is_no_default_limit_for_shards_read_in_place(far, fill, tmp_path):
    near = LocalStore(tmp_path / "set")
    options = CacheOptions(local=str(tmp_path / "cache"))
    assert limit_of(ShardSource(near, DIGEST, far.shards, options), free=1_000_000) is None
    zipped = fill(near, compression="zstd")
    assert limit_of(ShardSource(near, DIGEST, zipped, options), free=1_000_000) == 500_000


def test_there_is_no_default_limit_on_a_network_file_system(far):
    assert limit_of(far, free=1_000_000, kind="nfs4") is None


def test_free_space_is_detected_on_this_machine(far, tmp_path):
    limit = default_cache_limit(far)
    assert limit is not None
    assert 0 < limit < shutil.disk_usage(tmp_path).total
