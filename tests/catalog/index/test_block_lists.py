"""Places of the shards' block lists: kept by manifests, tables and index files, and not part of the digest."""

import json
import pickle
from dataclasses import replace

import pytest

from smalti.catalog import Draft, load_manifest, publish
from smalti.catalog.digest import digest_of
from smalti.catalog.opening import WantedVersion, open_version
from smalti.catalog.table.arrow import pack_shards, table_of, unpack_shards
from smalti.errors import IndexFileError
from smalti.format import BlockList, FileInfo, Schema, ShardInfo
from tests.stores import MemoryStore

SCHEMA = Schema.from_columns({"id": "int"})
LISTS = [
    BlockList("train/w-12/blocks.00000.bin", 0, 1 << 16, (1 << 64) - 1),
    None,
    BlockList("train/w-12/blocks.00000.bin", 8192, 1 << 16, 7),
    BlockList("train/w-12/blocks.00001.bin", 0, 1 << 20, 1 << 63),
]


def shard(number, blocks):
    raw = FileInfo(f"train/w-12/shard.{number:05}.mds", 100, {"xxh3_64": f"{number:016x}"})
    return ShardInfo(SCHEMA, 2, raw, hash_names=("xxh3_64",), partition="train", blocks=blocks)


SHARDS = [shard(*pair) for pair in enumerate(LISTS)]


def lists(shards):
    return [each.blocks for each in shards]


@pytest.fixture
def published():
    """Return a store with a version of these shards."""
    store = MemoryStore()
    for each in SHARDS:
        store.put(each.raw.basename, b"x" * 100)
    publish(store, Draft("w-12", SCHEMA, SHARDS))
    return store


def test_a_table_keeps_block_lists_to_the_last_bit():
    table = table_of(SHARDS)
    assert lists(table) == LISTS
    assert lists(table[1:3]) == LISTS[1:3]
    assert lists(pickle.loads(pickle.dumps(table))) == LISTS
    assert lists(unpack_shards(pack_shards(SHARDS), where="answer")) == LISTS


def test_shards_and_digests_are_the_same_with_and_without_block_lists():
    plain = [replace(each, blocks=None) for each in SHARDS]
    assert plain == SHARDS
    assert digest_of(plain) == digest_of(SHARDS)
    assert table_of(plain).content_hashes().tolist() == table_of(SHARDS).content_hashes().tolist()


def test_a_version_opens_with_block_lists_by_its_index_and_by_its_table(published):
    assert lists(load_manifest(published).shards) == LISTS
    assert lists(open_version(published, WantedVersion(1, by_index=False)).shards) == LISTS


def test_a_split_opened_by_its_own_address_names_its_block_files_below_it(published):
    split = MemoryStore()
    for key in ("index.json",):
        split.put(key, published.get(f"train/{key}"))
    found = lists(load_manifest(split).shards)
    assert [each and each.file for each in found] == [
        "w-12/blocks.00000.bin", None, "w-12/blocks.00000.bin", "w-12/blocks.00001.bin",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "told",
    [
        7,
        {"files": ["../secret"], "shards": [[0, 0, 65536, "0"]] * 4},
        {"files": ["a"], "shards": [[0, 0, 65536, "0"]] * 3},
        {"files": ["a"], "shards": [[0, 0, 65537, "0"]] * 4},
        {"files": ["a"], "shards": [[0, -8, 65536, "0"]] * 4},
        {"files": ["a"], "shards": [[1, 0, 65536, "0"]] * 4},
    ],
)
def test_an_index_with_malformed_block_lists_opens_without_them(published, told):
    index = json.loads(published.get("index.json"))
    index["smalti"]["block_lists"] = told
    published.put("index.json", json.dumps(index).encode())
    assert lists(load_manifest(published).shards) == [None] * 4


@pytest.mark.parametrize(
    "blocks",
    [
        BlockList("../secret", 0, 1 << 16, 0),
        BlockList("a", -8, 1 << 16, 0),
        BlockList("a", 0, 3000, 0),
        BlockList("a", 0, 0, 0),
        BlockList("a", 0, 1 << 30, 0),
    ],
)
def test_a_table_with_an_impossible_block_list_is_refused_where_it_is_read(blocks):
    table = table_of([SHARDS[1], shard(9, blocks)])
    assert table[0] == SHARDS[1]
    with pytest.raises(IndexFileError):
        table[1]
