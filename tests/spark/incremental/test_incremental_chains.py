"""Re-sharding after compactions and appends: the list of files is kept, and no row is lost or duplicated."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.catalog import Draft, load_manifest, new_write_id, publish, rollback, vacuum, verify
from smalti.catalog.manifest import row_hash_text
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import load_sources, sources_of
from smalti.catalog.verify import open_checked
from smalti.errors import IndexFileError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.spark.added_columns import add_columns, drop_columns
from smalti.writer import ShardUploader, UploadOptions, compact
from tests import seeds
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.spark.incremental.test_incremental import (
    CHANGES,
    Converter,
    expected_rows,
    names,
    rows_of,
    small_set,
    stored_rows,
)
from tests.stores import MemoryStore
from tests.stores.memory import Killed

SCHEMA = Schema.from_columns({"path": "str", "number": "int32", "text": "str"})
FOREIGN = [("somebody's", 1, "x"), ("a/00", 0, "a/00:10"), ("somebody's", 2, "y" * 90)]
"""Rows of no source file; one of them equals a row that the set has."""


def append(store, rows=FOREIGN, split="train", *, says_row_hash=True):
    """Append rows as another writer does, without a list of files."""
    write_id = new_write_id()
    markers.begin(store, write_id)
    uploader = ShardUploader(
        store,
        f"{split}/{write_id}/0",
        ShardBuilder(SCHEMA, ShardOptions(size_limit=400)),
        partition=split,
        uploads=UploadOptions(hash_rows=True),
    )
    for path, number, text in rows:
        uploader.write({"path": path, "number": number, "text": text})
    shards = uploader.finish()
    row_hash = row_hash_text(uploader.row_hash or 0) if says_row_hash else ""
    publish(store, Draft(write_id, SCHEMA, shards, row_hash=row_hash), mode="append")
    markers.end(store, write_id)
    return Counter((*row, split) for row in rows)


def in_order(store, manifest):
    """Return all rows, in the order of the samples."""
    found = []
    for info in manifest.shards:
        with open_checked(store, info) as shard:
            found += [tuple(shard[number].values()) for number in range(len(shard))]
    return found


def make_small_shards(store=None):
    """Return a set of twelve files, written three at a time, of which only three share a shard with others."""
    store, converter = store or MemoryStore(), Converter()
    for number in range(12):
        converter.content[f"a/{number:02}"] = 10
        if number % 3 == 2:
            converter.run(store, size_limit=4000)
    return store, converter


ACTS = st.one_of(
    st.tuples(st.just("reshard"), CHANGES),
    st.tuples(st.just("compact"), st.sampled_from([300, 700, 5000])),
    st.tuples(st.just("append"), st.integers(0, 2)),
)


@pytest.mark.slow
@settings(max_examples=seeds.sized(20))
@given(acts=st.lists(ACTS, min_size=2, max_size=7))
def test_no_chain_of_changes_compactions_and_appends_loses_or_doubles_a_row(acts):
    """The model is a dictionary of files; at the end everything is compacted and re-sharded once more."""
    store, converter = MemoryStore(), Converter({"a/always": 10, "bb/always": 6})
    converter.run(store)
    expected = expected_rows(converter.content)
    for act, chosen in [*acts, ("compact", 700), ("append", 1), ("compact", 5000), ("reshard", {"a/1": 7})]:
        before = load_manifest(store)
        if act == "append":
            expected += append(store, FOREIGN[chosen:], split=("train", "validation")[chosen % 2])
        elif act == "compact":
            made = compact(store, below=chosen, size_limit=chosen)
            assert in_order(store, made) == in_order(store, before)
            assert (made.rows, made.row_hash) == (before.rows, before.row_hash)
        else:
            old = dict(converter.content)
            converter.content |= {path: content for path, content in chosen.items() if content is not None}
            for path in [path for path, content in chosen.items() if content is None]:
                converter.content.pop(path, None)
            converter.run(store)
            expected = expected_rows(converter.content)
            assert converter.asked == sorted(p for p, content in converter.content.items() if old.get(p) != content)
        newest = load_manifest(store)
        assert stored_rows(store, newest) == expected, act
        assert len(newest.row_hash) == 32
        assert verify(store).ok
    full = Converter(dict(converter.content)).run(MemoryStore())
    assert (full.rows, full.row_hash) == (newest.rows, newest.row_hash)


def test_after_a_compaction_only_changed_files_are_converted():
    store, converter = make_small_shards()
    assert len(load_manifest(store).shards) == 4
    made = compact(store, size_limit=4000)
    assert len(made.shards) < 4
    assert (converter.run(store, size_limit=4000).version, converter.asked) == (made.version, [])
    converter.content |= {"a/03": 14, "a/99": 10}
    del converter.content["a/07"]
    assert stored_rows(store, converter.run(store, size_limit=4000)) == expected_rows(converter.content)
    assert converter.asked == ["a/03", "a/99"]


def test_a_compaction_lists_the_file_of_every_sample_of_its_shards():
    store, converter = make_small_shards()
    made = compact(store, size_limit=4000)
    table = load_sources(store, sources_of(made.sidecars))
    assert {name: sum(run.rows for run in runs) for name, runs in table.runs.items()} == {
        shard.raw.basename: shard.samples for shard in made.shards
    }
    assert table.fingerprints == {path: str(content) for path, content in converter.content.items()}
    for shard in made.shards:
        with open_checked(store, shard) as opened:
            held = [opened[number]["path"] for number in range(len(opened))]
        assert held == [run.path for run in table.runs[shard.raw.basename] for _ in range(run.rows)]


@pytest.mark.parametrize("says_row_hash", [True, False])
def test_appended_rows_belong_to_no_file_and_are_dropped_without_being_read(says_row_hash):
    store, converter, first = small_set()
    append(store, says_row_hash=says_row_hash)
    appended = load_manifest(store)
    (foreign,) = names(appended) - names(first)
    assert bool(appended.row_hash) is says_row_hash
    store.plant("get", key=foreign)
    store.plant("get_range", key=foreign)
    store.plant("fetch", key=foreign)
    made = converter.run(store)
    store.heal()
    assert (converter.asked, made.version, names(made)) == ([], 3, names(first))
    assert made.row_hash == first.row_hash
    assert stored_rows(store, made) == expected_rows(converter.content)
    assert stored_rows(store, appended)["somebody's", 1, "x", "train"] == 1, "the version with them stays"


def test_shards_of_files_and_appended_shards_are_not_joined():
    store, converter = make_small_shards()
    append(store)
    append(store)
    made = compact(store, size_limit=4000)
    kinds = []
    for shard in made.shards:
        with open_checked(store, shard) as opened:
            kinds.append({opened[number]["path"] == "somebody's" for number in range(len(opened))})
    assert len(made.shards) == 2
    assert kinds == [{False}, {True, False}], "of the appended rows one has the name of a file"
    assert stored_rows(store, converter.run(store, size_limit=4000)) == expected_rows(converter.content)
    assert converter.asked == []


def test_adding_and_dropping_columns_keeps_the_list_of_files():
    store, converter, _ = small_set()
    append(store)
    add_columns(store, {"length": "int"}, lambda batch: {"length": list(map(len, batch["text"]))})
    compact(store, size_limit=4000)
    drop_columns(store, ["length"])
    assert stored_rows(store, converter.run(store)) == expected_rows(converter.content)
    assert converter.asked == []


def test_versions_of_older_writers_are_understood():
    """Their entries have no row hash: the version's own is used, if it has no other rows."""
    store, converter, first = small_set()
    entry = {name: value for name, value in sources_of(first.sidecars).items() if name != "row_hash"}
    draft = Draft(
        new_write_id(), first.schema, first.shards, logical=first.logical, row_hash=first.row_hash, sidecars=(entry,)
    )
    publish(store, draft, mode="overwrite")
    converter.content["a/03"] = 14
    made = converter.run(store)
    assert converter.asked == ["a/03"]
    assert made.row_hash == Converter(dict(converter.content)).run(MemoryStore()).row_hash


