"""One version, copied between two stores: whole or not at all, verified, and never twice."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.catalog import history, load_manifest, publish, rollback, vacuum, verify
from smalti.catalog.digest import digest_of
from smalti.catalog.manifest import FOLDER, INDEX, stored_bytes
from smalti.catalog.opening import find_newest
from smalti.catalog.publishing import replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import ColumnsEntry
from smalti.catalog.table.arrow import emit_table
from smalti.errors import (
    CatalogError,
    ChecksumMismatch,
    CommitConflict,
    DatasetExists,
    IndexFileError,
    SmaltiError,
    StoreError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.exchange import CopyOptions, copy_version
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import LocalStore
from smalti.writer import MDSWriter
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.catalog.retention.test_vacuum import AgingStore
from tests.catalog.retention.test_vacuum_columns import publish_with_columns
from tests.stores import MemoryStore
from tests.stores.memory import Killed


@pytest.fixture
def source(make_draft):
    store = AgingStore()
    publish(store, make_draft(store, 30, write_id="first", lineage={"from": "here"}))
    publish(store, make_draft(store, 20, first=30, write_id="second"), mode="append")
    return store


def other(url="memory-store://other"):
    return MemoryStore(url)


def shard_puts(store):
    return [call.key for call in store.calls if call.op.startswith("put") and call.key.endswith(".mds")]


def assert_same(source, target, *, source_version=None):
    one, two = load_manifest(source, version=source_version), load_manifest(target)
    assert (one.digest, one.row_hash, one.write_id, one.rows) == (two.digest, two.row_hash, two.write_id, two.rows)
    assert verify(target).ok
    for shard in one.shards:
        assert source.get(shard.raw.basename) == target.get(shard.raw.basename)


def test_a_copy_has_the_digest_the_write_id_the_row_hash_and_the_bytes_of_its_source(source):
    target = other()
    report = copy_version(source, target)
    assert_same(source, target)
    (copied,) = report.versions
    assert (copied.source, copied.target, copied.write_id, copied.rows) == (2, 1, "second", 50)
    assert (report.num_objects, report.num_present) == (len(load_manifest(source).shards), 0)
    assert load_manifest(target).metadata["copied_from"]["version"] == 2
    assert [key for key in target.objects if key.startswith(markers.MARKERS)] == [], "no marker stays"
    assert json.loads(json.dumps(report.to_dict()))["versions"][0]["digest"] == load_manifest(source).digest


def test_an_older_version_is_copied_by_number_or_tag(source):
    from smalti.catalog import tag

    tag(source, "good", 1)
    for choice in ({"version": 1}, {"tag": "good"}):
        target = other()
        assert copy_version(source, target, **choice).versions[0].source == 1
        assert_same(source, target, source_version=1)


def test_a_repeated_copy_does_nothing_and_a_dry_run_neither(source):
    target = other()
    plan = copy_version(source, target, dry_run=True)
    assert (target.objects, plan.versions[0].target, plan.is_in_sync) == ({}, None, False)
    copy_version(source, target)
    before = dict(target.objects)
    assert copy_version(source, target).is_in_sync
    assert copy_version(source, target, dry_run=True).is_in_sync
    assert target.objects == before
    assert len(history(target)) == 1


def test_killed_after_any_write_the_target_has_nothing_or_all_and_the_next_call_copies_the_rest(source):
    files = {shard.raw.basename for shard in load_manifest(source).shards}
    ends = set()
    for count in range(60):
        target = other()
        target.die_after_writes(count)
        try:
            copy_version(source, target)
        except Killed:
            pass
        else:
            break
        target.heal()
        there = files & target.objects.keys()
        try:
            assert_same(source, target)
            ends.add("all")
        except StoreNotFound:
            ends.add("nothing")
        before = len(shard_puts(target))
        report = copy_version(source, target)
        assert_same(source, target)
        assert len(history(target)) == 1
        assert len(shard_puts(target)) - before == len(files - there) == report.num_objects
    else:
        raise AssertionError("the copy takes more writes than were tried")
    assert ends == {"nothing", "all"}


def test_a_damaged_object_at_the_source_is_refused_and_nothing_is_published(source):
    key = load_manifest(source).shards[1].raw.basename
    data = source.objects[key]
    source.objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    target = other()
    with pytest.raises(ChecksumMismatch, match=key):
        copy_version(source, target)
    assert key not in target.objects
    with pytest.raises(StoreNotFound, match="no shard set"):
        load_manifest(target)
    source.objects[key] = data
    assert copy_version(source, target).num_present > 0
    assert_same(source, target)


def test_bytes_that_are_damaged_on_the_way_are_read_once_more(source):
    source.plant("fetch", flip=100, times=1)
    target = other()
    copy_version(source, target)
    assert_same(source, target)


def test_a_target_that_loses_what_it_acknowledges_is_an_error(source):
    target = other()
    target.plant("put*", key="*.mds", truncate=10)
    with pytest.raises(StoreError, match="did not take the whole object"):
        copy_version(source, target)


def test_read_back_finds_and_replaces_what_was_damaged_at_the_target(source):
    target = other()
    copy_version(source, target)
    key = load_manifest(source).shards[0].raw.basename
    target.objects[key] = target.objects[key][:-1] + b"?"
    assert copy_version(source, target).is_in_sync, "sizes agree"
    other_target = other()
    other_target.plant("put*", key=key, flip=50, times=1)
    with pytest.raises(ChecksumMismatch, match=key):
        copy_version(source, other_target, options=CopyOptions(read_back=True))
    copy_version(source, other_target, options=CopyOptions(read_back=True))
    assert_same(source, other_target)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A set with an added column and a deletion record; its shards have no hashes."""
    out = tmp_path_factory.mktemp("set")
    with MDSWriter(out=out, columns={"text": "str"}, size_limit=1 << 17, compression=None, hashes=()) as writer:
        for _ in range(60):
            writer.write({"text": "x" * 9_000})
    store = MemoryStore("memory-store://everything")
    for info in LocalStore(out).list():
        store.put(info.key, LocalStore(out).get(info.key))
    manifest = load_manifest(store)
    beside = []
    for shard in manifest.shards:
        builder = ShardBuilder(Schema.from_columns({"score": "int32"}), ShardOptions(hashes=()))
        filled = [each for row in range(shard.samples) for each in builder.add({"score": row})] + builder.finish()
        built = filled[0].seal()
        beside.append(built.info.with_prefix(f"side/{len(beside):05}"))
        store.put(beside[-1].raw.basename, bytes(built.payloads[0]))
    table = bytes(emit_table(beside))
    objects = {"side/columns.arrow": table, "side/erased.arrow": b"hashes of files"}
    sums = {key: hashlib.sha256(data).hexdigest() for key, data in objects.items()}
    for key, data in objects.items():
        store.put(key, data)
    num_bytes = sum(map(stored_bytes, beside))
    entry = ColumnsEntry(
        {"score": "int32"}, "side/columns.arrow", sums["side/columns.arrow"], digest_of(beside), num_bytes
    )
    erased = {
        "by": "ids",
        "samples": 1,
        "purged": True,
        "key": "side/erased.arrow",
        "sha256": sums["side/erased.arrow"],
    }
    draft = replace(manifest.redraft("side"), sidecars=(entry.to_json(),))
    replace_content(store, draft, based_on=1, operation="delete", erased=(erased,))
    return store


