"""The shards of a version as a table: equal to a tuple, created on access, safe if the file is changed."""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from hashlib import sha256

import pytest

from smalti.catalog import load_manifest, publish, verify
from smalti.catalog.table.arrow import emit_table, load_table
from smalti.catalog.table.shard_table import kinds_of, num_bytes_of, partitions_of, sizes_of, without_hash
from smalti.errors import IndexFileError, SchemaError
from smalti.format import Schema, check_readable
from smalti.storage import LocalStore
from smalti.stream import OpenStreams, StreamOptions
from tests.catalog.table.tables import many_shards, parsed, table_of
from tests.stores import MemoryStore

HEADER = "_versions/00000001.json"
COUNT = 3000


@pytest.fixture(scope="module")
def shards():
    return tuple(many_shards(COUNT))


@pytest.fixture
def path(tmp_path, shards):
    path = tmp_path / "table.arrow"
    path.write_bytes(emit_table(shards))
    return path


def mapped(path):
    return load_table(LocalStore(path.parent), path.name, sha256=sha256(path.read_bytes()).hexdigest())


@pytest.mark.slow
def test_a_table_is_the_sequence_of_its_shards(shards, path):
    for table in (mapped(path), parsed(table_of(shards))):
        assert len(table) == COUNT
        assert table[7] == shards[7]
        assert table[-1] == shards[-1]
        assert list(table) == list(shards)
        assert table == shards
        assert shards == table
        assert table == mapped(path)
        assert table != shards[:-1]
        assert table != (*shards[:-1], shards[0])
        with pytest.raises(IndexError):
            table[COUNT]


@pytest.mark.parametrize("at", [slice(5, 1500), slice(None, None, 7), slice(90, 20, -3), slice(4, 4)], ids=str)
def test_a_slice_is_a_table_of_those_shards(shards, path, at):
    part = mapped(path)[at]
    assert part == shards[at]
    assert sizes_of(part).tolist() == [shard.samples for shard in shards[at]]
    assert part[3:][:2] == shards[at][3:][:2]
    assert num_bytes_of(part) == sum(shard.stored.num_bytes for shard in shards[at])


def test_splits_are_chosen_by_column(shards, path):
    table = mapped(path)
    assert partitions_of(table) == ("train", "val")
    assert (len(table.of_partition("train")), len(table.of_partition("val"))) == (2940, 60)
    assert table.of_partition("val") == shards[2940:]
    assert len(table.of_partition("test")) == 0
    mixed = [shard for pair in zip(shards[:60], shards[2940:], strict=True) for shard in pair]
    assert parsed(table_of(mixed)).of_partition("val") == shards[2940:]
    assert partitions_of(parsed(table_of(mixed)).of_partition("val")[10:20]) == ("val",)


def test_the_first_file_without_a_hash_is_found(path):
    table = mapped(path)
    assert without_hash(table, "sha1") is None
    assert without_hash(table, "xxh64") is None, "all have it, although every second shard does not declare it"
    assert without_hash(table, "md5").basename == "train/w/0/shard.0.mds.zstd"
    assert without_hash(table[1:], "md5").basename == "train/w/1/shard.1.mds"


def test_an_unsafe_column_is_found_without_creating_all_shards():
    from dataclasses import replace

    unsafe = Schema(("a",), ("pkl",), (None,))
    table = parsed(table_of([replace(shard, schema=unsafe) for shard in many_shards(50)]))
    assert len(kinds_of(table)) == 5, "two splits, compressed or not, one hash or two: of eight, five are there"
    with pytest.raises(SchemaError, match="pkl"):
        check_readable(kinds_of(table))


def test_a_pickled_table_is_a_path_and_opens_again(shards, path):
    table = mapped(path)
    assert sizes_of(table).size == COUNT, "what was counted is not sent"
    data = pickle.dumps(table[100:200])
    assert len(data) < 4000
    again = pickle.loads(data)
    assert again == shards[100:200]
    assert kinds_of(again) == kinds_of(table)
    assert pickle.loads(pickle.dumps(again)) == again
    assert copy.deepcopy(table) is copy.copy(table) is table


def test_a_table_from_a_store_is_pickled_with_its_bytes(shards):
    table = parsed(table_of(shards))
    assert pickle.loads(pickle.dumps(table)) == shards
    both = pickle.dumps([table, table[:5]])
    assert len(both) < 1.1 * len(pickle.dumps(table)), "once for all that refer to it"


def test_another_process_reads_a_pickled_table(path, tmp_path):
    (tmp_path / "table.pkl").write_bytes(pickle.dumps(mapped(path)))
    code = "import pickle, sys; t = pickle.load(open(sys.argv[1], 'rb')); print(len(t), t[2999].raw.basename)"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "table.pkl"], capture_output=True, text=True, timeout=500, check=True
    )
    assert done.stdout.split() == ["3000", "val/w/7/shard.2999.mds"]