def test_an_append_during_a_compaction_hides_nothing():
    store, converter = make_small_shards(InterferingStore())
    store.interfere = lambda: append(store)
    compact(store, size_limit=4000)
    assert store.interfere is None
    assert stored_rows(store, load_manifest(store)) == expected_rows(converter.content) + Counter(
        (*row, "train") for row in FOREIGN
    )
    assert stored_rows(store, converter.run(store, size_limit=4000)) == expected_rows(converter.content)
    assert converter.asked == []


def test_files_that_are_added_during_a_compaction_stay_listed():
    store, converter = make_small_shards(InterferingStore())
    converter.content["bb/9"] = 9  # in a split after that of the others: their shards stay in front
    store.interfere = lambda: converter.run(store, size_limit=4000)
    made = compact(store, size_limit=4000)
    assert converter.asked == ["bb/9"]
    assert stored_rows(store, made) == expected_rows(converter.content)
    assert (converter.run(store, size_limit=4000).version, converter.asked) == (made.version, [])


def test_a_table_that_lists_other_shards_is_not_carried_over():
    store, _ = make_small_shards()
    newest = load_manifest(store)
    entry = dict(sources_of(newest.sidecars))
    first = sources_of(load_manifest(store, version=1).sidecars)
    stale = entry | {"key": first["key"], "sha256": first["sha256"]}
    draft = Draft(new_write_id(), newest.schema, newest.shards[1:], logical=newest.logical, sidecars=(stale,))
    publish(store, draft, mode="overwrite")
    with pytest.raises(IndexFileError, match="covers other shards"):
        compact(store, size_limit=4000)


