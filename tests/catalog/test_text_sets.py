"""Versions of text shards: manifest, table, index and verification have both files; MDS sets are unchanged."""

from dataclasses import replace
from hashlib import sha256

import pyarrow as pa
import pytest

from smalti.catalog import Draft, load_manifest, new_write_id, publish, verify
from smalti.catalog.digest import digest_of
from smalti.catalog.table.arrow import emit_table, parse_table
from smalti.errors import CatalogError, IndexFileError
from smalti.format import FileInfo, Schema, ShardInfo, parse_index, text_schema
from tests.format.text_sets import COLUMNS, KINDS, builder
from tests.stores import MemoryStore

MDS = [
    ShardInfo(
        Schema.from_columns({"id": "int", "t": "str"}), 3,
        FileInfo("train/w/0/shard.00000.mds", 120, {"xxh3_64": "0123456789abcdef"}), hash_names=("xxh3_64",),
        size_limit=1 << 26, partition="train",
    ),
    ShardInfo(
        Schema.from_columns({"id": "int", "t": "str"}), 2, FileInfo("w/1/shard.00000.mds", 99),
        FileInfo("w/1/shard.00000.mds.zstd", 50), "zstd:7",
    ),
]  # fmt: skip


def draft(store, kind="csv", split=None, **options):
    write_id = new_write_id()
    made = builder(kind, size_limit=50, **options)
    filled = [s for i in range(20) for s in made.add({"id": i, "name": f"é{i}", "x": i / 8})] + made.finish()
    infos = []
    for shard in [one.seal() for one in filled]:
        info = replace(shard.info.with_prefix(f"{split}/{write_id}/0" if split else f"{write_id}/0"), partition=split)
        for file, data in zip(info.stored_files, shard.payloads, strict=True):
            store.put(file.basename, data)
        infos.append(info)
    assert len(infos) > 3
    return Draft(write_id, text_schema(COLUMNS), infos)


def parsed(shards):
    data = emit_table(shards)
    return parse_table(data, sha256=sha256(data).hexdigest(), where="table")


def test_the_digest_of_mds_shards_is_unchanged():
    assert digest_of(MDS) == "f4cffda7b8e5f6a10e3c309aaf2cb4bce2399eb96853c8c84ffe01b388ce8975"


def test_the_table_of_mds_shards_has_layout_1():
    table = pa.ipc.open_file(pa.BufferReader(emit_table(MDS))).read_all()
    assert b'"version": 1' in table.schema.metadata[b"smalti"]
    assert table.column_names == [
        "schema", "partition", "samples", "raw_name", "raw_bytes", "raw_hashes", "zip_name", "zip_bytes", "zip_hashes",
        "compression", "hash_names", "size_limit",
    ]  # fmt: skip
    assert parsed(MDS) == tuple(MDS)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_published_text_set_opens_with_all_data_of_its_shards(kind, compression):
    store = MemoryStore()
    made = draft(store, kind, compression=compression)
    manifest = publish(store, made)
    assert manifest.shards == load_manifest(store).shards == tuple(made.shards)
    assert manifest.schema == text_schema(COLUMNS)
    assert manifest.num_bytes == sum(store.size(f.basename) for shard in made.shards for f in shard.stored_files)
    assert parse_index(store.get("index.json"), where="index")[0] == list(made.shards)
    assert verify(store).ok
    assert parsed(made.shards) == tuple(made.shards)


def test_the_digest_depends_on_everything_about_the_meta_file():
    store = MemoryStore()
    shard = draft(store, "xsv", compression="zstd").shards[0]
    changed = [
        replace(shard, format="csv"), replace(shard, newline="\r\n"), replace(shard, separator="|"),
        replace(shard, meta=replace(shard.meta, num_bytes=shard.meta.num_bytes + 1)),
        replace(shard, zip_meta=replace(shard.zip_meta, hashes={"xxh3_64": "0" * 16})),
    ]  # fmt: skip
    assert len({digest_of([one]) for one in [shard, *changed]}) == 6


def test_a_split_has_an_index_file_with_names_below_it():
    store = MemoryStore()
    publish(store, draft(store, split="train"))
    shards, extra = parse_index(store.get("train/index.json"), where="index")
    assert extra["smalti"]["split"] == "train"
    assert all(store.exists(f"train/{file.basename}") for shard in shards for file in shard.stored_files)


def test_a_meta_file_that_is_missing_or_short_is_not_published():
    store = MemoryStore()
    made = draft(store)
    key = made.shards[1].meta.basename
    data = store.get(key)
    store.put(key, data[:-1])
    with pytest.raises(CatalogError, match=key):
        publish(store, made)
    store.delete(key)
    with pytest.raises(CatalogError, match="not in the store"):
        publish(store, made)
    assert not store.exists("index.json")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_verification_finds_a_damaged_meta_file(compression):
    store = MemoryStore()
    made = draft(store, compression=compression)
    publish(store, made)
    key = made.shards[1].stored_files[1].basename
    data = store.get(key)
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    assert [(problem.key, problem.kind) for problem in verify(store).problems] == [
        (made.shards[1].stored.basename, "checksum")
    ]
    assert verify(store, deep=False).ok
    store.put(key, data[:-1])
    assert [(problem.key, problem.kind) for problem in verify(store, deep=False).problems] == [(key, "size")]
    store.delete(key)
    assert [(problem.key, problem.kind) for problem in verify(store).problems] == [(key, "missing")]


def test_an_empty_text_set_can_be_published_and_opened():
    store = MemoryStore()
    publish(store, Draft(new_write_id(), text_schema(COLUMNS), []))
    assert load_manifest(store).schema == text_schema(COLUMNS)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("samples", 10**6), ("samples", -1), ("raw_name", "../x"), ("raw_bytes", -1), ("raw_hashes", '["xxh3_64"]'),
        ("raw_hashes", '{"xxh3_64": "xyz"}'), ("raw_hashes", "[" * 10**5), ("hash_names", "sha1"), ("hash_names", "no"),
        ("compression", "lzma"), ("compression", ""), ("size_limit", 1 << 40), ("schema", -1), ("schema", 5),
        ("partition", "../x"), ("partition", "val"), ("format", "mds"), ("format", "parquet"), ("separator", "|"),
        ("newline", ""), ("newline", None), ("meta_name", None), ("meta_bytes", 3), ("zip_meta_name", "x"),
        ("meta_name", "w/0/shard.00000.csv"),
    ],
)  # fmt: skip
def test_a_table_with_a_wrong_value_is_refused(column, value):
    shard = draft(MemoryStore()).shards[0].with_names(lambda name: f"w/0/{name.rpartition('/')[2]}")
    table = pa.ipc.open_file(pa.BufferReader(emit_table([shard]))).read_all()
    kind = pa.int64() if isinstance(value, int) else pa.string()

    def parsed_with(item):
        changed = table.set_column(table.column_names.index(column), column, pa.array([item], kind))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, changed.schema) as writer:
            writer.write_table(changed)
        data = sink.getvalue().to_pybytes()
        return parse_table(data, sha256=sha256(data).hexdigest(), where="table")

    assert parsed_with(table.column(column)[0].as_py()) == (shard,), "it is the value that is refused"
    with pytest.raises(IndexFileError):
        parsed_with(value)
