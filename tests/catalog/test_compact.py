"""Compaction moves samples into full shards, and changes nothing else."""

import random

import pytest

from smalti.catalog import history, load_manifest, publish, rollback, verify
from smalti.catalog.retention.vacuum import vacuum
from smalti.catalog.tags import tag
from smalti.errors import (
    CatalogError,
    ChecksumMismatch,
    CommitConflict,
    CommitUnknown,
    IndexFileError,
    StoreNotFound,
)
from smalti.format import ShardPacker, emit_index
from smalti.storage import LocalStore
from smalti.writer import MDSWriter, copying
from smalti.writer.compact import compact
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.catalog.retention.test_vacuum_columns import publish_with_columns
from tests.stores import MemoryStore
from tests.stores.memory import Killed


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


def rows_of(store, version=None, split=None):
    """Return (id, text) of every sample, in order, read from the shards themselves."""
    from smalti.catalog.verify import open_checked

    rows = []
    for info in load_manifest(store, version=version).select(split):
        with open_checked(store, info) as shard:
            rows += [(int(shard[number]["id"]), shard[number]["text"]) for number in range(len(shard))]
    return rows


def expected_rows(*ranges):
    return [(number, f"row {number}") for numbers in ranges for number in numbers]


def test_small_shards_of_automatic_compression_are_merged_whatever_each_decided(store):
    texts = ["words " * 500, random.Random(3).randbytes(1500).hex()[::2], "short", "more words " * 400]
    for number, text in enumerate(texts):
        columns, compression = {"id": "int", "text": "str"}, ("auto", "auto", "auto", "zstd")[number]
        with MDSWriter(out=store, columns=columns, compression=compression, mode="append") as writer:
            writer.write({"id": number, "text": text})
    assert [info.compression for info in load_manifest(store).shards] == ["zstd", "zstd", None, "zstd"]
    made = compact(store)
    assert [(info.samples, info.compression) for info in made.shards] == [(4, "zstd")]
    assert rows_of(store) == list(enumerate(texts))
    assert compact(store).version == made.version


def test_shards_of_a_compression_that_was_chosen_are_not_merged_with_others(store):
    for compression in ("zstd:9", None, "gz"):
        with MDSWriter(out=store, columns={"id": "int"}, compression=compression, mode="append") as writer:
            writer.write({"id": 1})
    assert compact(store).version == 3


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_small_shards_become_full_ones_with_the_same_samples_in_order(store, make_draft, compression):
    publish(store, make_draft(store, 40, compression=compression, lineage={"from": "here"}, metadata={"a": 1}))
    before = load_manifest(store)
    assert len(before.shards) == 5
    seen = []
    made = compact(store, size_limit=10_000, on_shard=lambda done, total: seen.append((done, total)))
    assert (made.version, len(made.shards), made.rows) == (2, 1, 40)
    assert rows_of(store) == expected_rows(range(40))
    assert rows_of(store, version=1) == expected_rows(range(40)), "the old version stays as it was"
    assert (made.lineage, made.metadata) == ({"from": "here"}, {"a": 1})
    assert [info.operation for info in history(store)] == ["create", "compact"]
    assert seen == [(number + 1, len(before.shards)) for number in range(len(before.shards))]
    assert verify(store).ok
    assert {shard.compression for shard in made.shards} == {shard.compression for shard in before.shards}


def test_the_row_hash_stays_and_verification_computes_the_same(tmp_path):
    with MDSWriter(out=tmp_path, columns={"id": "int", "text": "str"}, size_limit=400, row_hash=True) as writer:
        for number in range(40):
            writer.write({"id": number, "text": f"row {number}"})
    before = load_manifest(tmp_path)
    made = compact(tmp_path, size_limit=10_000)
    assert len(before.row_hash) == 32
    assert made.row_hash == before.row_hash
    assert verify(tmp_path).row_hash == before.row_hash


def test_full_shards_stay_as_they_are(store, make_draft):
    publish(store, make_draft(store, 40))
    before = load_manifest(store).shards
    made = compact(store, below=1, size_limit=10_000)
    assert (made.version, tuple(made.shards)) == (1, tuple(before))
    last = before[-1].raw.num_bytes
    assert last < before[0].raw.num_bytes
    assert compact(store, below=last + 1, size_limit=10_000).version == 1, "one small shard alone gains nothing"


def test_shards_whose_number_would_not_shrink_are_not_written_again(store, make_draft):
    publish(store, make_draft(store, 40))
    assert compact(store, below=10_000, size_limit=300).version == 1


def test_splits_stay_apart_and_in_order(store, make_draft):
    publish(store, make_draft(store, 20, splits=("test", "train")))
    publish(store, make_draft(store, 10, first=100, splits=("train", "test")), mode="append")
    made = compact(store, size_limit=10_000)
    assert [shard.partition for shard in made.shards] == ["test", "train", "test"]
    assert rows_of(store, split="train") == expected_rows(range(20), range(100, 110))
    assert rows_of(store, split="test") == expected_rows(range(20), range(100, 110))
    assert verify(store).ok


def test_what_cannot_be_compacted_is_refused(store, make_draft):
    with pytest.raises(StoreNotFound, match="no shard set"):
        compact(store)
    draft = make_draft(store)
    store.put("index.json", emit_index(draft.shards))
    with pytest.raises(CatalogError, match="plain MDS set without versions"):
        compact(store)


