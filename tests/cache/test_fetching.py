"""Fetching shards: in place, fetched, verified, repaired; every fault is planted in the store."""

import os
import pickle
import shutil
import stat
import threading
import time
from types import SimpleNamespace

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.cache.fetch import _FullDisk
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.storage import LocalStore
from smalti.storage.retry import Deadline
from tests.cache.conftest import DIGEST, ids
from tests.stores import LoggedStore, MemoryStore


def fetches(store, key="*"):
    return [call.key for call in store.calls if call.op == "fetch" and key in ("*", call.key)]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_remote_shards_arrive_and_read_back(fill, make_cache, compression, tmp_path):
    store = MemoryStore()
    infos = fill(store, 40, compression=compression)
    cache = make_cache(store, infos)
    assert ids(cache) == list(range(40))
    assert sorted(fetches(store)) == sorted(info.stored.basename for info in infos), "each fetched once"
    assert files(tmp_path / "cache" / DIGEST) == sorted(info.raw.basename for info in infos), "raw files, nothing else"


def test_sets_without_checksums_never_share_copies(fill, make_cache):
    """Rows of fixed size make their index files and digests equal, while the contents differ."""
    stores = [MemoryStore("memory://one"), MemoryStore("memory://two")]
    infos = [fill(store, hashes=()) for store in stores]
    for info in infos[1]:
        data = stores[1].get(info.raw.basename)
        stores[1].put(info.raw.basename, data.replace(b"row ", b"ROW "))
    assert infos[0] == infos[1]
    texts = [make_cache(store, infos[0]).shard(1)[0]["text"] for store in stores * 2]
    assert [text[:4] for text in texts] == ["row ", "ROW "] * 2
    assert all(len([call for call in store.calls if call.op == "fetch"]) == 1 for store in stores), "copies are kept"


def test_keep_zip_keeps_the_compressed_file(fill, make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store, compression="zstd")
    ids(make_cache(store, infos, keep_zip=True))
    kept = tmp_path / "cache" / DIGEST / infos[0].stored.basename
    assert kept.read_bytes() == store.get(infos[0].stored.basename)


def test_nothing_happens_before_the_first_use(fill, make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store)
    before, threads = len(store.calls), threading.active_count()
    make_cache(store, infos)
    assert len(store.calls) == before
    assert threading.active_count() == threads
    assert not (tmp_path / "cache").exists()


def test_local_raw_shards_are_mapped_where_they_lie(fill, make_cache, tmp_path):
    store = LocalStore(tmp_path / "set")
    infos = fill(store)
    assert ids(make_cache(store, infos)) == list(range(40))
    assert not (tmp_path / "cache").exists()


def test_local_compressed_shards_are_unpacked_into_the_cache(fill, make_cache, tmp_path):
    store = LocalStore(tmp_path / "set")
    infos = fill(store, compression="zstd")
    assert ids(make_cache(store, infos)) == list(range(40))
    assert files(tmp_path / "cache" / DIGEST) == sorted(info.raw.basename for info in infos)


def test_a_local_shard_is_verified_before_use(fill, make_cache, tmp_path):
    store = LocalStore(tmp_path / "set")
    infos = fill(store)
    path = store.local_path(infos[1].raw.basename)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cache = make_cache(store, infos)
    with pytest.raises(ChecksumMismatch, match="shard 1"):
        cache.shard(1)
    assert len(cache.shard(0)) == infos[0].samples
    path.unlink()
    with pytest.raises(ShardNotFound, match="shard 1"):
        cache.shard(1)


def test_an_open_shard_costs_no_store_call_and_is_the_same_object(fill, make_cache):
    store = MemoryStore()
    cache = make_cache(store, fill(store))
    first = cache.shard(2)
    calls = len(store.calls)
    assert cache.shard(2) is first
    assert len(store.calls) == calls


