"""Tables that lie together in one temporary file: few file descriptors, and no memory but for what is accessed."""

import gc
import os
import pickle
from dataclasses import replace
from hashlib import sha256

import pytest

from smalti.catalog.table import segments as tables
from smalti.catalog.table import spill as spills
from smalti.catalog.table.arrow import emit_table
from smalti.catalog.table.segments import SegmentedContent, SegmentFile, segmented, segments_in
from smalti.catalog.table.shard_table import ShardTable
from smalti.catalog.table.spill import SpillFile
from smalti.errors import CatalogError, IndexFileError
from smalti.storage import LocalStore
from tests.catalog.table.tables import shard
from tests.stores import MemoryStore

SIZE = 2
COUNT = 40


@pytest.fixture(params=["memory", "local"])
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
        files.append(SegmentFile(facts, store))
    return ShardTable(SegmentedContent(SIZE, tuple(files)))


def open_files():
    gc.collect()  # what earlier tests left would be closed at any moment
    return len(os.listdir("/proc/self/fd"))


def test_what_was_added_stays_readable_over_pieces_and_after_the_file_is_closed(monkeypatch):
    monkeypatch.setattr(spills, "PIECE_BYTES", 1 << 16)
    spill = SpillFile()
    added = [os.urandom(size) for size in (1, 4096, 65_536, 0, 200_000, 30_000, 30_000, 5_000)]
    views = [spill.add(data) for data in added]
    spill.close()
    for _, release in views:
        release()
    assert [bytes(view) for view, _ in views] == added


@pytest.mark.parametrize("mapped", [0, 1 << 10], ids=["copied", "mapped"])
def test_a_loaded_table_takes_a_descriptor_for_each_piece_and_not_for_each_segment(store, monkeypatch, mapped):
    monkeypatch.setattr(tables, "_MAX_MAPPED", mapped)
    table, before = stored_table(store), open_files()
    assert int(table.sizes.sum()) == sum(each.samples for each in table)
    is_mapped_alone = mapped and isinstance(store, LocalStore)
    assert open_files() - before == (COUNT // SIZE if is_mapped_alone else 1)
    if isinstance(store, LocalStore):
        table = pickle.loads(pickle.dumps(table))
    assert list(table) == [shard(n) for n in range(COUNT)]


def test_a_new_table_takes_one_descriptor():
    before = open_files()
    table = segmented([[shard(n) for n in range(COUNT)]], size=SIZE)
    assert open_files() - before == 1
    assert list(table) == [shard(n) for n in range(COUNT)]


@pytest.mark.parametrize("call", ["os.pwrite", "os.ftruncate", "tempfile.TemporaryFile"])
def test_tables_stay_in_memory_where_there_is_no_room_for_the_temporary_file(monkeypatch, call):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(call, full)
    table = stored_table(MemoryStore())
    assert table.sizes.tolist() == [each.samples for each in table]
    assert list(table) == [shard(n) for n in range(COUNT)]


def test_a_flipped_bit_in_a_fetched_segment_is_an_error():
    store = MemoryStore()
    table = stored_table(store)
    data = bytearray(store.get("segment-3.arrow"))
    data[len(data) // 2] ^= 1
    store.put("segment-3.arrow", bytes(data))
    with pytest.raises(IndexFileError, match=r"segment-3\.arrow: expected sha256"):
        _ = table.sizes


def test_names_that_two_of_many_segments_list_are_found_without_keeping_them_loaded(store):
    kept = segments_in(stored_table(store)).files
    before = open_files()
    fresh = segments_in(segmented([[shard(7)]], size=SIZE)).files
    with pytest.raises(CatalogError, match=r"is listed 2 times"):
        tables.check_unique(kept, fresh, 0)
    assert open_files() - before <= 2
    assert not any(file.loaded for file in kept)