def test_added_columns_whose_table_is_gone_are_not_left_behind(store, make_draft):
    entry = {
        "kind": "columns", "columns": {"score": "float32"}, "table_key": "x/t.arrow", "table_sha256": "0" * 64,
        "digest": "0" * 64, "num_bytes": 1, "logical": {},
    }  # fmt: skip
    publish(store, make_draft(store, 40, sidecars=(entry,)))
    with pytest.raises(IndexFileError, match=r"table of added columns .* is gone"):
        compact(store, size_limit=10_000)
    assert load_manifest(store).version == 1


# ---------------------------------------------------------------------- concurrent publishers and faults


def test_a_concurrent_append_is_kept(make_draft):
    store = InterferingStore()
    publish(store, make_draft(store, 40, row_hash="0" * 31 + "1"))
    store.interfere = lambda: publish(store, make_draft(store, 3, first=90, row_hash="0" * 31 + "2"), mode="append")
    made = compact(store, size_limit=10_000)
    assert (made.version, made.row_hash) == (3, "0" * 31 + "3")
    assert rows_of(store) == expected_rows(range(40), range(90, 93))
    assert verify(store, deep=False).ok


def test_a_concurrent_overwrite_wins_and_nothing_is_left(make_draft):
    store = InterferingStore()
    publish(store, make_draft(store, 40))
    store.interfere = lambda: publish(store, make_draft(store, 4, write_id="over"), mode="overwrite")
    before = {key for key in store.objects if "/shard." in key}
    with pytest.raises(CommitConflict, match="made from version 1, and version 2 has other shards or columns;"):
        compact(store, size_limit=10_000)
    assert load_manifest(store).rows == 4
    after = {key for key in store.objects if "/shard." in key and not key.startswith("over/")}
    assert after == before
    assert [key for key in store.objects if "/writes/" in key] == []


def test_a_compaction_that_loses_leaves_no_table_of_added_columns(make_draft):
    store = InterferingStore()
    publish_with_columns(store, make_draft)
    store.interfere = lambda: publish(store, make_draft(store, 4, write_id="over"), mode="overwrite")
    before = {key for key in store.objects if not key.startswith(("over/", "_versions/"))}
    with pytest.raises(CommitConflict):
        compact(store, size_limit=10_000)
    after = {key for key in store.objects if not key.startswith(("over/", "_versions/"))}
    assert after - {"index.json"} == before - {"index.json"}
    assert [key for key in store.objects if "/writes/" in key] == []


def test_a_damaged_shard_stops_a_compaction_and_nothing_is_left(make_draft):
    store = MemoryStore()
    made = publish(store, make_draft(store, 40))
    key = made.shards[3].raw.basename
    store.objects[key] = store.objects[key][:-1] + b"!"
    before = dict(store.objects)
    with pytest.raises(ChecksumMismatch):
        compact(store, size_limit=300 * 3)
    assert store.objects == before


class LossyPacker(ShardPacker):
    """A packer that writes the first sample of every shard twice and drops the second, so that the count is right."""

    def add_encoded(self, lengths, data):
        if len(lengths) > 1 and lengths[0] == lengths[1]:
            first, both = int(lengths[0]), int(lengths[0] + lengths[1])
            data = memoryview(bytes(data[:first]) * 2 + bytes(data[both:]))
        return super().add_encoded(lengths, data)


def test_samples_that_are_not_those_that_were_read_are_never_published(make_draft, monkeypatch):
    """This simulates a memory fault, which no checksum of a file would detect."""
    monkeypatch.setattr(copying, "ShardPacker", LossyPacker)
    store = MemoryStore()
    publish(store, make_draft(store, 40))
    before = dict(store.objects)
    with pytest.raises(CatalogError, match="are not those that were read"):
        compact(store, size_limit=10_000)
    assert store.objects == before


def test_an_unknown_outcome_removes_nothing(make_draft):
    store = InterferingStore()
    publish(store, make_draft(store, 40))
    store.plant("put_if_absent", key="*00000002.json", lost_ack=True)
    store.interfere = lambda: store.plant("get_range", key="*00000002.json")
    with pytest.raises(CommitUnknown):
        compact(store, size_limit=10_000)
    store.heal()
    assert load_manifest(store).version == 2
    assert verify(store).ok


def test_killed_after_any_write_the_old_or_the_new_version_is_whole_and_vacuum_removes_the_rest(make_draft):
    for count in range(60):
        now = [0.0]
        store = MemoryStore(clock=lambda now=now: now[0])
        publish(store, make_draft(store, 40, write_id="aaaa"))
        store.die_after_writes(count)
        try:
            compact(store, below=1000, size_limit=1000)
        except Killed:
            pass
        else:
            break
        store.heal()
        assert rows_of(store) == expected_rows(range(40)), f"killed after {count} writes"
        named = {shard.raw.basename for shard in load_manifest(store).shards}
        tag(store, "before", 1)
        now[0] += 20 * 86400
        vacuum(store, dry_run=False)
        assert rows_of(store) == expected_rows(range(40))
        left = {key for key in store.objects if "/shard." in key and not key.startswith("aaaa/")}
        assert left == {key for key in named if not key.startswith("aaaa/")}
    assert count > 5
    store.heal()
    rollback(store, 1)
    assert rows_of(store) == expected_rows(range(40))
