"""Hashes that a writer keeps out of its shards and their entries: the version has them all the same."""

import json
from dataclasses import replace

import pytest

from smalti.catalog import Draft, load_manifest, publish
from smalti.catalog.index import decode_unlisted_hashes
from smalti.catalog.opening import WantedVersion, open_version
from smalti.errors import IndexFileError
from smalti.format import Schema, ShardBuilder, ShardOptions, parse_index, text_schema
from smalti.format.text import layout_of
from smalti.storage import LocalStore
from smalti.writer import compact
from tests.stores import MemoryStore
from tests.text_writers import TextBuilder

MDS = Schema.from_columns({"id": "int"})
OPTIONS = ShardOptions("zstd", (), 170, ("xxh3_64",))


def shards_of(builder, prefix, store):
    filled = [shard for i in range(6) for shard in builder.add({"id": i})]
    found = []
    for built in [shard.seal() for shard in [*filled, *builder.finish()]]:
        info = built.info.with_prefix(prefix)
        for file, content in zip(info.stored_files, built.payloads, strict=True):
            store.put(file.basename, bytes(content))
        found.append(info)
    return found


def published(store, split=None):
    prefix = f"{split}/w-12/0" if split else "w-12/0"
    shards = shards_of(ShardBuilder(MDS, OPTIONS), prefix, store)
    if split:
        shards = [replace(shard, partition=split) for shard in shards]
    return publish(store, Draft("w-12", MDS, shards))


def recorded(shards):
    return {tuple(file.hashes) for shard in shards for file in (*shard.raw_files, *shard.stored_files)}


def test_a_version_has_the_hashes_by_its_index_alone_and_by_its_table():
    store = MemoryStore()
    manifest = published(store)
    assert recorded(open_version(store, WantedVersion(by_index=False)).shards) == {("xxh3_64",)}
    for key in [key for key in store.objects if key.endswith(".arrow")]:
        store.delete(key)
    assert load_manifest(store).shards == tuple(manifest.shards)
    assert recorded(load_manifest(store).shards) == {("xxh3_64",)}


def test_entries_and_shards_name_no_hash():
    store = MemoryStore()
    manifest = published(store)
    index = json.loads(store.get("index.json"))
    files = [entry[part] for entry in index["shards"] for part in ("raw_data", "zip_data")]
    assert [entry["hashes"] for entry in index["shards"]] == [[]] * 6
    assert [file["hashes"] for file in files] == [{}] * 12
    assert manifest.shards[0].hash_names == ()
    assert manifest.shards[0].unlisted_hashes == ("xxh3_64",)


def test_shards_are_cut_as_without_any_hash():
    cuts = []
    for unlisted in ((), ("xxh3_64",)):
        builder = ShardBuilder(MDS, ShardOptions(None, (), 170, unlisted))
        filled = [shard for i in range(6) for shard in builder.add({"id": i})]
        cuts.append([bytes(shard.seal().payloads[0]) for shard in filled])
    assert cuts[0] == cuts[1]
    assert len(cuts[0]) == 5


def test_the_folder_of_a_split_has_the_hashes():
    store = MemoryStore()
    published(store, "train")
    assert recorded(load_manifest(store.child("train")).shards) == {("xxh3_64",)}


def test_text_shards_have_them_for_both_files():
    store = MemoryStore()
    layout = layout_of("csv", text_schema({"id": "int"}), "\n", ",")
    shards = shards_of(TextBuilder(layout, ShardOptions(None, (), 4, ("xxh3_64",))), "w-12/0", store)
    publish(store, Draft("w-12", layout.schema, shards))
    found = load_manifest(store).shards
    assert recorded(found) == {("xxh3_64",)}
    assert {tuple(shard.meta.hashes) for shard in found} == {("xxh3_64",)}


ODD = ["text", [], [{}], [{"raw": 7}] * 6, [{"raw": {"xxh3_64": "short"}}] * 6, [{"raw": {"crc": "00"}}] * 6]


@pytest.mark.parametrize("odd", ODD, ids=["text", "none", "one", "number", "short", "unknown"])
def test_with_malformed_hashes_in_the_index_the_shard_table_decides(odd):
    store = MemoryStore()
    manifest = published(store)
    index = json.loads(store.get("index.json"))
    index["smalti"]["unlisted_hashes"] = odd
    store.put("index.json", json.dumps(index).encode())
    assert load_manifest(store).shards == manifest.shards
    with pytest.raises(IndexFileError, match=r"unlisted_hashes|hash names|hex digits"):
        decode_unlisted_hashes(parse_index(store.get("index.json"), where="index.json")[0], index["smalti"])


def test_merged_shards_have_them_too(tmp_path):
    store = LocalStore(tmp_path)
    published(store)
    manifest = compact(store, size_limit=4096)
    (shard,) = manifest.shards
    assert (shard.samples, shard.hash_names, shard.unlisted_hashes) == (6, (), ("xxh3_64",))