def test_a_file_that_was_replaced_since_it_was_pickled_is_checked_again(path, shards):
    data, good = pickle.dumps(mapped(path)), path.read_bytes()
    path.unlink()
    with pytest.raises(IndexFileError, match="cannot be opened here: No such file"):
        pickle.loads(data)
    path.write_bytes(good)
    assert pickle.loads(data) == shards, "another file with the same bytes"
    path.unlink()
    path.write_bytes(good[:-1])
    with pytest.raises(IndexFileError, match="sha256"):
        pickle.loads(data)


def test_an_unchanged_table_is_not_checked_again_when_it_is_unpickled(path, shards):
    """Each worker of a loader unpickles it: checking a million shards takes a second of processor time."""
    stat, size = path.stat(), path.stat().st_size
    from_file, from_store = pickle.dumps(mapped(path)), pickle.dumps(parsed(path.read_bytes()))
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert pickle.loads(from_file)[7] == shards[7]
    assert pickle.loads(from_store.replace(b"shard.2998.mds", b"shard.\xff998.mds"))[7] == shards[7]


@pytest.mark.parametrize("junk", [b"\xff", b"\x00", b"\x7f", b"\x80"])
def test_a_mapped_file_that_others_write_over_ends_in_an_error_and_not_in_a_crash(path, junk):
    """pyarrow would follow the new offsets wherever they point."""
    table, size = mapped(path), path.stat().st_size
    before = table[5]
    with path.open("r+b") as file:
        file.seek(size // 8)
        file.write(junk * (size // 2))
    for row in range(0, COUNT, 50):
        with pytest.raises(IndexFileError):
            table[row]
    assert before.raw.basename == "train/w/5/shard.5.mds"


def remove_index(store):
    """Remove the index file of the set, so that it is read from its table."""
    store.delete("index.json")
    return store


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_set_that_is_read_from_its_table_is_the_one_that_was_published(kind, tmp_path, make_draft):
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path / "set")
    made = publish(store, make_draft(store, 30, splits=("train", "val"), compression="zstd"))
    for opened in (load_manifest(remove_index(store)), load_manifest(store, version=1)):
        assert opened == made
        assert (opened.num_bytes, opened.partitions) == (made.num_bytes, ("train", "val"))
        assert opened.num_bytes == sum(store.size(shard.stored.basename) for shard in opened.shards)
        assert opened.select("val") == tuple(shard for shard in made.shards if shard.partition == "val")


def test_opened_streams_are_pickled_as_their_options(tmp_path, make_draft):
    store = LocalStore(tmp_path / "set")
    publish(store, make_draft(store, 200))
    remove_index(store)
    streams = OpenStreams([StreamOptions(str(tmp_path / "set"))] * 2)
    data = pickle.dumps(streams)
    again = pickle.loads(data)
    assert len(data) < 6000
    assert (len(again), again.sample(399)) == (400, {"id": 199, "text": "row 199"})
    per_set = len(streams.sets[0].shards)
    assert len(again.shards) == 2 * per_set > 20
    assert again.shards[per_set + 1] == again.shards[1] == list(again.shards)[1 - per_set]
    assert again.shards[per_set - 1 : per_set + 1] == [again.shards[-1], again.shards[0]]


def test_a_digest_that_does_not_fit_its_table_is_found_by_publishers_and_by_verify(make_draft):
    """A reader does not recompute it; the digest of the table is next to it in the header."""
    store = MemoryStore()
    made = publish(store, make_draft(store))
    other = sha256(b"other").hexdigest()
    store.objects[HEADER] = store.objects[HEADER].replace(made.digest.encode(), other.encode())
    with pytest.raises(IndexFileError, match="header says"):
        verify(store)
    with pytest.raises(IndexFileError, match="header says"):
        publish(store, make_draft(store), mode="append")
    assert load_manifest(store).digest == other


@pytest.mark.parametrize("field", ["digest", "table_sha256"])
@pytest.mark.parametrize("value", ["../../etc", "", "AB" * 32, "a" * 63, "a" * 64 + "\n"])
def test_a_malformed_digest_is_refused(make_draft, field, value):
    """The digest names a folder of the cache."""
    store = MemoryStore()
    publish(store, make_draft(store))
    header = json.loads(store.objects[HEADER])
    store.objects[HEADER] = json.dumps(header | {field: value}).encode()
    with pytest.raises(IndexFileError, match=re.escape(repr(field))):
        load_manifest(store)
