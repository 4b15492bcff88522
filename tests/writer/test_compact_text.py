"""Text shards are merged line by line: the same values, in the same dialect."""

from collections import Counter
from dataclasses import replace

import pytest

from smalti import LocalDataset, compact, load_manifest, open_dataset, verify
from smalti.catalog import Draft, new_write_id, publish
from smalti.errors import ChecksumMismatch, MixedSplitsWarning
from smalti.format import text_schema
from smalti.storage import open_store
from tests.format.text_sets import COLUMNS, builder
from tests.stores import MemoryStore
from tests.text_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter

KINDS = [(JSONWriter, {}), (CSVWriter, {}), (TSVWriter, {"newline": "\r\n"}), (XSVWriter, {"separator": "||"})]
# Values whose text differs from that of the parsed number must be copied unchanged.
ROWS = [{"id": number, "name": f"é{number}", "x": 0.1 * number} for number in range(40)] + [
    {"id": -(10**30), "name": "", "x": 1e300}
]


def write(root, kind, rows=ROWS, **options):
    with kind(columns=COLUMNS, out=root, **{"size_limit": 120, **options}) as writer:
        for row in rows:
            writer.write(row)
    return load_manifest(root)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_text_shards_become_full_ones_with_the_same_values_in_order(kind, options, compression, tmp_path):
    before = write(tmp_path, kind, compression=compression, **options)
    row_hash = verify(tmp_path).row_hash
    assert len(before.shards) > 5
    made = compact(tmp_path, size_limit=10_000)
    assert (made.version, len(made.shards), made.rows) == (2, 1, 41)
    assert LocalDataset(tmp_path)[:] == ROWS
    assert [open_dataset(str(tmp_path))[number] for number in range(41)] == ROWS
    assert (len(row_hash), verify(tmp_path).row_hash, verify(tmp_path).ok) == (32, row_hash, True)
    old, new = before.shards[0], made.shards[0]
    told = ("layout", "compression", "hash_names", "schema", "partition")
    assert [getattr(new, name) for name in told] == [getattr(old, name) for name in told]
    assert [open_dataset(str(tmp_path), version=1)[number] for number in (0, 40)] == [ROWS[0], ROWS[40]]


def test_the_bytes_are_those_of_one_shard_written_at_once(tmp_path):
    write(tmp_path, CSVWriter, [{"id": 1, "name": "a", "x": 0.5}, {"id": 2, "name": "b", "x": 2.0}], size_limit=8)
    assert [shard.samples for shard in load_manifest(tmp_path).shards] == [1, 1]
    (made,) = compact(tmp_path, size_limit=1000).shards
    assert (tmp_path / made.raw.basename).read_bytes() == b"id,name,x\n1,a,0.5\n2,b,2.0\n"


def test_text_shards_are_merged_whatever_the_names_of_their_columns_contain(tmp_path):
    """Lines are copied as stored, and the first line is compared as a whole: nothing is read from it."""
    with CSVWriter(columns={"a,b": "str", "c\n": "int"}, out=tmp_path, size_limit=8) as writer:
        for number in range(5):
            writer.write({"a,b": "x", "c\n": number})
    assert len(load_manifest(tmp_path).shards) > 1
    (made,) = compact(tmp_path, size_limit=1000).shards
    assert (tmp_path / made.raw.basename).read_bytes() == b"a,b,c\n\nx,0\nx,1\nx,2\nx,3\nx,4\n"
    assert LocalDataset(tmp_path)[:] == [{"a,b": "x", "c\n": number} for number in range(5)]


def test_a_large_set_is_cut_into_full_shards(tmp_path):
    write(tmp_path, CSVWriter)
    sizes = [shard.samples for shard in compact(tmp_path, below=10_000, size_limit=400).shards]
    assert 1 < len(sizes) < 5
    assert sum(sizes) == 41
    assert LocalDataset(tmp_path)[:] == ROWS


def text_draft(store, kind, rows, split=None, newline="\n"):
    write_id = new_write_id()
    made = builder(kind, newline=newline, size_limit=60)
    filled = [shard for row in rows for shard in made.add(row)] + made.finish()
    infos = []
    for shard in [one.seal() for one in filled]:
        info = replace(shard.info.with_prefix(f"{split}/{write_id}/0" if split else f"{write_id}/0"), partition=split)
        for file, data in zip(info.stored_files, shard.payloads, strict=True):
            store.put(file.basename, data)
        infos.append(info)
    return Draft(write_id, text_schema(COLUMNS), infos)


def test_dialects_and_splits_stay_apart(tmp_path):
    store = open_store(tmp_path)
    publish(store, text_draft(store, "csv", ROWS[:10], "train"))
    publish(store, text_draft(store, "csv", ROWS[10:20], "test"), mode="append")
    publish(store, text_draft(store, "csv", ROWS[20:30], "test", newline="\r\n"), mode="append")
    publish(store, text_draft(store, "tsv", ROWS[30:40], "test"), mode="append")
    made = compact(store, size_limit=10_000)
    assert [(shard.partition, shard.format, shard.newline, shard.samples) for shard in made.shards] == [
        ("train", "csv", "\n", 10), ("test", "csv", "\n", 10), ("test", "csv", "\r\n", 10), ("test", "tsv", "\n", 10),
    ]  # fmt: skip
    with pytest.warns(MixedSplitsWarning, match="the splits 'test', 'train'"):
        dataset = open_dataset(str(tmp_path))
    assert [dataset[number] for number in range(40)] == ROWS[:40]
    assert verify(store).ok


def test_a_damaged_meta_file_stops_a_compaction_and_nothing_is_left():
    store = MemoryStore()
    made = publish(store, text_draft(store, "json", ROWS))
    key = made.shards[2].meta.basename
    store.objects[key] = store.objects[key][:-1] + b"!"
    before = dict(store.objects)
    with pytest.raises(ChecksumMismatch):
        compact(store, size_limit=500)
    assert store.objects == before


def test_compacting_again_finds_nothing_to_do(tmp_path):
    write(tmp_path, JSONWriter)
    made = compact(tmp_path, size_limit=10_000)
    assert compact(tmp_path, size_limit=10_000).version == made.version == 2
    assert Counter(shard.samples for shard in made.shards) == {41: 1}
