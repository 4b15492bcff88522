"""Added columns: every reader gets them joined, while the shards stay unchanged."""

import json
import os
import pickle
import time
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import smalti
from smalti import LocalDataset, Stream, open_dataset
from smalti.cache import CacheOptions
from smalti.catalog import Draft, load_manifest, publish, rollback, vacuum, verify
from smalti.catalog.sidecars import columns_of, live_keys, shards_of
from smalti.dataset import StreamingDataset
from smalti.errors import ChecksumMismatch, CommitConflict, IndexFileError, SchemaError, StoreNotFound
from smalti.format import ShardOptions
from smalti.spark.added_columns import add_columns, drop_columns, place_rows, write_placed
from smalti.spark.writing.dataframe import plan_table
from smalti.storage import open_store
from smalti.writer import MDSWriter
from smalti.writer.tables.plan import Attempt, WritePlan
from tests.golden.conftest import peer, peer_reads
from tests.reading_options import grouped
from tests.shard_sets import sample, write_set
from tests.stores import MemoryStore

__all__ = ["peer"]

ADDED = {"double": "int", "pair": "ndarray:float32:2", "word": "str"}


def values(batch):
    ids = batch["id"]
    return {
        "double": ids * 2,
        "pair": np.stack([ids + 0.5, -ids], axis=1).astype(np.float32),
        "word": [f"w{number}" * (number % 3 + 1) for number in ids.tolist()],
    }


def expected(number):
    """Return the whole sample, worked out by hand."""
    pair = np.array([number + 0.5, -number], np.float32)
    return {**sample(number), "double": 2 * number, "pair": pair, "word": f"w{number}" * (number % 3 + 1)}


def equal(found, wanted):
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture
def joined(tmp_path):
    """Return a set of 43 samples in five shards, with three added columns."""
    root = write_set(tmp_path / "set", 43)
    add_columns(root, ADDED, values)
    return Path(root)


def test_a_sample_and_a_batch_have_the_added_columns(joined):
    dataset = open_dataset(str(joined))
    assert len(dataset.manifest.shards) > 3
    assert all(equal(dataset[number], expected(number)) for number in range(43))
    ids = np.array([42, 0, 17, 17, 30])
    batch = dataset.stream.batch(ids)
    assert list(batch) == ["id", "text", "vector", "double", "pair", "word"]
    assert batch["double"].tolist() == [84, 0, 34, 34, 60]
    assert batch["pair"].tolist() == [[42.5, -42], [0.5, 0], [17.5, -17], [17.5, -17], [30.5, -30]]
    assert batch["word"] == ["w42", "w0", "w17" * 3, "w17" * 3, "w30"]
    assert batch["id"].tolist() == ids.tolist()


def test_a_local_dataset_reads_joined(joined):
    assert equal(LocalDataset(joined)[41], expected(41))


def test_the_shards_are_not_rewritten_and_older_versions_stay(joined):
    first, second = load_manifest(joined, version=1), load_manifest(joined)
    assert (first.version, second.version) == (1, 2)
    assert tuple(first.shards) == tuple(second.shards)
    assert (first.digest, first.row_hash) == (second.digest, second.row_hash)
    assert set(open_dataset(str(joined), version=1)[0]) == {"id", "text", "vector"}
    assert second.schema.columns() == first.schema.columns()


def test_the_mds_index_names_only_the_shards(joined):
    shown = json.loads((joined / "index.json").read_text())
    assert [entry["column_names"] for entry in shown["shards"]] == [["id", "text", "vector"]] * len(shown["shards"])
    assert sum(entry["samples"] for entry in shown["shards"]) == 43


@pytest.mark.slow
def test_mosaicml_reads_the_set_without_the_added_columns(joined, peer, tmp_path):
    found = peer_reads(peer, joined, tmp_path / "theirs.json", "streaming")
    assert len(found) == 43
    assert all(equal(found[number], sample(number)) for number in range(43))


def test_columns_can_be_added_twice_and_dropped(joined):
    add_columns(joined, {"third": "int"}, lambda batch: {"third": batch["id"] * 3})
    dataset = open_dataset(str(joined))
    assert equal(dataset[40], {**expected(40), "third": 120})
    assert dataset.stream.batch(np.array([3, 40]))["third"].tolist() == [9, 120]
    drop_columns(joined, list(ADDED))
    assert equal(open_dataset(str(joined))[7], {**sample(7), "third": 21})
    drop_columns(joined, ["third"])
    assert equal(open_dataset(str(joined))[7], sample(7))
    assert load_manifest(joined).version == 5


