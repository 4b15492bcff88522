"""F3, F8, F9: a reader that is killed before any step of its work, or whose copies vanish before it opens them."""

import hashlib
import os

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from tests.cache.conftest import DIGEST, ids
from tests.faults.cache_steps import die_before, lose_before_opening, record
from tests.faults.cached_sets import copies
from tests.faults.test_f_deaths import leftovers
from tests.storage.test_process import in_fork
from tests.stores import MemoryStore

pytestmark = pytest.mark.process

EVERY_STEP = bool(os.environ.get("SMALTI_EVERY_STEP"))
"""True to kill a reader before every step; otherwise before every fourth."""
WAYS = [
    pytest.param(None, False, False, id="raw"),
    pytest.param("zstd", False, True, id="zstd-limit"),
    pytest.param("zstd", True, True, id="zstd-limit-keep_zip"),
]
"""Compression, `keep_zip`, and whether there is a limit."""


@pytest.fixture
def readers(fill, tmp_path):
    """Return a function that makes caches over three shards; a limit has space for two of them."""

    def prepare(compression, *, keep_zip, limited):
        store = MemoryStore()
        infos = fill(store, compression=compression)[:3]
        held = max(info.raw.num_bytes + (info.zip.num_bytes if keep_zip else 0) for info in infos)
        options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=20.0, keep_zip=keep_zip)
        limit = 2 * held if limited else None
        return lambda: ShardCache(ShardSource(store, DIGEST, infos, options), limit=limit)

    return prepare


def hashed(local):
    """Return the hash of each copy by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in copies(local)}


@pytest.mark.slow
@pytest.mark.parametrize(("compression", "keep_zip", "limited"), WAYS)
def test_f9_a_reader_killed_before_any_step_leaves_whole_copies_and_the_next_one_is_exact(
    readers, tmp_path, compression, keep_zip, limited
):
    """Steps are opening, locking, reserving, syncing, renaming, evicting, removing."""
    make, local = readers(compression, keep_zip=keep_zip, limited=limited), tmp_path / "cache"
    ahead = readers(compression, keep_zip=keep_zip, limited=False)()
    expected = ids(ahead)
    whole = hashed(local)
    assert len(whole) == (6 if keep_zip else 3)
    ahead.close()

    def steps():
        seen = record(local)
        assert ids(make()) == expected
        return " ".join(seen)

    names = set()
    for number in range(1, 1000, 1 if EVERY_STEP else 4):
        clear(local)
        if not names:
            names = set(in_fork(steps).split())
            clear(local)

        def work(number=number):
            die_before(local, number)
            return len(ids(make()))

        ended = in_fork(work)
        assert hashed(local).items() <= whole.items(), f"killed before step {number}"
        if ended != "nothing: killed after the deadline":
            break
        cache = make()
        if limited:  # any reader with a limit removes temporaries of dead processes
            for path in copies(local):
                path.unlink()
            cache.shard(0)
            assert leftovers(local) == [], f"killed before step {number}"
        assert ids(cache) == expected
        cache.close()
        assert leftovers(local) == []
    assert ended == str(len(expected)), "there are more steps than were tried"
    assert number > (45 if limited else 30)
    assert {"open", "fcntl.flock", "os.rename", "os.remove", "fsync"} <= names


def clear(local):
    for path in list(local.rglob("*")):
        if path.is_file():
            path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(("compression", "keep_zip", "limited"), WAYS)
@pytest.mark.slow
def test_f3_a_copy_that_is_removed_before_it_is_opened_is_fetched_again(
    readers, tmp_path, compression, keep_zip, limited
):
    """The copy is removed before its first to fifth opening, or before every third, in a cold and a warm cache."""
    make, local = readers(compression, keep_zip=keep_zip, limited=limited), tmp_path / "cache"
    chosen = [lambda count, at=at: count == at for at in range(1, 6)] + [lambda count: count % 3 == 0]
    for is_warm in (False, True):
        for lose in chosen:
            clear(local)

            def work(lose=lose, is_warm=is_warm):
                expected = ids(make()) if is_warm else list(range(len(ids(make()))))
                if not is_warm:
                    clear(local)
                lost = lose_before_opening(local, lose)
                assert ids(make()) == expected
                return f"exact without {len(lost)}"

            ended = in_fork(work)
            assert ended.startswith("exact without")
            assert ended != "exact without 0" or lose in chosen[2:5]