@pytest.mark.parametrize("again", [False, True], ids=["while it is copied", "in an earlier copy"])
def test_read_back_finds_a_changed_byte_of_any_object(everything, again):
    copied = other()
    copy_version(everything, copied)
    keys = [key for key in copied.objects if key in everything.objects and key != INDEX and FOLDER not in key]
    assert {Path(key).name for key in keys} >= {"shard.00000.mds", "columns.arrow", "erased.arrow"}
    for key in keys:
        target = other(f"memory-store://{key.replace('/', '-')}")
        if again:
            target.objects.update(copied.objects)
            target.objects[key] = target.objects[key][:-1] + bytes([target.objects[key][-1] ^ 1])
            if key == "side/columns.arrow":  # says what the version needs
                with pytest.raises(IndexFileError, match=key):
                    copy_version(everything, target, options=CopyOptions(read_back=True))
                continue
            assert not copy_version(everything, target, options=CopyOptions(read_back=True)).is_in_sync
            assert target.objects == copied.objects
            assert copy_version(everything, target, options=CopyOptions(read_back=True)).is_in_sync
            continue
        target.plant("put*", key=key, flip=len(everything.objects[key]) - 1)
        with pytest.raises(SmaltiError):
            copy_version(everything, target, options=CopyOptions(read_back=True))
        assert find_newest(target, lenient=True).header is None