def test_a_second_run_finds_the_files_and_fetches_nothing(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    ids(make_cache(store, infos))
    calls = len(fetches(store))
    assert ids(make_cache(store, infos)) == list(range(40))
    assert len(fetches(store)) == calls


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty"])
def test_a_corrupt_copy_is_quarantined_and_fetched_again(fill, make_cache, tmp_path, damage):
    store = MemoryStore()
    infos = fill(store)
    ids(make_cache(store, infos))
    path = tmp_path / "cache" / DIGEST / infos[1].raw.basename
    good = path.read_bytes()
    bad = {"flip": good[:-1] + bytes([good[-1] ^ 1]), "cut": good[:-1], "grow": good + b"x", "empty": b""}[damage]
    path.write_bytes(bad)
    calls = len(fetches(store))
    assert ids(make_cache(store, infos)) == list(range(40))
    assert fetches(store)[calls:] == [infos[1].stored.basename], "only the damaged one"
    assert path.read_bytes() == good
    assert path.with_name(f".bad-{path.name}").read_bytes() == bad


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("fault", [{"truncate": 100}, {"flip": 60}, {"truncate": 0}])
def test_bytes_that_arrive_wrong_once_are_fetched_again(fill, make_cache, compression, fault, tmp_path):
    store = MemoryStore()
    infos = fill(store, compression=compression)
    store.plant("fetch", times=1, **fault)
    assert ids(make_cache(store, infos)) == list(range(40))
    assert len(fetches(store)) == len(infos) + 1
    assert not [name for name in files(tmp_path / "cache") if ".part" in name or ".lock" in name]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_bytes_that_stay_wrong_are_an_error_that_names_shard_key_and_version(fill, make_cache, compression, tmp_path):
    store = MemoryStore()
    infos = fill(store, compression=compression)
    key = infos[2].stored.basename
    good = store.objects[key]
    cache = make_cache(store, infos)
    for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:50], good + b"more", b""):
        store.objects[key] = bad
        with pytest.raises(FormatError) as caught:
            cache.shard(2)
        assert "shard 2" in str(caught.value)
        assert key in str(caught.value)
        assert DIGEST[:12] in str(caught.value)
        assert caught.value.key == key
        assert not (tmp_path / "cache" / DIGEST / infos[2].raw.basename).exists()
    store.objects[key] = good
    assert ids(cache) == list(range(40)), "repaired in the store: the next request succeeds"


def test_every_truncation_and_every_flipped_byte_of_a_shard_is_refused(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    key = infos[0].stored.basename
    good = store.objects[key]
    cache = make_cache(store, infos, retry=1)
    for end in range(len(good)):
        store.objects[key] = good[:end]
        with pytest.raises(ChecksumMismatch):
            cache.shard(0)
    for place in range(0, len(good), 7):
        store.objects[key] = good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :]
        with pytest.raises(ChecksumMismatch):
            cache.shard(0)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_without_declared_hashes_the_size_still_counts(fill, make_cache, compression):
    store = MemoryStore()
    infos = fill(store, compression=compression, hashes=())
    key = infos[0].stored.basename
    good = store.objects[key]
    cache = make_cache(store, infos, retry=1)
    for bad in (good[:-1], good + b"x"):
        store.objects[key] = bad
        with pytest.raises(ChecksumMismatch, match="bytes"):
            cache.shard(0)
    store.objects[key] = good
    assert ids(cache) == list(range(40))


