"""Segments in temporary files: as many as there may be file descriptors for, and no memory but for what is accessed."""

import gc
import os
import pickle
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

import pytest

from smalti.catalog.table import shard_table
from smalti.catalog.table.arrow import emit_table
from smalti.catalog.table.segments import check_unique, segmented
from smalti.catalog.table.shard_table import ShardTable, TableFile, TableFiles, segments_in, sizes_of
from smalti.errors import CatalogError, IndexFileError
from smalti.storage import LocalStore
from tests.catalog.table.tables import shard
from tests.stores import MemoryStore

SIZE = 2
COUNT = 40


@pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.nightly)])  # test_contract.py has its puts
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


def stored_table(store, shards=None):
    """Return the shards as a table whose segments lie in the store and are not loaded."""
    shards = shards or [shard(n) for n in range(COUNT)]
    files = []
    for number, file in enumerate(segments_in(segmented([shards], size=SIZE)).files):
        data = emit_table(shards[number * SIZE : (number + 1) * SIZE])
        key = f"segment-{number}.arrow"
        store.put(key, data)
        facts = replace(file.facts, key=key, sha256=sha256(data).hexdigest(), file_bytes=len(data))
        files.append(TableFile(facts, store))
    return ShardTable(TableFiles(tuple(files), SIZE))


def open_files():
    """Return the number of open segments and files without a name; threads of earlier tests may close sockets."""
    gc.collect()
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum("segment-" in name or name.endswith("(deleted)") for name in names)


@pytest.mark.parametrize("mapped", [0, 1 << 10], ids=["in memory", "mapped"])
def test_a_loaded_table_takes_a_descriptor_for_each_segment_unless_there_are_too_many(store, monkeypatch, mapped):
    monkeypatch.setattr(shard_table, "MAX_MAPPED", mapped)
    table, before = stored_table(store), open_files()
    assert int(sizes_of(table).sum()) == sum(each.samples for each in table)
    assert open_files() - before == (COUNT // SIZE if mapped else 0)
    if isinstance(store, LocalStore):
        table = pickle.loads(pickle.dumps(table))
    assert list(table) == [shard(n) for n in range(COUNT)]


@pytest.mark.parametrize("mapped", [0, 3, 1 << 10])
def test_a_new_table_takes_a_descriptor_for_each_of_so_many_segments(monkeypatch, mapped):
    monkeypatch.setattr(shard_table, "MAX_MAPPED", mapped)
    before = open_files()
    table = segmented([[shard(n) for n in range(COUNT)]], size=SIZE)
    assert open_files() - before == min(mapped, COUNT // SIZE)
    assert list(table) == [shard(n) for n in range(COUNT)]


def test_tables_stay_in_memory_where_there_is_no_room_for_temporary_files(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    table = stored_table(MemoryStore())
    assert sizes_of(table).tolist() == [each.samples for each in table]
    assert list(table) == [shard(n) for n in range(COUNT)]


def test_a_flipped_bit_in_a_fetched_segment_is_an_error():
    store = MemoryStore()
    table = stored_table(store)
    data = bytearray(store.get("segment-3.arrow"))
    data[len(data) // 2] ^= 1
    store.put("segment-3.arrow", bytes(data))
    with pytest.raises(IndexFileError, match=r"segment-3\.arrow: expected sha256"):
        _ = sizes_of(table)


def test_names_that_two_of_many_segments_list_are_found_without_keeping_them_loaded(store):
    kept = segments_in(stored_table(store)).files
    before = open_files()
    fresh = segments_in(segmented([[shard(7)]], size=SIZE)).files
    with pytest.raises(CatalogError, match=r"is listed 2 times"):
        check_unique(kept, fresh, 0)
    assert open_files() - before <= 2
    assert not any(file.loaded for file in kept)
