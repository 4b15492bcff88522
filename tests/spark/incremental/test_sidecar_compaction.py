"""Compaction of a version with added columns: shards and column shards are cut alike, and samples stay the same."""

from dataclasses import replace

import numpy as np
import pytest

from smalti import LocalDataset, compact, load_manifest, open_dataset, verify
from smalti.catalog import Draft, new_write_id, publish, vacuum
from smalti.catalog.sidecars import aligned_shards, columns_of
from smalti.catalog.tags import tag
from smalti.errors import ChecksumMismatch, CommitConflict
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.spark.added_columns import add_columns, drop_columns
from smalti.storage import open_store
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.shard_sets import sample, write_set
from tests.stores import MemoryStore
from tests.stores.memory import Killed

ADDED = {"double": "int", "word": "str"}


def values(batch):
    ids = batch["id"]
    return {"double": ids * 2, "word": [f"w{number}" * (number % 3 + 1) for number in ids.tolist()]}


def expected(number):
    """Return the whole sample, worked out by hand."""
    return {**sample(number), "double": 2 * number, "word": f"w{number}" * (number % 3 + 1), "third": 3 * number}


def equal(found, wanted):
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture
def joined(tmp_path):
    """Return a set of 43 samples in about five shards, with two groups of added columns; version 3."""
    root = write_set(tmp_path / "set", 43, row_hash=True)
    add_columns(root, ADDED, values)
    add_columns(root, {"third": "int"}, lambda batch: {"third": batch["id"] * 3}, compression=None)
    return root


def column_shards(store, manifest):
    return [list(aligned_shards(store, entry, manifest.shards)) for entry in columns_of(manifest.sidecars)]


def test_the_joined_samples_are_the_same_and_in_the_same_order(joined):
    before = load_manifest(joined)
    assert len(before.shards) > 3
    seen = []
    made = compact(joined, size_limit="1mb", on_shard=lambda done, total: seen.append((done, total)))
    assert (made.version, len(made.shards), made.rows, made.row_hash) == (4, 1, 43, before.row_hash)
    dataset = open_dataset(str(joined))
    assert all(equal(dataset[number], expected(number)) for number in range(43))
    assert dataset.stream.batch(np.array([42, 0, 17]))["third"].tolist() == [126, 0, 51]
    assert equal(LocalDataset(joined)[41], expected(41))
    assert seen[-1] == (3 * len(before.shards), 3 * len(before.shards))
    report = verify(joined)
    assert (report.ok, report.num_shards, report.row_hash) == (True, 3, before.row_hash)
    old = open_dataset(str(joined), version=3)
    assert all(equal(old[number], expected(number)) for number in range(43))


def test_shards_and_column_shards_are_cut_at_the_same_samples(joined):
    made = compact(joined, below=1300, size_limit=1300)
    assert 1 < len(made.shards) < len(load_manifest(joined, version=3).shards)
    rows = column_shards(open_store(joined), made)
    assert [[shard.samples for shard in row] for row in rows] == [[shard.samples for shard in made.shards]] * 2
    assert all(shard.raw.num_bytes <= 1300 for row in (made.shards, *rows) for shard in row)
    dataset = open_dataset(str(joined))
    assert all(equal(dataset[number], expected(number)) for number in range(43))
    assert compact(joined, below=1300, size_limit=1300).version == made.version


def test_columns_much_larger_than_the_shards_limit_what_is_joined(tmp_path):
    """Four shards of ten small samples with a kilobyte of added columns each are joined in pairs, by these bytes."""
    root = write_set(tmp_path / "set", 40, size_limit=660)
    per_shard = [shard.samples for shard in load_manifest(root).shards]
    add_columns(root, {"blob": "bytes"}, lambda batch: {"blob": [b"x" * 1000] * len(batch["id"])}, compression=None)
    made = compact(root, below=25_000, size_limit=25_000)
    assert [sum(per_shard[:2]), sum(per_shard[2:4])] == [shard.samples for shard in made.shards][:2]
    assert all(len(open_dataset(str(root))[number]["blob"]) == 1000 for number in range(40))