def test_objects_beyond_the_memory_limit_go_through_a_file(source):
    target = other()
    copy_version(source, target, options=CopyOptions(memory_limit=100, max_workers=2))
    assert {call.op for call in target.calls if call.key.endswith(".mds") and call.op.startswith("put")} == {"put_file"}
    assert_same(source, target)


def test_the_progress_counts_bytes_and_ends_with_all_of_them(source):
    seen = []
    report = copy_version(source, other(), on_progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (report.num_bytes, report.num_bytes)


def test_a_target_with_another_set_is_refused_unless_the_copy_is_published_after_it(source, make_draft):
    target = other()
    publish(target, make_draft(target, 5, write_id="mine"))
    with pytest.raises(DatasetExists, match="already holds a data set"):
        copy_version(source, target)
    assert copy_version(source, target, mode="overwrite").versions[0].target == 2
    assert_same(source, target)
    assert load_manifest(target, version=1).write_id == "mine"


def test_a_writer_that_is_faster_makes_the_copy_a_conflict_and_loses_nothing(source, make_draft):
    target = InterferingStore("memory-store://other")
    target.before = b'"copied_from"'
    target.interfere = lambda: publish(target, make_draft(target, 5, write_id="mine"))
    with pytest.raises(CommitConflict):
        copy_version(source, target)
    assert load_manifest(target).write_id == "mine"
    assert verify(target).ok
    report = copy_version(source, target, mode="overwrite")
    assert (report.num_objects, report.versions[0].target) == (0, 2)
    assert_same(source, target)


def test_a_vacuum_at_the_source_during_the_copy_ends_it_with_the_reason(source, make_draft):
    publish(source, make_draft(source, 4, write_id="third"), mode="overwrite")
    source.pass_days(100)

    class Vacuumed(MemoryStore):
        def put_unsynced(self, key, data):
            vacuum(source, older_than="7d", dry_run=False)
            super().put_unsynced(key, data)

    target = Vacuumed("memory-store://other")
    with pytest.raises(VersionNotFound, match=r"version 2 was removed by a vacuum"):
        copy_version(source, target, version=2, options=CopyOptions(max_workers=1))
    with pytest.raises(StoreNotFound, match="no shard set"):
        load_manifest(target)
    with pytest.raises(VersionNotFound, match="cannot be copied"):
        copy_version(source, target, version=1)


def aging_target():
    target = AgingStore()
    target.url = "memory-store://aging"
    return target


def stopped(source, target, writes, **options):
    target.die_after_writes(writes)
    with pytest.raises(Killed):
        copy_version(source, target, options=CopyOptions(max_workers=1), **options)
    target.heal()


def test_a_vacuum_at_the_target_keeps_what_a_repeated_copy_counts_on(source, make_draft):
    target = aging_target()
    publish(target, make_draft(target, 5, write_id="mine"))
    stopped(source, target, 6, mode="overwrite")
    target.pass_days(100)
    found = []

    def on_progress(done, total):
        del done, total
        found.append(vacuum(target, older_than="7d", dry_run=False))

    copy_version(source, target, mode="overwrite", on_progress=on_progress, options=CopyOptions(max_workers=1))
    assert [each.removed for each in found if each.removed] == []
    assert_same(source, target)
    assert found


def test_a_vacuum_that_removes_an_abandoned_copy_fences_it_and_a_later_one_gives_the_name_free(source, make_draft):
    target = aging_target()
    publish(target, make_draft(target, 5, write_id="mine"))
    stopped(source, target, 6, mode="overwrite")
    target.pass_days(100)
    assert vacuum(target, older_than="7d", dry_run=False).removed
    with pytest.raises(CatalogError, match="a vacuum at the target removes the objects of write first"):
        copy_version(source, target, mode="overwrite")
    target.pass_days(100)
    publish(target, make_draft(target, 6, write_id="more"), mode="append")
    target.pass_days(100)
    publish(target, make_draft(target, 6, write_id="moor"), mode="overwrite")
    target.pass_days(100)
    vacuum(target, older_than="7d", dry_run=False)
    copy_version(source, target, mode="overwrite")
    assert_same(source, target)


def test_a_version_that_a_vacuum_removes_during_the_copy_is_not_built_upon(source, make_draft):
    """The target has version 1 of the source, expired; a vacuum removes it between the plan and the commit."""
    target = aging_target()
    copy_version(source, target, version=1)
    publish(target, make_draft(target, 5, write_id="mine"), mode="overwrite")
    target.pass_days(100)

    def on_progress(done, total):
        del done, total
        vacuum(target, older_than="7d", dry_run=False)

    with pytest.raises(CommitConflict):
        copy_version(source, target, mode="overwrite", on_progress=on_progress)
    assert verify(target).ok
    assert load_manifest(target).write_id.startswith("vacuum-")


def test_copied_versions_are_vacuumed_at_the_target_with_the_shards_of_all_their_writes(source, make_draft):
    target = aging_target()
    copy_version(source, target)
    publish(target, make_draft(target, 5, write_id="mine"), mode="overwrite")
    target.pass_days(100)
    vacuum(target, older_than="7d", dry_run=False)
    assert target.below("first/") == target.below("second/") == []


def test_added_columns_go_with_the_version(make_draft):
    source = AgingStore()
    beside = publish_with_columns(source, make_draft)
    target = other()
    copy_version(source, target)
    assert load_manifest(target).sidecars == load_manifest(source).sidecars
    assert verify(target).ok
    assert all(target.get(shard.raw.basename) == source.get(shard.raw.basename) for shard in beside)
    assert rollback(target, 1).version == 1


def test_one_split_alone_has_a_digest_of_its_own_and_repeated_is_the_same_version(make_draft):
    source, target = MemoryStore(), other()
    publish(source, make_draft(source, 12, splits=("train", "val"), write_id="both"))
    first = copy_version(source, target, split="val")
    again = copy_version(source, target, split="val")
    manifest = load_manifest(target)
    assert (manifest.rows, manifest.partitions, again.is_in_sync) == (12, ("val",), True)
    assert {shard.raw.basename for shard in manifest.shards} == {
        shard.raw.basename for shard in load_manifest(source).select("val")
    }
    assert verify(target).ok
    assert first.versions[0].write_id.startswith("copy-")
    with pytest.raises(CatalogError, match="no split 'dev'"):
        copy_version(source, other(), split="dev")


def test_a_set_of_mosaicml_is_copied_with_its_index_file(shared, tmp_path):
    source, copy = shared / "golden" / "comp_zstd_3", tmp_path / "copy"
    report = copy_version(source, copy)
    assert (copy / "index.json").read_bytes() == (source / "index.json").read_bytes()
    assert load_manifest(copy).digest == load_manifest(source).digest
    assert verify(copy).ok
    assert report.num_objects == len(load_manifest(source).shards)
    assert copy_version(source, copy).is_in_sync
    with pytest.raises(DatasetExists, match="another set"):
        copy_version(shared / "golden" / "comp_gz_6", copy)


def test_a_shard_of_the_same_name_and_size_is_not_taken_for_one_of_a_set_without_write_ids(shared, tmp_path):
    source = shared / "golden" / "comp_zstd_3"
    first = load_manifest(source).shards[0].stored
    (tmp_path / first.basename).write_bytes(bytes(first.num_bytes))
    copy_version(source, tmp_path)
    assert verify(tmp_path).ok


def test_the_same_place_twice_is_refused(tmp_path):
    with pytest.raises(CatalogError, match="the same place"):
        copy_version(tmp_path, LocalStore(tmp_path))