def test_a_rollback_takes_the_columns_away_and_back(joined):
    rollback(joined, 1)
    assert set(open_dataset(str(joined))[0]) == {"id", "text", "vector"}
    rollback(joined, 2)
    assert equal(open_dataset(str(joined))[5], expected(5))


def test_splits_are_read_joined(tmp_path):
    with MDSWriter(out=str(tmp_path / "a"), columns={"id": "int"}, size_limit=200) as writer:
        for number in range(60):
            writer.write({"id": number})
    source, out = open_store(tmp_path / "a"), open_store(tmp_path / "set")
    shards = []
    for place, shard in enumerate(load_manifest(source).shards):  # every other shard is of another split
        split = ("train", "validation")[place % 2]
        name = f"{split}/write-1/{place}.mds"
        out.put(name, source.get(shard.stored.basename))
        shards.append(replace(shard.with_names(lambda _, name=name: name), partition=split))
    schema = load_manifest(source).schema
    publish(out, Draft("write-1", schema, shards), mode="create")
    add_columns(tmp_path / "set", {"square": "int"}, lambda batch: {"square": batch["id"] ** 2})
    for split in ("train", "validation"):
        dataset = open_dataset(str(tmp_path / "set"), split=split)
        found = [dataset[number] for number in range(len(dataset))]
        assert 0 < len(found) < 60
        assert [each["square"] for each in found] == [each["id"] ** 2 for each in found]
    assert len(open_dataset(str(tmp_path / "set"), split="train")) + len(found) == 60


def remote_copy(joined, memory_store_url):
    """Return the set copied to a store that is no folder."""
    store = open_store(memory_store_url)
    for path in joined.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(joined).as_posix(), path.read_bytes())
    return memory_store_url


@pytest.fixture
def far(joined):
    """Return the set in a memory store, from which shards are fetched."""
    return remote_copy(joined, f"memory://sidecar-{uuid.uuid4().hex}")


def read_all(dataset):
    return [number for batch in dataset for number in np.atleast_1d(batch["id"]).tolist()]


def test_an_epoch_is_the_same_with_and_without_added_columns_and_resumes(far, tmp_path):
    options = {"shuffle": True, "batch_size": 4, "shuffle_seed": 7, "num_canonical_nodes": 2}
    plain = StreamingDataset(remote=far, version=1, **grouped(local=tmp_path / "one", **options))
    wide = StreamingDataset(remote=far, **grouped(local=tmp_path / "two", **options))
    order = read_all(plain)
    assert max(order) == 42
    assert read_all(wide) == order
    state = plain.state_dict(12)
    wide.load_state_dict(state)
    rest = list(wide)
    assert [each["id"] for each in rest] == order[12:]
    assert all(equal(each, expected(each["id"])) for each in rest)


def test_a_limited_cache_counts_both_files_and_still_reads_all(far, tmp_path):
    raw = sum(shard.raw.num_bytes for shard in load_manifest(far).shards)
    sizes = [shard.raw.num_bytes for shard in load_manifest(far).shards]
    options = {"shuffle": False, "batch_size": 4, "num_canonical_nodes": 1}
    dataset = StreamingDataset(remote=far, **grouped(local=tmp_path / "cache", cache_limit=3 * max(sizes), **options))
    held, fetched = dataset.stream.costs()
    assert len(held) == len(sizes)
    assert all(held[place] > sizes[place] for place in range(len(sizes)))
    assert sum(held) > raw
    assert all(fetched)
    found = list(dataset)
    assert all(equal(each, expected(each["id"])) for each in found)
    here = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds"))
    assert 0 < here <= 3 * max(sizes)


def test_a_prefetch_fetches_the_column_shards_too(far, tmp_path):
    dataset = StreamingDataset(remote=far, cache=CacheOptions(local=tmp_path / "cache"), batch_size=4)
    (entry,) = columns_of(dataset.manifest.sidecars)
    wanted = [dataset.manifest.shards[0].raw.basename, shards_of(open_store(far), entry)[0].raw.basename]
    dataset.stream.prefetch(np.arange(3))
    deadline = time.monotonic() + 60
    while not all(list((tmp_path / "cache").rglob(name)) for name in wanted):
        assert time.monotonic() < deadline, "a shard that was to be prefetched did not come"
        time.sleep(0.01)
    assert len(list((tmp_path / "cache").rglob("*.mds"))) == 2