def test_a_vacuum_keeps_the_table_that_a_compaction_made():
    now = [0.0]
    store, converter = MemoryStore(clock=lambda: now[0]), Converter()
    for number in range(6):
        converter.content[f"a/{number:02}"] = 10
        converter.run(store, size_limit=4000)
    compact(store, size_limit=4000)
    now[0] += 30 * 86400
    vacuum(store, dry_run=False)
    converter.content["a/99"] = 10
    assert stored_rows(store, converter.run(store, size_limit=4000)) == expected_rows(converter.content)
    assert converter.asked == ["a/99"]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_compaction_killed_anywhere_keeps_the_list_of_files(step):
    for count in range(0, 60, step):
        store, converter = make_small_shards()
        store.die_after_writes(count)
        try:
            compact(store, size_limit=4000)
        except Killed:
            pass
        else:
            break
        store.heal()
        converter.content["a/99"] = 10
        assert stored_rows(store, converter.run(store, size_limit=4000)) == expected_rows(converter.content)
        assert converter.asked == ["a/99"], f"killed after {count} writes"
    assert count > 5


def test_a_vacuum_after_an_append_keeps_the_table_of_what_was_there_before():
    now = [0.0]
    store, converter = MemoryStore(clock=lambda: now[0]), Converter({"a/1": 10, "a/2": 11})
    converter.run(store)
    append(store)
    now[0] += 30 * 86400
    vacuum(store, dry_run=False)
    assert stored_rows(store, converter.run(store)) == expected_rows(converter.content)
    assert converter.asked == []


def test_a_rollback_has_the_list_of_files_of_the_version_it_restores():
    store, converter = make_small_shards()
    compact(store, size_limit=4000)
    append(store)
    appended = load_manifest(store)
    converter.content["a/50"] = 10
    converter.run(store, size_limit=4000)
    rollback(store, appended.version)
    assert stored_rows(store, load_manifest(store)) == stored_rows(store, appended)
    assert stored_rows(store, converter.run(store, size_limit=4000)) == expected_rows(converter.content)
    assert converter.asked == ["a/50"]


def test_a_file_without_rows_stays_listed_through_a_compaction():
    store, converter = make_small_shards()
    converter.content["bbb/empty"] = 13
    assert rows_of("bbb/empty", 13) == []
    converter.run(store, size_limit=4000)
    made = compact(store, size_limit=4000)
    assert (converter.run(store, size_limit=4000).version, converter.asked) == (made.version, [])
