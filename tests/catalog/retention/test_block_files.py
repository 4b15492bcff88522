"""Files with block hashes over the life of a set: written in order, kept while needed, copied, verified, removed."""

import numpy as np
import pytest

from smalti import MDSWriter, StreamingDataset
from smalti.cache import CacheOptions
from smalti.catalog import load_manifest, rollback, vacuum, verify
from smalti.catalog.retention.vacuum import retire
from smalti.errors import DeletedSamplesWarning, StoreError
from smalti.exchange import copy_version, sync
from smalti.format import BlockHashes
from smalti.writer import compact, delete
from tests.stores import MemoryStore

COLUMNS = {"id": "int", "data": "bytes"}
OLD = 10 * 86400.0


class Clock:
    def __init__(self):
        self.now = 1e9

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock=clock)


def write(store, ids, **options):
    with MDSWriter(columns=COLUMNS, out=store, size_limit=1 << 18, **options) as writer:
        for number in ids:
            writer.write({"id": number, "data": np.random.default_rng(number).bytes(30_000)})


def block_files(store):
    return sorted(key for key in store.objects if "/blocks." in key)


def lists_are_right(store):
    """Return whether every large shard of the newest version has a list that fits its bytes."""
    for shard in load_manifest(store).shards:
        if shard.blocks is None:
            if shard.raw.num_bytes > 1 << 16:
                return False
            continue
        data = store.get_range(shard.blocks.file, *shard.blocks.span(shard.raw.num_bytes))
        hashes = BlockHashes(data, shard.blocks, shard.raw.num_bytes, what=shard.raw.basename)
        hashes.verify(store.get(shard.raw.basename), 0)
    return True


def test_the_lists_of_a_writer_lie_in_one_file_in_the_order_of_its_shards(store):
    write(store, range(60))
    shards = load_manifest(store).shards
    assert len(block_files(store)) == 1
    offsets = [shard.blocks.offset for shard in shards if shard.blocks is not None]
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 0
    assert lists_are_right(store)


def test_a_writer_that_fails_leaves_no_block_file(store):
    store.plant("put", key="*blocks*")
    with pytest.raises(StoreError):
        write(store, range(40))
    assert not [key for key in store.objects if key.endswith((".mds", ".xxh3"))]


def test_appends_deletions_compactions_and_rollbacks_keep_lists_that_fit(store):
    write(store, range(40))
    write(store, range(40, 60), mode="append")
    assert len(block_files(store)) == 2
    assert lists_are_right(store)
    delete(store, ids=[3, 50])
    assert lists_are_right(store)
    compact(store)
    assert lists_are_right(store)
    rollback(store, 1)
    assert lists_are_right(store)
    assert verify(store).ok


def test_vacuum_keeps_the_block_files_of_kept_versions_and_removes_the_others(store, clock):
    write(store, range(40))
    write(store, range(100, 140), mode="overwrite")
    first, second = block_files(store)
    clock.now += OLD
    vacuum(store, dry_run=False)
    kept = load_manifest(store).shards[0].blocks.file
    assert block_files(store) == [kept]
    assert {first, second} > {kept}
    assert verify(store).ok


def test_a_purge_removes_the_block_files_of_the_purged_version_alone(store):
    write(store, range(40))
    (shared,) = block_files(store)
    write(store, range(40, 60), mode="append")
    (appended,) = {*block_files(store)} - {shared}
    delete(store, ids=[3])
    kept = {shard.blocks.file for shard in load_manifest(store).shards if shard.blocks is not None}
    assert shared in kept  # other shards of that file are still there
    retire(store, [1])
    assert kept <= {*block_files(store)}
    assert lists_are_right(store)
    assert verify(store).ok
    with pytest.warns(DeletedSamplesWarning):
        write(store, range(100, 140), mode="overwrite")
    retire(store, [2, 3, 4])
    assert {shared, appended}.isdisjoint(block_files(store))
    assert lists_are_right(store)


@pytest.mark.parametrize("again", [copy_version, sync])
def test_copies_have_block_lists_of_their_own(store, again, tmp_path):
    write(store, range(40))
    target = MemoryStore("memory-store://target")
    again(store, target)
    assert lists_are_right(target)
    dataset = StreamingDataset(remote=target, cache=CacheOptions(local=str(tmp_path), mode="none"))
    assert dataset[7]["id"] == 7


def test_a_set_without_its_block_file_is_copied_without(store, tmp_path):
    write(store, range(40))
    del store.objects[block_files(store)[0]]
    target = MemoryStore("memory-store://target")
    copy_version(store, target)
    dataset = StreamingDataset(remote=target, cache=CacheOptions(local=str(tmp_path), mode="none"))
    with pytest.warns(UserWarning, match="fetched whole"):
        assert dataset[7]["id"] == 7


@pytest.mark.parametrize("deep", [False, True])
def test_verification_finds_a_missing_block_file_once(store, deep):
    write(store, range(40))
    (key,) = block_files(store)
    del store.objects[key]
    (problem,) = verify(store, deep=deep).problems
    assert (problem.kind, problem.key) == ("missing", key)


def test_verification_finds_a_flipped_bit_in_a_list(store):
    write(store, range(40))
    (key,) = block_files(store)
    store.objects[key] = bytes([store.objects[key][0] ^ 4]) + store.objects[key][1:]
    (problem,) = verify(store).problems
    assert (problem.kind, problem.key) == ("checksum", key)
