"""Hashes of the shards' first bytes: kept by manifests, tables and index files, and not part of the digest."""

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from smalti.catalog import Draft, load_manifest, publish
from smalti.catalog.opening import Choice, open_version
from smalti.catalog.table.arrow import pack_shards, table_of, unpack_shards
from smalti.catalog.table.shard_table import digest_of
from smalti.errors import IndexFileError
from smalti.format import FileInfo, Schema, ShardInfo, parse_index
from smalti.testing import MemoryStore
from tests.catalog.table.tables import bytes_of, parsed
from tests.catalog.table.tables import table_of as arrow_of

SCHEMA = Schema.from_columns({"id": "int"})
LARGEST, SMALL = (1 << 64) - 1, 7
"""A hash that is negative as a signed number, and one that is not."""


def shard(number, first, split=None):
    name = f"{split}/w-12/{number}/shard.00000.mds" if split else f"w-12/{number}/shard.00000.mds"
    raw = FileInfo(name, 100, {"xxh3_64": f"{number:016x}"}, first)
    return ShardInfo(SCHEMA, 2, raw, hash_names=("xxh3_64",), partition=split)


SHARDS = [shard(0, LARGEST), shard(1, None), shard(2, SMALL), shard(3, 1 << 63)]
FIRSTS = [LARGEST, None, SMALL, 1 << 63]


def firsts(shards):
    return [each.raw.first_hash for each in shards]


@pytest.fixture
def published():
    """Return a store with a version of these shards."""
    store = MemoryStore()
    for each in SHARDS:
        store.put(each.raw.basename, b"x" * 100)
    publish(store, Draft("w-12", SCHEMA, SHARDS))
    return store


def test_a_table_keeps_first_hashes_to_the_last_bit():
    table = table_of(SHARDS)
    assert firsts(table) == FIRSTS
    assert firsts(table[1:3]) == [None, SMALL]
    assert firsts(pickle.loads(pickle.dumps(table))) == FIRSTS


def test_packed_shards_keep_first_hashes():
    assert firsts(unpack_shards(pack_shards(SHARDS), where="answer")) == FIRSTS


def test_a_table_without_first_hashes_has_no_column_for_them():
    assert arrow_of([shard(0, None)]).column_names[-1] == "size_limit"
    assert arrow_of(SHARDS).column_names[-1] == "raw_first"


def test_shards_and_digests_are_the_same_with_and_without_first_hashes():
    plain = [shard(number, None) for number in range(4)]
    assert plain == SHARDS
    assert digest_of(plain) == digest_of(SHARDS)
    assert table_of(plain).content_hashes().tolist() == table_of(SHARDS).content_hashes().tolist()


def test_a_version_opens_with_first_hashes_by_its_index_and_by_its_table(published):
    assert firsts(load_manifest(published).shards) == FIRSTS
    assert firsts(open_version(published, Choice(by_index=False)).shards) == FIRSTS


def test_a_split_opened_by_its_own_address_has_first_hashes():
    store, shards = MemoryStore(), [shard(0, SMALL, "a"), shard(1, LARGEST, "b")]
    for each in shards:
        store.put(each.raw.basename, b"x" * 100)
    publish(store, Draft("w-12", SCHEMA, shards))
    assert firsts(load_manifest(store.child("b")).shards) == [LARGEST]


def test_entries_of_an_index_have_only_keys_that_other_readers_accept(published):
    entry = json.loads(published.get("index.json"))["shards"][0]
    assert sorted(entry["raw_data"]) == ["basename", "bytes", "hashes"]


@pytest.mark.parametrize(
    "told", [None, "f" * 16, ["f" * 16], ["f" * 15, 7, None, "F" * 16]], ids=["none", "text", "one", "odd"]
)
def test_an_index_with_malformed_first_hashes_opens_without_them(published, told):
    index = json.loads(published.get("index.json"))
    assert index["smalti"]["first_hashes"] == ["f" * 16, None, "0" * 15 + "7", "8" + "0" * 15]
    index["smalti"]["first_hashes"] = told
    published.put("index.json", json.dumps(index).encode())
    assert firsts(load_manifest(published).shards) == [None] * 4


def test_a_table_whose_column_is_of_another_kind_is_refused():
    table = arrow_of(SHARDS)
    place = table.column_names.index("raw_first")
    for column in (pa.array(["a"] * 4), pa.array([1.5] * 4)):
        with pytest.raises(IndexFileError):
            parsed(bytes_of(table.set_column(place, "raw_first", column)))
    with pytest.raises(IndexFileError):
        parsed(bytes_of(table.append_column("raw_first", table.column(place))))


def test_a_set_of_another_writer_has_no_first_hashes():
    shards, _ = parse_index(json.dumps({"shards": [SHARDS[0].to_json()], "version": 2}).encode(), where="index.json")
    assert firsts(shards) == [None]


def test_moving_a_shard_keeps_its_first_hash():
    assert replace(SHARDS[2]).with_prefix("elsewhere").raw.first_hash == SMALL