def test_a_dataset_is_pickled_to_workers_with_its_added_columns(far, tmp_path):
    dataset = StreamingDataset(remote=far, cache=CacheOptions(local=tmp_path / "cache"))
    assert equal(dataset[8], expected(8))
    copy = pickle.loads(pickle.dumps(dataset))
    assert equal(copy[8], expected(8))


def test_a_damaged_added_shard_is_an_error_that_names_it(far, tmp_path):
    store = open_store(far)
    (entry,) = columns_of(load_manifest(far).sidecars)
    key = shards_of(store, entry)[0].stored.basename
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.put(key, bytes(data))
    dataset = StreamingDataset(remote=far, cache=CacheOptions(local=tmp_path / "cache", download_retry=1))
    with pytest.raises(ChecksumMismatch, match=key.rsplit("/", 1)[-1]):
        dataset[0]
    assert equal(dataset[42], expected(42))


def test_every_object_of_added_columns_is_live(joined):
    store, manifest = open_store(joined), load_manifest(joined)
    live = set(live_keys(store, manifest.sidecars))
    write = load_manifest(joined).write_id
    stored = {path.relative_to(joined).as_posix() for path in (joined / write).rglob("*") if path.is_file()}
    assert live == stored
    assert len(live) == len(manifest.shards) + 1


def test_a_verification_reads_the_added_shards(joined):
    assert verify(joined).ok
    store = open_store(joined)
    (entry,) = columns_of(load_manifest(joined).sidecars)
    key = shards_of(store, entry)[1].stored.basename
    data = store.get(key)
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    assert [problem.key for problem in verify(joined).problems] == [key]


def test_a_vacuum_keeps_added_columns_until_no_version_has_them(joined):
    write = joined / load_manifest(joined).write_id
    make_old(joined)
    vacuum(joined, older_than=0.0, unsafe_ttl=True, dry_run=False)
    assert equal(open_dataset(str(joined))[40], expected(40))
    drop_columns(joined, list(ADDED))
    make_old(joined)
    vacuum(joined, older_than=0.0, unsafe_ttl=True, dry_run=False)
    assert [path for path in write.rglob("*") if path.is_file()] == []
    assert equal(open_dataset(str(joined))[40], sample(40))


def make_old(root):
    """Age all objects, because a vacuum uses the store's modification times."""
    for path in root.rglob("*"):
        os.utime(path, (1, 1))


def test_an_append_that_would_lack_the_columns_is_refused(joined, tmp_path):
    other = load_manifest(write_set(tmp_path / "other", 5))
    store = open_store(joined)
    moved = [shard.with_prefix("more") for shard in other.shards]
    for before, after in zip(other.shards, moved, strict=True):
        store.put(after.stored.basename, open_store(tmp_path / "other").get(before.stored.basename))
    with pytest.raises(SchemaError, match="'double', 'pair', 'word' were added beside the shards"):
        publish(joined, Draft("more-1", other.schema, moved), mode="append")
    with pytest.raises(SchemaError, match="'double', 'pair', 'word' were added beside the shards"):
        MDSWriter(out=joined, columns=other.schema.columns(), mode="append")
    drop_columns(joined, list(ADDED))
    assert publish(joined, Draft("more-1", other.schema, moved), mode="append").rows == 48


def test_values_that_are_no_spark_frame_are_refused_with_the_call_that_makes_one(joined):
    with pytest.raises(TypeError, match=r"`values`.* found pandas\..*: give spark.createDataFrame\(frame\)(?:\n|$)"):
        add_columns(joined, {"more": "int"}, pd.DataFrame({"sample_id": [0], "more": [1]}))
    assert load_manifest(joined).version == 2