def test_added_columns_of_a_compacted_version_can_be_dropped_and_added(joined):
    compact(joined, size_limit="1mb")
    drop_columns(joined, ["third"])
    add_columns(joined, {"third": "int"}, lambda batch: {"third": batch["id"] * 3})
    dataset = open_dataset(str(joined))
    assert all(equal(dataset[number], expected(number)) for number in range(43))
    assert verify(joined).ok


def in_splits(store):
    """Write two shards of each of two splits, with one sample each."""
    write_id, schema, infos = new_write_id(), Schema.from_columns({"id": "int64"}), []
    for place, split in enumerate(("test", "test", "train", "train")):
        builder = ShardBuilder(schema, ShardOptions())
        builder.add({"id": 2 * place})
        builder.add({"id": 2 * place + 1})
        (filled,) = builder.finish()
        built = filled.seal()
        info = replace(built.info.with_prefix(f"{split}/{write_id}/{place}"), partition=split)
        store.put(info.stored.basename, bytes(built.payloads[0]))
        infos.append(info)
    publish(store, Draft(write_id, schema, infos))


def test_splits_stay_apart_and_are_read_joined(tmp_path):
    in_splits(open_store(tmp_path))
    add_columns(tmp_path, {"square": "int"}, lambda batch: {"square": batch["id"] ** 2})
    made = compact(tmp_path, size_limit="1mb")
    assert [(shard.partition, shard.samples) for shard in made.shards] == [("test", 4), ("train", 4)]
    assert all(
        shard.raw.basename.startswith(f"{shard.partition}/") for shard in column_shards(open_store(tmp_path), made)[0]
    )
    dataset = open_dataset(str(tmp_path), split="train")
    assert [(dataset[number]["id"], dataset[number]["square"]) for number in range(4)] == [
        (4, 16), (5, 25), (6, 36), (7, 49),
    ]  # fmt: skip


def in_memory(store):
    in_splits(store)
    add_columns(store, {"square": "int"}, lambda batch: {"square": batch["id"] ** 2})


def shards_in(store):
    return {key for key in store.objects if "/shard." in key}


@pytest.mark.parametrize("change", ["added", "dropped"])
def test_columns_added_or_dropped_during_a_compaction_win_and_nothing_is_left(change):
    store = InterferingStore()
    in_memory(store)
    acts = {
        "added": lambda: add_columns(store, {"x": "int"}, lambda batch: {"x": batch["id"]}),
        "dropped": lambda: drop_columns(store, ["square"]),
    }
    store.interfere = acts[change]
    with pytest.raises(CommitConflict):
        compact(store, size_limit="1mb")
    left = columns_of(load_manifest(store).sidecars)
    assert [list(entry.columns) for entry in left] == ([["square"], ["x"]] if change == "added" else [])
    assert len(shards_in(store)) == 8 + (4 if change == "added" else 0)
    assert verify(store).ok


def test_a_damaged_column_shard_fails_the_compaction_and_nothing_is_left():
    store = MemoryStore()
    in_memory(store)
    key = column_shards(store, load_manifest(store))[0][3].stored.basename
    store.objects[key] = store.objects[key][:-1] + b"!"
    before = dict(store.objects)
    with pytest.raises(ChecksumMismatch):
        compact(store, size_limit="1mb")
    assert store.objects == before


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_killed_after_any_write_the_old_or_the_new_version_is_whole_and_vacuum_removes_the_rest(step):
    for count in range(0, 60, step):
        now = [0.0]
        store = MemoryStore(clock=lambda now=now: now[0])
        in_memory(store)
        first = shards_in(store)
        tag(store, "before", 2)
        store.die_after_writes(count)
        try:
            compact(store, size_limit="1mb")
        except Killed:
            pass
        else:
            break
        store.heal()
        newest = load_manifest(store)
        named = {shard.stored.basename for row in (newest.shards, *column_shards(store, newest)) for shard in row}
        now[0] += 20 * 86400
        vacuum(store, dry_run=False)
        assert verify(store).ok, f"killed after {count} writes"
        assert verify(store, version=2).ok
        assert shards_in(store) == first | named
    assert count > 6
