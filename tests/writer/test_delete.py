"""A deletion leaves the other samples in order, rewrites only the shards concerned, and loses nothing of others."""

from functools import partial

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.cache import CacheOptions
from smalti.catalog import history, load_manifest, rollback, verify
from smalti.catalog.manifest import read_header
from smalti.catalog.retention.vacuum import vacuum
from smalti.dataset import open_dataset
from smalti.errors import (
    CatalogError,
    ChecksumMismatch,
    CommitConflict,
    DeletedSamplesWarning,
    SchemaError,
    StoreNotFound,
)
from smalti.format import emit_index
from smalti.spark.added_columns import add_columns, drop_columns
from smalti.storage import LocalStore
from smalti.writer import compact, delete
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.stores import MemoryStore
from tests.stores.memory import Killed
from tests.text_writers import CSVWriter, JSONWriter
from tests.writer.user_rows import ids_of, ids_without_user, write_rows


@pytest.fixture
def store():
    return MemoryStore()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_only_the_shards_concerned_are_rewritten_and_the_other_rows_keep_their_order(tmp_path, compression):
    store = LocalStore(tmp_path)
    facts = {"metadata": {"a": 1}, "lineage": {"from": "here"}}
    write_rows(store, compression=compression, hashes=("sha256", "xxh3_64"), **facts)
    before = load_manifest(store)
    assert len(before.shards) == 4
    report = delete(store, [("id", "in", [3, 4, 39])])
    made = load_manifest(store)
    assert (report.version, report.num_deleted, report.shards_concerned, report.num_shards) == (2, 3, 2, 4)
    assert ids_of(store) == [number for number in range(40) if number not in (3, 4, 39)]
    assert ids_of(store, version=1) == list(range(40)), "older versions stay without a purge"
    assert tuple(made.shards[1:3]) == tuple(before.shards[1:3]), "shared by entry"
    assert {shard.raw.basename for shard in made.shards} & {
        before.shards[place].raw.basename for place in (0, 3)
    } == set()
    assert report.bytes_concerned == sum(before.shards[place].stored.num_bytes for place in (0, 3))
    assert 0 < report.bytes_written < report.bytes_concerned
    assert (made.lineage, made.metadata) == (before.lineage, before.metadata)
    assert {(each.compression, each.hash_names, each.size_limit) for each in made.shards} == {
        (each.compression, each.hash_names, each.size_limit) for each in before.shards
    }
    assert [info.operation for info in history(store)] == ["create", "delete"]
    checked = verify(store)
    assert checked.ok
    assert checked.row_hash == made.row_hash == report.row_hash != before.row_hash


def test_what_is_written_is_what_a_writer_of_the_remaining_rows_would_write(store):
    write_rows(store, 10, first=3)
    delete(store, [("id", "<", 5)])
    other = MemoryStore()
    expected, made = write_rows(other, 8, first=5), load_manifest(store)
    (shard,), (written,) = expected.shards, made.shards
    assert store.objects[written.raw.basename] == other.objects[shard.raw.basename]
    assert made.row_hash == expected.row_hash


@pytest.fixture(scope="module")
def three_shards():
    """The objects of a set of three shards with eight rows each."""
    store = MemoryStore()
    shards = write_rows(store, 24, size_limit=338, columns={"id": "int", "user": "int32"}, write_id="aaaa").shards
    assert [shard.samples for shard in shards] == [8, 8, 8]
    return dict(store.objects)