def test_what_cannot_be_added_or_dropped_is_refused(joined, tmp_path):
    with pytest.raises(SchemaError, match="column 'id' already"):
        add_columns(joined, {"id": "int"}, values)
    with pytest.raises(SchemaError, match="column 'word' already"):
        add_columns(joined, {"word": "str"}, values)
    with pytest.raises(SchemaError, match="names no column"):
        add_columns(joined, {}, values)
    with pytest.raises(SchemaError, match="needs an encoding for 'x'"):
        add_columns(joined, {"x": None}, values)
    with pytest.raises(SchemaError, match=r"columns x, it gave y"):
        add_columns(joined, {"x": "int"}, lambda batch: {"y": batch["id"]})
    with pytest.raises(SchemaError, match=r"gave 1 values of 'x' for \d+ samples"):
        add_columns(joined, {"x": "int"}, lambda _: {"x": [1]})
    with pytest.raises(SchemaError, match=r"'text' of .* was not added"):
        drop_columns(joined, ["text"])
    with pytest.raises(SchemaError, match="added together and are dropped together; pair, word was not named"):
        drop_columns(joined, ["double"])
    with pytest.raises(StoreNotFound, match="holds no version"):
        add_columns(tmp_path / "nothing", {"x": "int"}, values)
    assert load_manifest(joined).version == 2


def test_columns_made_from_a_version_that_was_overtaken_are_not_published(joined, tmp_path):
    def overtaken(batch):
        if load_manifest(joined).version == 2:
            drop_columns(joined, list(ADDED))
        return {"x": batch["id"]}

    with pytest.raises(CommitConflict, match="made from version 2"):
        add_columns(joined, {"x": "int"}, overtaken)
    assert set(open_dataset(str(joined))[0]) == {"id", "text", "vector"}


def test_versions_in_between_with_equal_content_do_not_conflict(joined):
    def returned(batch):
        if load_manifest(joined).version == 2:
            drop_columns(joined, list(ADDED))
            rollback(joined, 2)
        return {"x": batch["id"]}

    add_columns(joined, {"x": "int"}, returned)
    assert load_manifest(joined).version == 5
    assert equal(open_dataset(str(joined))[9], {**expected(9), "x": 9})


def test_a_loader_delivers_the_added_columns(joined):
    dataset = smalti.StreamingDataset(remote=joined, batch_size=5)
    batches = list(smalti.StreamingDataLoader(dataset))
    assert [batch["double"].tolist() for batch in batches] == [(2 * batch["id"]).tolist() for batch in batches]
    assert max(number for batch in batches for number in batch["id"].tolist()) == 42
    assert batches[0]["pair"].shape == (5, 2)


def test_streams_are_mixed_where_the_same_columns_were_added_to_each(joined, tmp_path):
    other = write_set(tmp_path / "other", 25)
    streams = [Stream(remote=str(joined)), Stream(remote=str(other))]
    ids = np.array([2, 43 + 3, 40, 43 + 24])
    alone = StreamingDataset(streams=streams).stream
    assert set(alone.sample(43 + 3)) == {"id", "text", "vector"}
    assert equal(alone.sample(40), expected(40))
    assert set(alone.batch(ids[[1, 3]])) == {"id", "text", "vector"}
    with pytest.raises(SchemaError, match="streams with and without added columns"):
        alone.batch(ids)
    add_columns(other, ADDED, values)
    batch = StreamingDataset(streams=streams).stream.batch(ids)
    assert batch["id"].tolist() == [2, 3, 40, 24]
    assert batch["double"].tolist() == [4, 6, 80, 48]
    assert batch["word"] == [expected(number)["word"] for number in (2, 3, 40, 24)]


def test_a_batch_of_more_shards_than_may_be_open_is_joined_in_parts(joined):
    stream = open_dataset(str(joined)).stream
    stream.cache._max_open = 2  # as where a process may open few files
    batch = stream.batch(np.arange(42, -1, -1))
    assert batch["id"].tolist() == list(range(42, -1, -1))
    assert batch["double"].tolist() == list(range(84, -1, -2))
    assert batch["word"][:2] == ["w42", "w41w41w41"]


@pytest.mark.parametrize(
    "change",
    [
        {"columns": {"double": "int", "pair": "ndarray:float32:2", "word": "bytes"}},
        {"columns": "double"},
        {"table_sha256": "0" * 64},
        {"table_key": "../elsewhere.arrow"},
        {"table_key": "nowhere.arrow"},
        {"digest": 5},
        {"num_bytes": "many"},
    ],
)
def test_an_inconsistent_entry_is_refused_when_the_set_is_opened(joined, change):
    path = joined / "_versions" / "00000002.json"
    header = json.loads(path.read_text())
    header["sidecars"][0] |= change
    path.write_text(json.dumps(header))
    with pytest.raises(IndexFileError):
        open_dataset(str(joined))


