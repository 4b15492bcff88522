"""Sets of very many shards are written and checked in parts, with the same results as small ones."""

import json
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256

import pyarrow as pa
import pytest

from smalti.catalog import Draft, load_manifest, new_write_id, publish
from smalti.catalog.index import MANY_SHARDS, put_index
from smalti.catalog.publishing import check_stored
from smalti.catalog.table.arrow import emit_table, pack_shards, table_of, unpack_shards
from smalti.catalog.table.shard_table import stored_sizes_of
from smalti.errors import CatalogError, IndexFileError
from smalti.format import FileInfo, Schema, emit_index, parse_index, text_schema
from smalti.format.index import index_parts
from smalti.storage import open_store
from tests.catalog.table.tables import MANY, SCHEMA, file, many_shards, shard
from tests.stores import MemoryStore

WRITE_ID = "20261122t000000-0123456789abcdef"


def test_a_table_made_in_parts_is_one_batch_so_that_its_map_is_one_piece():
    file = pa.ipc.open_file(pa.BufferReader(emit_table(iter(many_shards()))))
    assert file.num_record_batches == 1
    assert file.get_batch(0).num_rows == MANY == 17_000


def test_reading_a_table_does_not_import_pandas_which_takes_longer_than_reading(tmp_path):
    program = "import sys\nfrom smalti.catalog.table.arrow import load_table\nfrom smalti.storage import LocalStore\n"
    for name, shards in {"one kind": many_shards(20), "two": [*many_shards(9), shard(11, zipped=True)]}.items():
        data = emit_table(shards)
        (tmp_path / name).write_bytes(data)
        digest = sha256(data).hexdigest()
        program += f"print(len(load_table(LocalStore({str(tmp_path)!r}), {name!r}, sha256={digest!r})))\n"
    program += "print('pandas' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["20", "10", "False"], "")


def test_text_shards_that_come_after_thousands_of_others_keep_their_line_ends():
    text = replace(
        shard(20_000),
        schema=text_schema({"id": "int", "t": "str"}),
        format="json",
        newline="\r\n",
        meta=file("train/w/m", 8),
    )
    rows = pa.ipc.open_file(pa.BufferReader(emit_table([*many_shards(), text]))).read_all()
    columns = rows.select(["format", "newline", "meta_name", "meta_bytes"])
    assert columns.slice(MANY).to_pylist() == [
        {"format": "json", "newline": "\r\n", "meta_name": "train/w/m", "meta_bytes": 4096 + 8 % 7}
    ]
    assert columns.slice(0, 1).to_pylist() == [
        {"format": "mds", "newline": None, "meta_name": None, "meta_bytes": None}
    ]


def test_a_table_of_shards_with_one_name_twice_is_refused():
    with pytest.raises(IndexFileError, match=r"listed 2 times"):
        table_of([shard(1), shard(2), shard(1)])


@pytest.mark.parametrize("count", [0, 1, 1024, 2500])
def test_an_index_file_written_in_parts_has_the_bytes_of_one_written_at_once(count):
    extra = {"a": 1, "smalti": {"lineage": {"shards": []}, "text": '"shards": []'}, "z": None}
    shards = many_shards(max(count, 1))[:count]
    whole = {**extra, "shards": [each.to_json() for each in shards], "version": 2}
    assert b"".join(index_parts(iter(shards), extra)) == json.dumps(whole, sort_keys=True).encode()
    assert emit_index(shards, extra) == json.dumps(whole, sort_keys=True).encode()
    with pytest.raises(IndexFileError, match="index file's own"):
        list(index_parts([], {"version": 3}))


def test_the_index_file_of_thousands_of_shards_is_that_of_their_folder():
    store = MemoryStore()
    shards = [shard(number) for number in range(MANY_SHARDS)]
    put_index(store, "train/index.json", shards, {"smalti": {"split": "train"}}, folder="train/")
    found, extra = parse_index(store.get("train/index.json"), where="index")
    assert extra == {"smalti": {"split": "train"}}
    assert len(found) == MANY_SHARDS
    assert (found[12].raw.basename, found[12].partition) == ("w/1/shard.12.mds", None)


def test_a_store_that_keeps_nothing_of_a_large_index_file_is_reported():
    class LosingStore(MemoryStore):
        def put_file(self, key, path):
            self.put(key, b"")

    with pytest.raises(CatalogError, match="the store has 0"):
        put_index(LosingStore(), "index.json", [shard(number) for number in range(MANY_SHARDS)], {})


class CountingStore(MemoryStore):
    asked = 0

    def size(self, key):
        self.asked += 1
        return super().size(key)


def stored(count, folder=f"{WRITE_ID}/00000-0a1b2c3d"):
    store = CountingStore()
    names = [f"{folder}/shard.{number:05d}.mds" for number in range(count)]
    for number, name in enumerate(names):
        store.put(name, b"x" * (number % 5))
    shards = [
        replace(shard(0, ""), samples=0, raw=FileInfo(name, number % 5), partition=None, hash_names=())
        for number, name in enumerate(names)
    ]
    return store, shards


def test_shards_that_a_listing_shows_are_not_looked_up_one_by_one():
    store, shards = stored(2_000)
    check_stored(store, shards, WRITE_ID)
    assert store.asked == 0