def test_a_missing_shard_is_shard_not_found_for_every_consumer(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    del store.objects[infos[1].stored.basename]
    cache = make_cache(store, infos, timeout=20)
    for _ in range(2):
        with pytest.raises(ShardNotFound) as caught:
            cache.shard(1)
        assert caught.value.key == infos[1].stored.basename
        assert caught.value.digest == DIGEST
        assert "shard 1" in str(caught.value)
    assert len(cache.shard(0)) > 0


def test_a_brief_not_found_is_retried(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", times=1, error=StoreNotFound("404 for a moment"))
    assert ids(make_cache(store, infos)) == list(range(40))


def test_transient_errors_are_retried_and_attempts_are_bounded(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", times=2, error=StoreError("503"))
    assert len(make_cache(store, infos, retry=3).shard(0)) > 0
    store.heal()
    store.plant("fetch", error=StoreError("503 for ever"))
    before = len(fetches(store))
    with pytest.raises(StoreError, match=r"shard 1 .*503 for ever.*2 attempts"):
        make_cache(store, infos, local="other").shard(1)
    assert len(fetches(store)) == before + 2


def test_refused_credentials_are_not_retried(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", error=StoreAuthError("expired"))
    with pytest.raises(StoreAuthError, match="expired"):
        make_cache(store, infos).shard(0)
    assert len(fetches(store)) == 1


@pytest.mark.parametrize("fault", [{"delay": 300}, {"chunk_delay": 300}])
def test_a_stalled_store_is_a_timeout_within_the_deadline(fill, make_cache, fault, tmp_path):
    store = MemoryStore(chunk_bytes=64)
    infos = fill(store)
    store.plant("fetch", **fault)
    begin = time.monotonic()
    with pytest.raises(StoreTimeout, match="shard 0"):
        make_cache(store, infos, timeout=0.6).shard(0)
    assert time.monotonic() - begin < 60
    assert files(tmp_path / "cache") == []


def test_a_slow_store_is_a_timeout_at_the_deadline(fill, make_cache):
    store = MemoryStore(chunk_bytes=4)
    infos = fill(store)
    store.plant("fetch", chunk_delay=0.5)  # fifty seconds in all
    begin = time.monotonic()
    with pytest.raises(StoreTimeout, match="not complete within 3 s"):
        make_cache(store, infos, retry=1, timeout=3).shard(0)
    assert time.monotonic() - begin < 60


def test_a_stalled_attempt_ends_early_enough_for_a_second_one(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", delay=300, times=1)
    assert len(make_cache(store, infos, retry=40, timeout=60).shard(0)) > 0


def test_prefetch_brings_shards_in_the_background(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    cache = make_cache(store, infos)
    cache.prefetch(range(len(infos)))
    end = time.monotonic() + 120
    while len(fetches(store)) < len(infos) and time.monotonic() < end:
        time.sleep(0.01)
    assert ids(cache) == list(range(40))
    assert len(fetches(store)) == len(infos), "none fetched twice"


def test_a_shard_that_failed_ahead_is_retried_when_requested_and_not_ahead(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    key = infos[2].stored.basename
    good = store.objects[key]
    store.objects[key] = good[::-1]
    cache = make_cache(store, infos)
    cache.prefetch([2])
    end = time.monotonic() + 120
    queue = cache._queue.get()
    while not (2 in queue._fetches and queue._fetches[2].done()) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(fetches(store, key)) == 2
    cache.prefetch([2])
    time.sleep(0.05)
    assert len(fetches(store, key)) == 2
    with pytest.raises(ChecksumMismatch):
        cache.shard(2)
    assert len(fetches(store, key)) == 4
    store.objects[key] = good
    assert len(cache.shard(2)) > 0


def test_a_shard_that_is_missing_at_first_is_only_late(fill, make_cache):
    class Late(MemoryStore):
        def fetch(self, key, out, **options):
            if len(fetches(self, key)) == 3:
                self.objects.update(hidden)
            return super().fetch(key, out, **options)

    store = Late()
    infos = fill(store)
    key = infos[2].stored.basename
    hidden = {key: store.objects.pop(key)}
    assert len(make_cache(store, infos).shard(2)) > 0
    assert len(fetches(store, key)) == 4, "not counted as attempts of `download_retry`, of which there are two"


def test_a_shard_waiting_behind_slow_prefetches_is_fetched_at_once(fill, make_cache):
    class Held(MemoryStore):
        def fetch(self, key, out, **options):
            if key in held:
                free.wait(60)
            return super().fetch(key, out, **options)

    held, free, store = set(), threading.Event(), Held()
    infos = fill(store, 80)
    held |= {info.stored.basename for info in infos[:4]}
    cache = make_cache(store, infos)
    cache.prefetch(range(len(infos)))
    assert len(cache.shard(len(infos) - 1)) > 0, "while the others are held"
    free.set()
    assert ids(cache) == list(range(80))


def test_many_threads_asking_for_one_shard_fetch_it_once(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", delay=0.2)
    cache = make_cache(store, infos)
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.shard(0)), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert len(fetches(store)) == 1


def test_a_failure_reaches_every_waiting_thread(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", delay=0.2, error=StoreError("503"))
    cache = make_cache(store, infos, retry=1)
    errors = []

    def ask():
        try:
            cache.shard(0)
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 4


def test_the_number_of_open_maps_is_bounded_and_reopening_fetches_nothing(fill, make_cache):
    store = MemoryStore()
    infos = fill(store, 80)
    cache = make_cache(store, infos)
    cache._opened.max_open = 3
    for _ in range(3):
        assert ids(cache) == list(range(80))
        assert len(cache._opened) <= 3
    assert len(fetches(store)) == len(infos)


def test_a_removed_cache_folder_is_created_again(fill, make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store)
    cache = make_cache(store, infos)
    cache.shard(0)
    shutil.rmtree(tmp_path / "cache")
    assert len(cache.shard(0)) > 0, "an open map outlives its file"
    assert len(cache.shard(1)) > 0


def test_folders_are_private_and_files_too(fill, make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store)
    ids(make_cache(store, infos))
    root = tmp_path / "cache" / DIGEST
    for path in [root, *root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_planted_link_in_the_cache_is_not_followed(fill, make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store)
    (tmp_path / "victim").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / DIGEST).symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="not a folder"):
        make_cache(store, infos).shard(0)
    (tmp_path / "cache" / DIGEST).unlink()
    (tmp_path / "cache" / DIGEST).mkdir(mode=0o700)
    (tmp_path / "cache" / DIGEST / "train").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="not a folder"):
        make_cache(store, infos).shard(0)
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_cache_folder_that_cannot_be_created_is_a_store_error(fill, make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="local"):
        make_cache(store, infos).shard(0)


def test_a_pickled_cache_works_in_its_new_place(fill, make_cache, tmp_path):
    store = LocalStore(tmp_path / "set")
    cache = make_cache(store, fill(store, compression="zstd"))
    cache.shard(0)
    again = pickle.loads(pickle.dumps(cache))
    assert ids(again) == list(range(40))


def test_a_closed_cache_can_be_used_again(fill, make_cache):
    store = MemoryStore()
    cache = make_cache(store, fill(store))
    held = cache.shard(0)
    cache.close()
    assert len(held[0]) == 2
    assert ids(cache) == list(range(40))


def test_an_unknown_shard_number_is_an_index_error(fill, make_cache):
    store = MemoryStore()
    cache = make_cache(store, fill(store))
    for number in (-1, 999):
        with pytest.raises(IndexError, match="shards"):
            cache.shard(number)


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="download_retry"):
        CacheOptions(download_retry=0)
    with pytest.raises(ValueError, match="download_timeout"):
        CacheOptions(download_timeout=0)


def test_a_decompression_bomb_stops_at_the_declared_size(fill, make_cache, tmp_path):
    from dataclasses import replace

    import zstandard

    from smalti.format.hashing import digest_bytes

    store = MemoryStore()
    infos = fill(store, compression="zstd")
    bomb = zstandard.ZstdCompressor().compress(bytes(200_000_000))
    key = infos[0].stored.basename
    store.objects[key] = bomb
    hostile = replace(infos[0], zip=replace(infos[0].zip, num_bytes=len(bomb), hashes=digest_bytes(bomb, ["xxh3_64"])))
    with pytest.raises(FormatError, match="shard 0"):
        ShardCache(ShardSource(store, DIGEST, [hostile], CacheOptions(local=str(tmp_path / "cache")))).shard(0)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) < 10_000
    assert os.path.exists(tmp_path / "cache" / DIGEST)


@pytest.mark.parametrize("name", ["scalars", "text", "comp_zstd_3", "comp_zstd_19"])
def test_sets_written_by_mosaicml_are_read_through_the_cache(shared, tmp_path, name):
    from smalti.catalog import load_manifest

    for store in (
        LocalStore(shared / "golden" / name),
        LoggedStore(LocalStore(shared / "golden" / name), tmp_path / "log"),
    ):
        manifest = load_manifest(store)
        cache = ShardCache(
            ShardSource(store, manifest.digest, manifest.shards, CacheOptions(local=str(tmp_path / "cache")))
        )
        assert sum(len(cache.shard(i)) for i in range(len(cache))) == manifest.rows > 0


def full_disk_fetch(space):
    """Return a fetch of shard 3, which is needed now."""
    return SimpleNamespace(shard=SimpleNamespace(shard_id=3), is_ahead=False, space=space, deadline=Deadline(60.0))


@pytest.mark.parametrize(
    ("freed", "pauses"),
    [
        ([0, 0, 0, 0, 0, 500, 0], [0.1, 0.2, 0.4, 0.8, 0.8, 0.0, 0.1]),
        ([None], [None]),
        ([500, 0], [0.0, 0.1]),
    ],
    ids=["copies that others need first, or files that others evicted and map", "a disk too small", "own are mapped"],
)
def test_a_full_disk_is_waited_for_while_copies_may_still_leave_it(freed, pauses):
    answers = iter(freed)
    space = SimpleNamespace(free_disk=lambda *_: next(answers), are_others_fetched=lambda _: False)
    full = _FullDisk(full_disk_fetch(space), seconds=60.0)
    assert [full.pause_after_freeing(100) for _ in freed] == pauses


def test_a_disk_that_stays_full_is_given_up_at_the_deadline():
    space = SimpleNamespace(free_disk=lambda *_: 0, are_others_fetched=lambda _: False)
    full = _FullDisk(full_disk_fetch(space), seconds=0.0)
    assert full.pause_after_freeing(100) is None