@settings(max_examples=15, deadline=None)
@given(users=st.sets(st.integers(0, 5), min_size=1), low=st.integers(0, 24))
def test_any_comparisons_delete_as_a_filter_of_the_rows_does(three_shards, users, low):
    store = MemoryStore()
    store.objects.update(three_shards)
    left = [row for row in range(24) if not (row % 7 in users and row >= low)]
    report = delete(store, [("user", "in", users), ("id", ">=", low)], allow_empty=True)
    assert report.num_deleted == 24 - len(left)
    assert ids_of(store) == left
    touched = {row // 8 for row in range(24) if row not in left}
    kept = [shard for place, shard in enumerate(load_manifest(store, version=1).shards) if place not in touched]
    assert [shard for shard in load_manifest(store).shards if shard.raw.basename.startswith("aaaa/")] == kept
    assert all(store.objects[shard.raw.basename] == three_shards[shard.raw.basename] for shard in kept)
    assert verify(store).ok


def test_the_ways_to_choose_samples_choose_the_same(store):
    expected = ids_without_user(5, range(40))
    for choice in (
        {"where": [("user", "==", 5)]},
        {"where": pc.field("user") == 5},
        {"where": lambda batch: batch["user"] == 5, "columns": ["user"]},
        {"ids": ["5"], "column": "user"},
        {"ids": range(5, 40, 7), "column": "id"},
        {"ids": range(5, 40, 7)},
    ):
        store.objects.clear()
        write_rows(store)
        report = delete(store, **choice)
        assert ids_of(store) == expected, choice
        assert report.num_deleted == 5


def test_only_the_columns_of_the_condition_are_decoded(store):
    write_rows(store)
    seen = []

    def chosen(batch):
        seen.append(sorted(batch))
        return np.zeros(len(batch["user"]), bool)

    delete(store, chosen, columns=["user"])
    assert seen == [["user"]] * 4


def test_ids_without_a_sample_are_counted(store):
    write_rows(store)
    report = delete(store, ids=["3", "1000", "2000"], column="id")
    assert (report.num_deleted, report.missing_ids) == (1, 2)


def test_no_match_publishes_nothing(store):
    write_rows(store)
    before = dict(store.objects)
    report = delete(store, [("id", ">", 1000)])
    assert (report.version, report.num_deleted) == (None, 0)
    assert "no sample matches" in report.summary()
    assert store.objects == before


def test_a_dry_run_changes_nothing(store):
    write_rows(store)
    before = dict(store.objects)
    report = delete(store, [("user", "==", 5)], dry_run=True)
    assert (report.dry_run, report.version, report.num_deleted, report.bytes_written) == (True, None, 5, 0)
    assert store.objects == before
    assert report.to_dict()["ok"] is True


def test_all_samples_are_deleted_only_on_request(store):
    write_rows(store)
    with pytest.raises(CatalogError, match=r"all 40 samples of version 1 .* match; nothing was deleted"):
        delete(store, [("id", ">=", 0)])
    report = delete(store, [("id", ">=", 0)], allow_empty=True)
    made = load_manifest(store)
    assert (report.version, made.rows, tuple(made.shards)) == (2, 0, ())
    assert made.schema.columns() == {"id": "int", "user": "int32", "text": "str"}
    assert verify(store).ok


def test_an_emptied_split_is_gone_and_reported(store):
    write_rows(store, 10, split="train")
    write_rows(store, 10, first=10, split="val", mode="append")
    report = delete(store, [("id", ">=", 9)])
    assert (report.deleted_by_split, report.emptied_splits) == ({"train": 1, "val": 10}, ("val",))
    made = load_manifest(store)
    assert made.partitions == ("train",)
    assert made.shards[0].raw.basename.startswith("train/")
    assert ids_of(store) == list(range(9))


@pytest.mark.parametrize("kind", [JSONWriter, CSVWriter])
def test_lines_of_text_are_deleted_as_they_lie(tmp_path, kind):
    with kind(out=tmp_path, columns={"id": "int", "text": "str"}, size_limit=300) as writer:
        for number in range(30):
            writer.write({"id": number, "text": f"row {number}"})
    before = load_manifest(tmp_path)
    delete(tmp_path, [("text", ">=", "row 10"), ("text", "<", "row 2")])
    made = load_manifest(tmp_path)
    assert ids_of(LocalStore(tmp_path)) == [number for number in range(30) if not 10 <= number < 20]
    assert made.shards[0] == before.shards[0] or made.shards[0].layout == before.shards[0].layout
    assert verify(tmp_path).ok


def test_a_set_that_cannot_be_deleted_from_is_refused_with_what_to_do(store):
    with pytest.raises(StoreNotFound, match="no shard set"):
        delete(store, [("id", "==", 1)])
    other = MemoryStore()
    made = write_rows(other)
    store.put("index.json", emit_index(made.shards))
    with pytest.raises(CatalogError, match=r"plain MDS set without versions.*smalti convert"):
        delete(store, [("id", "==", 1)])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"where": [("nobody", "==", 3)]}, "there is no column 'nobody'; the columns are id, text, user"),
        ({"where": [("user", "==", "x")]}, "column 'user' holds int32, which cannot be compared with 'x'"),
        ({"where": "user == 3"}, "expected a list of comparisons such as"),
        ({"where": lambda _: [True]}, "must return 11 booleans"),
        ({"ids": [40]}, "there is no sample 40: version 1 has samples 0 to 39"),
        ({"ids": ["x"], "column": "user"}, "'x' among the ids is none"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(store, choice, message):
    write_rows(store)
    before = dict(store.objects)
    with pytest.raises(SchemaError, match=message):
        delete(store, **choice)
    assert store.objects == before


@pytest.mark.parametrize("choice", [{}, {"where": "a", "ids": [1]}, {"where": "a", "column": "b"}])
def test_arguments_that_contradict_each_other_are_refused(store, choice):
    write_rows(store)
    with pytest.raises(ValueError, match=r"`where`|`column`"):
        delete(store, **choice)


def test_a_damaged_shard_stops_the_deletion(store):
    write_rows(store)
    key = load_manifest(store).shards[0].raw.basename
    store.objects[key] = store.objects[key][:-1] + b"?"
    before = dict(store.objects)
    with pytest.raises(ChecksumMismatch):
        delete(store, [("id", "==", 1)])
    assert store.objects == before


# ---------------------------------------------------------------------- others at the same time


class BeforeDeletion(InterferingStore):
    """Another process comes before the commit of a deletion."""

    before = b'"operation": "delete"'


def test_an_append_that_comes_between_is_kept_and_searched_too():
    store = BeforeDeletion()
    write_rows(store)
    store.interfere = lambda: write_rows(store, first=40, mode="append")
    report = delete(store, [("user", "==", 5)])
    assert (report.base_version, report.version, report.num_deleted) == (2, 3, 11)
    assert ids_of(store) == ids_without_user(5, range(80))
    assert verify(store).ok
    named = {file.basename for shard in load_manifest(store).shards for file in shard.stored_files}
    assert {key for key in store.objects if key.startswith(report.write_id)} <= named


def test_positions_of_shards_that_others_rewrote_are_refused():
    store = BeforeDeletion()
    write_rows(store)
    store.interfere = lambda: compact(store, size_limit=10_000)
    with pytest.raises(CatalogError, match="look the positions up again"):
        delete(store, ids=[3])
    assert ids_of(store) == list(range(40))
    assert load_manifest(store).operation == "compact"


def test_killed_at_any_write_the_old_or_the_new_version_is_there_and_the_next_call_finishes():
    whole = MemoryStore()
    write_rows(whole, 24)
    start = dict(whole.objects)
    delete(whole, [("user", "==", 5)])
    outcomes = set()
    for writes in range(40):
        store = MemoryStore()
        store.objects.update(start)
        store.die_after_writes(writes)
        try:
            delete(store, [("user", "==", 5)])
        except Killed:
            store.heal()
            assert verify(store).ok
            found = ids_of(store)
            outcomes.add(len(found))
            assert found in ([*range(24)], ids_without_user(5, range(24)))
            delete(store, [("user", "==", 5)])
            assert ids_of(store) == ids_without_user(5, range(24))
        else:
            break
    else:
        raise AssertionError("40 writes were not enough")
    assert outcomes == {24, 21}


def test_a_failed_upload_leaves_nothing(store):
    write_rows(store)
    before = dict(store.objects)
    store.plant("put", key="*/shard.*", at=2, times=10)
    with pytest.raises(OSError, match="planted"):
        delete(store, [("user", "==", 5)])
    assert store.objects == before


# ---------------------------------------------------------------------- the record


def test_every_later_version_carries_the_record_of_the_deletion_and_a_rollback_before_it_does_not(store):
    write_rows(store)
    delete(store, [("user", "==", 5)])
    write_rows(store, first=40, mode="append")
    (entry,) = read_header(store, 3).erased
    write_id = read_header(store, 2).write_id
    assert entry == {"version": 2, "write_id": write_id, "by": "where", "samples": 5, "purged": False}
    assert "user" not in str(entry), "what was looked for may be personal data"
    rollback(store, 1)
    assert read_header(store, 4).erased == ()
    rollback(store, 2)
    assert vacuum(store, older_than=0, unsafe_ttl=True, dry_run=False).expired


def test_a_dataset_reads_the_remaining_samples(tmp_path):
    write_rows(LocalStore(tmp_path / "set"))
    delete(tmp_path / "set", [("user", "==", 5)])
    dataset = open_dataset(str(tmp_path / "set"), cache=CacheOptions(local=str(tmp_path / "cache")))
    assert [int(dataset[row]["id"]) for row in range(dataset.size)] == ids_without_user(5, range(40))


def test_a_conflict_that_does_not_end_is_reported(store):
    class Busy(BeforeDeletion):
        def put_if_absent(self, key, data):
            if self.before in data:
                write_rows(self, 3, first=100, mode="append")
            super().put_if_absent(key, data)

    store = Busy()
    write_rows(store)
    with pytest.raises(CommitConflict, match="overtaken 10 times"):
        delete(store, [("user", "==", 5)])
    named = {header.write_id for header in map(partial(read_header, store), range(1, 12))}
    left = {key.split("/")[0] for key in store.objects if not key.startswith("_versions/")}
    assert left == {*named, "index.json"}
    assert not [key for key in store.objects if "writes/" in key], "no marker"


def test_a_deletion_that_fails_leaves_no_table_either(store):
    with_scores(store)
    before = dict(store.objects)
    store.plant("put_if_absent", key="_versions/00000003.json", error=CommitConflict("planted"))
    with pytest.raises(CommitConflict, match="overtaken 10 times"):
        delete(store, [("user", "==", 5)])
    assert {key for key in store.objects if key.count("/") and "/shard." not in key and "_versions/" not in key} == {
        key for key in before if key.endswith("columns.arrow")
    }


def test_replacing_the_content_after_a_deletion_warns(store):
    write_rows(store)
    delete(store, [("user", "==", 5)])
    with pytest.warns(DeletedSamplesWarning, match=r"\(versions 2\), and its content is now replaced"):
        write_rows(store, mode="overwrite")
    assert [entry["version"] for entry in read_header(store, 3).erased] == [2]


# ---------------------------------------------------------------------- added columns


def with_scores(store):
    """Publish the usual rows, with a column `score` (a hundred times the user) beside the shards."""
    write_rows(store)
    add_columns(store, {"score": "int32"}, lambda batch: {"score": batch["user"] * 100})


def test_added_columns_stay_aligned_and_can_be_the_condition(tmp_path):
    store = LocalStore(tmp_path / "set")
    with_scores(store)
    before = load_manifest(store)
    report = delete(store, [("score", "==", 500), ("id", "<", 20)])
    assert (report.num_deleted, report.shards_concerned) == (3, 2)
    dataset = open_dataset(str(tmp_path / "set"), cache=CacheOptions(local=str(tmp_path / "cache")))
    rows = [dataset[row] for row in range(dataset.size)]
    assert [int(row["id"]) for row in rows] == [n for n in range(40) if n not in (5, 12, 19)]
    assert [int(row["score"]) for row in rows] == [n % 7 * 100 for n in range(40) if n not in (5, 12, 19)]
    made = load_manifest(store)
    assert tuple(made.shards[2:]) == tuple(before.shards[2:])
    assert verify(store).ok
    assert drop_columns(store, ["score"]).rows == 37


def test_only_the_shards_beside_are_fetched_for_a_condition_on_an_added_column():
    store = Reading()
    with_scores(store)
    fetched = len(store.fetched)
    delete(store, [("score", "==", -1)])
    main = {shard.raw.basename for shard in load_manifest(store).shards}
    assert len(store.fetched) - fetched == len(main)
    assert main.isdisjoint(store.fetched[fetched:])


class Reading(MemoryStore):
    """A store that notes which objects are fetched."""

    def __init__(self):
        self.fetched = []
        super().__init__()

    def fetch(self, key, out, **options):
        self.fetched.append(key)
        return super().fetch(key, out, **options)


def test_nulls_are_found_and_dates_are_compared(store):
    from smalti.catalog import Draft, publish
    from smalti.format import Schema, ShardBuilder, ShardOptions

    columns = {"id": "int", "born": "int32", "born__is_null": "uint8"}
    builder = ShardBuilder(Schema.from_columns(columns), ShardOptions(size_limit=None))
    for number, day in enumerate([None, 0, 1, 366, None]):  # 1970-01-01 and later
        builder.add({"id": number, "born": day or 0, "born__is_null": int(day is None)})
    built = builder.finish()[0].seal()
    info = built.info.with_prefix("aaaa/00000")
    store.put(info.stored.basename, bytes(built.payloads[0]))
    logical = {"born": {"type": "date", "mask": True}}
    publish(store, Draft("aaaa", Schema.from_columns(columns), [info], logical=logical))
    assert delete(store, pc.field("born").is_null(), dry_run=True).num_deleted == 2
    assert delete(store, [("born", ">=", "1970-01-02")], dry_run=True).num_deleted == 2
    assert delete(store, [("born", "<", "1970-01-02")], dry_run=True).num_deleted == 1, "a null is neither"
    with pytest.raises(SchemaError, match="there is no column 'born__is_null'"):
        delete(store, [("born__is_null", "==", 1)])