def test_one_missing_shard_of_thousands_is_named():
    store, shards = stored(2_000)
    store.delete(shards[1_999].raw.basename)
    with pytest.raises(CatalogError, match=r"shard\.01999\.mds is not in the store"):
        check_stored(store, shards, WRITE_ID)
    assert store.asked == 1


def test_a_missing_shard_of_a_table_is_named_whichever_part_of_it_is_published():
    store, shards = stored(2_000)
    table = table_of([*shards, shard(1, zipped=True)])
    store.delete(shards[1_999].raw.basename)
    check_stored(store, table[:1_999], WRITE_ID)
    for part in (table[:2_000], table[1_000:2_000], table[1_999:0:-1]):
        with pytest.raises(CatalogError, match=r"shard\.01999\.mds is not in the store"):
            check_stored(store, part, WRITE_ID)


def test_of_compressed_shards_the_compressed_file_must_be_there():
    table = table_of([shard(0), shard(1, zipped=True), shard(2)])
    assert list(stored_sizes_of(table)) == [
        [("train/w/0/shard.0.mds", 4096), ("train/w/1/shard.1.mds.zstd", 1000), ("train/w/2/shard.2.mds", 4098)]
    ]
    assert [each for part in stored_sizes_of(table[::2]) for each in part] == [
        ("train/w/0/shard.0.mds", 4096),
        ("train/w/2/shard.2.mds", 4098),
    ]


def test_content_hashes_depend_on_all_data_of_a_shard():
    shards = [shard(number, zipped=number == 3) for number in range(5)]
    changed = [
        replace(shards[0], samples=7),
        replace(shards[1], raw=replace(shards[1].raw, num_bytes=4000)),
        replace(shards[2], schema=Schema.from_columns({"id": "int", "t": "bytes"})),
        replace(shards[3], zip=replace(shards[3].zip, hashes={**shards[3].zip.hashes, "sha1": "0" * 40})),
        shards[4],
    ]
    before = table_of(shards).content_hashes().tolist()
    after = [table_of([each]).content_hashes().tolist()[0] for each in changed]
    assert [mark in before for mark in after] == [False, False, False, False, True]
    assert table_of(shards)[::-2].content_hashes().tolist() == [before[4], before[2], before[0]]
    assert len(set(before)) == 5


def test_the_file_of_a_table_is_created_once_and_that_of_a_slice_again():
    shards = [shard(number) for number in range(5)]
    table = table_of(shards)
    assert emit_table(table) is emit_table(table)
    assert emit_table(table) == emit_table(shards)
    assert emit_table(table[1:]) == emit_table(shards[1:])


def test_a_shard_of_another_size_is_reported_with_both_sizes():
    store, shards = stored(20)
    store.put(shards[7].raw.basename, b"x")
    with pytest.raises(CatalogError, match=r"shard\.00007\.mds has 1 bytes, its writer says 2"):
        check_stored(store, shards, WRITE_ID)


def test_shards_at_the_root_are_looked_up_one_by_one():
    store, shards = CountingStore(), [shard(0, "")] * 3
    shards = [
        replace(each, raw=FileInfo(f"shard.{number}.mds", number), partition=None) for number, each in enumerate(shards)
    ]
    for number, each in enumerate(shards):
        store.put(each.raw.basename, b"x" * number)
    check_stored(store, shards, WRITE_ID)
    assert store.asked == 3


def test_packed_shards_come_back_as_they_were_and_take_a_fifth_of_their_json():
    shards = many_shards(2000)
    text = pack_shards(shards)
    assert unpack_shards(text, where="answer of task 3") == tuple(shards)
    assert len(text) * 5 < len(json.dumps([each.to_json() for each in shards]))


@pytest.mark.parametrize(
    ("damage", "said"), [("cut", "is cut short"), ("text", "is not a packed list"), ("swapped", "packed")]
)
def test_a_packed_list_that_is_damaged_is_refused_with_the_place_it_came_from(damage, said):
    text = pack_shards(many_shards(50))
    bad = {"cut": text[: len(text) // 8 * 4], "text": "no such thing!", "swapped": text[:400] + text[404:]}[damage]
    with pytest.raises(IndexFileError, match=f"answer of task 3.*({said})"):
        unpack_shards(bad, where="answer of task 3")


def test_an_index_file_too_large_to_be_parsed_still_shows_its_version(tmp_path):
    """A million entries take 600 MB: only the end of the file is read. The file is sparse, and takes no disk space."""
    store = open_store(str(tmp_path))
    store.put("w-1/shard.00000.mds", b"x" * 4096)
    first = replace(shard(5, ""), raw=FileInfo("w-1/shard.00000.mds", 4096), partition=None, hash_names=())
    published = publish(store, Draft(new_write_id(), SCHEMA, [first]))
    head, tail = emit_index([], {"smalti": {"version": 1, "digest": published.digest}}).split(b"[]")
    with (tmp_path / "index.json").open("wb") as file:
        file.write(head + b"[" + b" " * (1 << 20))
        file.seek(600_000_000)
        file.write(b" " * (1 << 20) + b"]" + tail)
    assert load_manifest(str(tmp_path)).version == 1
