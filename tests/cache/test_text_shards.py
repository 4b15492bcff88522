"""The two files of a text shard: each verified by itself, both brought under one lock; faults planted in either."""

import os
from dataclasses import replace

import pytest

from smalti.errors import ChecksumMismatch, FormatError, ShardNotFound
from smalti.format import digest_bytes
from smalti.storage import LocalStore
from smalti.testing import MemoryStore
from tests.cache.conftest import DIGEST, ids
from tests.format.text_sets import builder


def fill(store, kind="csv", rows=40, compression=None):
    """Shards of `rows` samples below `w/`, as infos."""
    made = builder(kind, {"id": "int", "text": "str"}, compression=compression, size_limit=120)
    filled = [shard for row in range(rows) for shard in made.add({"id": row, "text": f"row {row}"})] + made.finish()
    infos = []
    for shard in [one.seal() for one in filled]:
        info = shard.info.with_prefix("w")
        for file, data in zip(info.stored_files, shard.payloads, strict=True):
            store.put(file.basename, data)
        infos.append(info)
    assert len(infos) > 3
    return infos


def fetched(store):
    return [call.key for call in store.calls if call.op == "fetch"]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "xsv"])
def test_both_files_arrive_once_and_read_back(make_cache, kind, compression, tmp_path):
    store = MemoryStore()
    infos = fill(store, kind, compression=compression)
    assert ids(make_cache(store, infos)) == list(range(40))
    assert sorted(fetched(store)) == sorted(file.basename for info in infos for file in info.stored_files)
    assert files(tmp_path / "cache" / DIGEST) == sorted(file.basename for info in infos for file in info.raw_files)
    calls = len(store.calls)
    assert ids(make_cache(store, infos)) == list(range(40))
    assert len(store.calls) == calls, "a second run finds both"


def test_keep_zip_keeps_both_compressed_files(make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store, compression="zstd")
    ids(make_cache(store, infos, keep_zip=True))
    for file in infos[0].stored_files:
        assert (tmp_path / "cache" / DIGEST / file.basename).read_bytes() == store.get(file.basename)


def test_local_raw_files_are_read_where_they_lie(make_cache, tmp_path):
    store = LocalStore(tmp_path / "set")
    assert ids(make_cache(store, fill(store))) == list(range(40))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("which", [0, 1])
def test_a_local_file_is_verified_before_use(make_cache, tmp_path, which):
    store = LocalStore(tmp_path / "set")
    infos = fill(store)
    path = store.local_path(infos[1].stored_files[which].basename)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    cache = make_cache(store, infos)
    with pytest.raises(ChecksumMismatch, match="shard 1"):
        cache.shard(1)
    path.write_bytes(good[:-1])
    with pytest.raises(ChecksumMismatch, match="shard 1"):
        cache.shard(1)
    path.unlink()
    with pytest.raises(ShardNotFound, match="shard 1") as caught:
        cache.shard(1)
    assert caught.value.key == infos[1].stored_files[which].basename
    path.write_bytes(good)
    assert cache.shard(1)[0]["text"].startswith("row")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_only_the_file_that_rotted_in_the_cache_is_fetched_again(make_cache, tmp_path, which, damage):
    store = MemoryStore()
    infos = fill(store)
    ids(make_cache(store, infos))
    path = tmp_path / "cache" / DIGEST / infos[1].raw_files[which].basename
    good = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if damage == "flip" else good[:-1])
    calls = len(fetched(store))
    assert ids(make_cache(store, infos)) == list(range(40))
    assert fetched(store)[calls:] == [infos[1].stored_files[which].basename]
    assert path.read_bytes() == good
    assert path.with_name(f".bad-{path.name}").exists() == (damage != "gone")


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("fault", [{"truncate": 20}, {"flip": 12}, {"truncate": 0}, {}])
def test_a_meta_file_that_arrives_wrong_once_is_fetched_again(make_cache, compression, fault, tmp_path):
    store = MemoryStore()
    infos = fill(store, compression=compression)
    store.plant("fetch", key="*.meta*", times=1, **fault)
    assert ids(make_cache(store, infos)) == list(range(40))
    assert len(fetched(store)) == 2 * len(infos) + 1, "the data file beside it is not fetched twice"
    assert not [name for name in files(tmp_path / "cache") if ".part" in name or ".lock" in name]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_meta_file_that_stays_wrong_is_an_error_that_names_it(make_cache, compression):
    store = MemoryStore()
    infos = fill(store, compression=compression)
    key = infos[2].stored_files[1].basename
    good = store.objects[key]
    cache = make_cache(store, infos, timeout=10)
    for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:9], good + b"more", b""):
        store.objects[key] = bad
        with pytest.raises(FormatError) as caught:
            cache.shard(2)
        assert "shard 2" in str(caught.value)
        assert caught.value.key == key
    del store.objects[key]
    with pytest.raises(ShardNotFound, match="meta file") as caught:
        cache.shard(2)
    assert caught.value.key == key
    store.objects[key] = good
    assert len(cache.shard(2)) == infos[2].samples


def test_files_that_verify_and_do_not_belong_together_are_put_aside_and_refused(make_cache, tmp_path):
    store = MemoryStore()
    infos = fill(store)
    other = store.objects[infos[1].meta.basename]  # the meta file of another shard, declared as this one's
    meta = replace(infos[0].meta, num_bytes=len(other), hashes=digest_bytes(other, infos[0].meta.hashes))
    store.objects[meta.basename] = other[:4] + (0).to_bytes(4, "little") + other[8:]
    meta = replace(meta, hashes=digest_bytes(store.objects[meta.basename], meta.hashes))
    cache = make_cache(store, [replace(infos[0], meta=meta, samples=infos[1].samples), *infos[1:]])
    with pytest.raises(FormatError, match="shard 0"):
        cache.shard(0)
    assert not (tmp_path / "cache" / DIGEST / infos[0].raw.basename).exists()
    assert len(cache.shard(1)) == infos[1].samples


def test_a_changed_meta_file_is_verified_again(make_cache, tmp_path):
    store = LocalStore(tmp_path / "set")
    infos = fill(store)
    cache = make_cache(store, infos)
    cache.shard(0)
    path = store.local_path(infos[0].meta.basename)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"?")
    os.utime(path, ns=(1, 1))
    cache._open.clear()
    with pytest.raises(ChecksumMismatch):
        cache.shard(0)