def test_added_columns_of_another_set_are_refused(joined, tmp_path):
    """Otherwise a sample would be joined with the values of another one."""
    other = write_set(tmp_path / "other", 20)
    add_columns(other, ADDED, values)
    entry = load_manifest(other).sidecars[0]
    open_store(joined).put(entry["table_key"], open_store(other).get(entry["table_key"]))
    path = joined / "_versions" / "00000002.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sidecars": [entry]}))
    with pytest.raises(IndexFileError, match=r"do not fit the \d+ shards that they were added to"):
        open_dataset(str(joined))


@pytest.mark.spark
def test_a_function_runs_on_executors(spark, tmp_path):
    root = write_set(tmp_path / "set", 43)
    add_columns(root, {"double": "int"}, lambda batch: {"double": batch["id"] * 2}, spark=spark)
    assert [open_dataset(str(root))[number]["double"] for number in (0, 21, 42)] == [0, 42, 84]


@pytest.mark.spark
def test_a_frame_keyed_by_sample_id_is_added_whatever_its_order(spark, tmp_path):
    root = write_set(tmp_path / "set", 43)
    rows = [(number, float(number) / 4, f"s{number}", number % 2 == 0) for number in range(43)]
    frame = spark.createDataFrame(rows[::-1], "sample_id long, score double, `a.b` string, even boolean")
    add_columns(root, {"score": None, "a.b": None, "even": None}, frame.repartition(3))
    found = open_dataset(str(root))
    wanted = [{**sample(n), "score": n / 4, "a.b": f"s{n}", "even": n % 2 == 0} for n in range(43)]
    assert all(equal(found[n], wanted[n]) for n in range(43))
    assert isinstance(found[2]["even"], np.bool_)
    with pytest.raises(SchemaError, match="sample 17 has no values"):
        add_columns(root, {"word": "str"}, frame.filter("sample_id <> 17").selectExpr("sample_id", "`a.b` AS word"))
    assert load_manifest(root).version == 2


PLAN = WritePlan(MemoryStore(), "write-2", ShardOptions(None))
KEYED = plan_table(StructType([StructField("score", LongType())]))
ENDS = np.array([3, 5, 9])


def placed(ids):
    """Yield rows as Spark's tasks get them, in batches of two."""
    numbers = pa.array(ids, pa.int64())
    rows = pa.record_batch([numbers, pa.array([7 * number for number in ids], pa.int64())], ["sample", "c0"])
    batches = (rows.slice(begin, 2) for begin in range(0, len(ids), 2))
    return write_placed(PLAN, KEYED, ENDS, [None, "train", None], place_rows(ENDS, batches), Attempt.new(0))


def test_rows_of_a_frame_are_written_to_the_column_shards_of_their_samples():
    found = placed(range(9))["shards"]
    assert [(place, entry["samples"]) for place, entry in found] == [(0, 3), (1, 2), (2, 4)]
    assert [entry["raw_data"]["basename"].split("/")[0] for _, entry in found] == ["write-2", "train", "write-2"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 2, 4], "sample 3 has no values"),
        ([0, 1], "sample 2 has no values"),
        ([0, 1, 2, 3], "sample 4 has no values"),
        ([0, 1, 1, 2], "sample 1 has values twice"),
        ([0, 1, 2, 2, 3, 4], "sample 2 has values twice"),
        ([0, 1, 2, 9], "'sample_id' is 9, the set has samples 0 to 8"),
        ([-1], "'sample_id' is -1"),
        ([0, None], "'sample_id' has a null"),
    ],
)
def test_samples_without_values_or_with_two_are_refused(ids, message):
    with pytest.raises(SchemaError, match=message):
        placed_with_nulls(ids)


def placed_with_nulls(ids):
    rows = pa.record_batch([pa.array(ids, pa.int64()), pa.array([1] * len(ids), pa.int64())], ["sample", "c0"])
    return write_placed(PLAN, KEYED, ENDS, [None] * 3, place_rows(ENDS, iter([rows])), Attempt.new(0))
