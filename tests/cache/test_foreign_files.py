"""Files that others put into the cache's folders: none of them stops a reader, and no link is followed."""

import os
import socket

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource, inspect
from smalti.cache.leases import Lease, LeaseContents, read_leases
from smalti.errors import StoreError
from smalti.storage import LocalStore
from tests.cache.conftest import DIGEST, ids
from tests.stores import MemoryStore


@pytest.fixture
def limited(fill, tmp_path):
    """A cache with space for two of its shards, and its folder."""
    store = MemoryStore()
    infos = fill(store)
    options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=30.0)
    cache = ShardCache(ShardSource(store, DIGEST, infos, options), limit=2 * max(info.raw.num_bytes for info in infos))
    yield cache, tmp_path / "cache" / DIGEST
    cache.close()


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "precious"
    path.write_text("not the cache's")
    return path


def place(kind, path, precious):
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "dangling":
        path.symlink_to(precious.with_name("nothing"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's name is short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    else:
        path.write_bytes(b"\xff{[")


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket", "file"])
def test_foreign_files_among_the_leases_are_removed_and_stop_no_reader(limited, precious, kind):
    cache, root = limited
    cache.prefetch([0])
    place(kind, root / ".leases" / "1.abc", precious)
    assert ids(cache) == list(range(40))
    assert not (root / ".leases" / "1.abc").is_symlink()
    assert not (root / ".leases" / "1.abc").exists()
    assert precious.read_text() == "not the cache's"


@pytest.mark.parametrize("kind", ["link", "dangling", "socket", "file"])
@pytest.mark.parametrize("name", [".budget.lock", "train/w/.0shard.00001.mds.lock"])
def test_foreign_files_in_place_of_a_lock_are_not_followed_and_stop_no_reader(limited, precious, kind, name):
    cache, root = limited
    name = name.replace("0shard.00001.mds", os.path.basename(cache._sources[0].shards[1].raw.basename))
    folder = root / os.path.dirname(cache._sources[0].shards[1].raw.basename) if "/" in name else root
    place(kind, folder / os.path.basename(name), precious)
    assert ids(cache) == list(range(40))
    assert precious.read_text() == "not the cache's"
    assert [each.left for each in inspect.list_copies(root.parent)] == [0]


def test_a_folder_in_place_of_a_lock_is_an_error_with_its_path(limited):
    cache, root = limited
    (root / ".budget.lock").mkdir(parents=True, mode=0o700)
    with pytest.raises(StoreError, match=r"budget\.lock is a folder, and stands where a lock belongs; remove it"):
        cache.shard(0)


def test_foreign_files_in_the_folder_count_and_are_evicted_first(limited):
    cache, root = limited
    cache.shard(0)
    (root / "Thumbs.db").write_bytes(b"x" * 200)
    (root / "TRAIN").mkdir()
    (root / "TRAIN" / "shard.00000.MDS").write_bytes(b"y" * 200)
    assert ids(cache) == list(range(40))
    assert not (root / "Thumbs.db").exists()
    assert not (root / "TRAIN" / "shard.00000.MDS").exists(), "a name in another case is not a shard of the set"


def test_scrub_removes_links_and_pipes_among_leases_and_keeps_their_targets(limited, precious):
    cache, root = limited
    cache.shard(0)
    for kind in ("link", "pipe"):
        place(kind, root / ".leases" / kind, precious)
    (root / ".leases" / "folder").mkdir()
    place("link", root / ".x.mds.lock", precious)
    inspect.scrub(root.parent)
    assert [path.name for path in (root / ".leases").iterdir()] == ["folder"]
    assert [each.readers for each in inspect.list_copies(root.parent)] == [0]
    assert precious.read_text() == "not the cache's"


def test_a_lease_announces_shards_with_their_steps_until_it_is_released(tmp_path):
    tmp_path.chmod(0o700)
    lease = Lease(tmp_path)
    lease.renew(LeaseContents("order", 7, {"a.mds": 7, "b.mds": 1234567}))
    assert read_leases(tmp_path) == [LeaseContents("order", 7, {"a.mds": 7, "b.mds": 1234567})]
    lease.advance(12_345)
    assert read_leases(tmp_path) == [LeaseContents("order", 12_345, {"a.mds": 7, "b.mds": 1234567})]
    assert read_leases(tmp_path, lease.name) == []
    lease.release()
    assert read_leases(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"7", b"7\n", b"7\n[]", b'7\n{"order": 1, "soon": {}}', b'x\n{"order": "o", "soon": {}}',
     b"7\n" + b"[" * 9999,
     b'7\n{"order": "o", "soon": []}'],
)  # fmt: skip
def test_a_truncated_or_foreign_lease_announces_nothing(tmp_path, text):
    lease = Lease(tmp_path)
    lease.renew(LeaseContents("order", 7, {}))
    (tmp_path / ".leases" / lease.name).write_bytes(text)
    assert read_leases(tmp_path) == [LeaseContents()]
    lease.release()


def test_a_job_without_a_limit_has_no_lease_and_its_copies_may_be_evicted(fill, tmp_path):
    """Its open shards stay readable, and it fetches the rest again."""
    store = LocalStore(tmp_path / "set")
    infos = fill(store, compression="zstd")
    options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=30.0)
    free = ShardCache(ShardSource(store, DIGEST, infos, options))
    held = free.shard(0)
    assert ids(free) == list(range(40))
    assert not (tmp_path / "cache" / DIGEST / ".leases").exists()
    limit = 2 * max(info.raw.num_bytes for info in infos)
    limited = ShardCache(ShardSource(store, DIGEST, infos, options), limit=limit)
    limited.shard(0)
    (tmp_path / "cache" / DIGEST / infos[1].raw.basename).unlink()
    limited.shard(1)  # the first fetch evicts down to the limit
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds")) <= limit
    assert held[0]["id"] == 0
    assert ids(free) == list(range(40))
    limited.close()
    free.close()
