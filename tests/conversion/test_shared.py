"""A conversion by several processes: begin, parts, publish; killed anywhere and repeated, every row is there once."""

import threading

import pyarrow as pa
import pytest

from smalti import load_manifest, vacuum
from smalti.conversion import Conversion, begin_conversion, open_conversion
from smalti.errors import CatalogError, SmaltiError
from smalti.testing import MemoryStore
from smalti.testing.memory import Killed
from tests.conversion.rows import Numbers, NumberSource, ids_of, numbers

SIZES = ((3,), (4,), (5,))
OPTIONS = {"part_bytes": 1, "write_id": "work", "size_limit": 60, "compression": None}


def begun(store, source=None):
    return begin_conversion(source or numbers(*SIZES), store, **OPTIONS)


def test_three_machines_write_their_shares_and_one_publishes():
    store, source = MemoryStore(), numbers(*SIZES)
    conversion = begun(store, source)
    assert (conversion.id, conversion.parts, conversion.missing()) == ("work", 3, [0, 1, 2])
    for share in (3, 1, 2):
        machine = open_conversion(store, "work", source=source)
        done = machine.write_part(share, of=3, processes=1)
        assert (done.written, done.skipped, done.rows) == ((share - 1,), (), len(range(SIZES[share - 1][0])))
    manifest = open_conversion(store, "work", source=source).publish()
    assert (manifest.version, manifest.rows) == (1, 12)
    assert ids_of(store) == list(range(12))
    assert [key for key in store.objects if key.startswith("work/") and key.endswith(".json")] == []


def test_begin_part_and_publish_can_be_repeated():
    store = MemoryStore()
    for _ in range(2):
        conversion = begun(store)
        conversion.write_part(1, of=2, processes=1)
    again = conversion.write_part(1, of=2, processes=1)
    assert (again.written, again.skipped) == ((), (0, 2))
    conversion.write_part(2, of=2, processes=1)
    for _ in range(2):
        assert conversion.publish().version == 1
    late = begun(store)
    assert late.is_published
    assert late.write_part(1, processes=1).written == ()
    assert late.publish().version == 1
    assert open_conversion(store, "work").publish().version == 1
    assert ids_of(store) == list(range(12))


def test_publish_names_the_parts_that_are_missing():
    store = MemoryStore()
    conversion = begun(store)
    conversion.write_part(2, of=3, processes=1)
    with pytest.raises(CatalogError, match="conversion work has 2 of 3 parts missing: 0, 2; nothing was published"):
        conversion.publish()
    assert not [key for key in store.objects if key.endswith("index.json")]


def test_two_processes_that_write_the_same_share_at_once_make_no_doubles():
    store, source = MemoryStore(), numbers(*SIZES)
    conversion = begun(store, source)
    machines = [open_conversion(store, "work", source=source) for _ in range(3)]
    threads = [threading.Thread(target=machine.write_part, kwargs={"processes": 1}) for machine in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    manifest = conversion.publish()
    assert ids_of(store) == list(range(12))
    named = {file.basename for shard in manifest.shards for file in shard.stored_files}
    assert {key for key in store.objects if key.endswith(".mds")} == named


def all_steps(store, source):
    begun(store, source).write_part(1, of=2, processes=1)
    open_conversion(store, "work", source=source).write_part(2, of=2, processes=1)
    return open_conversion(store, "work", source=source).publish()


def test_killed_after_any_write_and_repeated_every_row_is_there_once():
    source, kills = numbers(*SIZES), 0
    for writes in range(100):
        store = MemoryStore()
        store.die_after_writes(writes)
        try:
            all_steps(store, source)
        except Killed:
            kills += 1
        else:
            break
        store.heal()
        manifest = all_steps(store, source)
        assert (manifest.version, manifest.rows) == (1, 12), writes
        assert ids_of(store) == list(range(12)), writes
    assert kills >= 10


def test_what_an_abandoned_conversion_leaves_is_removed_by_a_vacuum():
    now = [1_000_000.0]
    store = MemoryStore(clock=lambda: now[0])
    first = begin_conversion(numbers((2,)), store, write_id="first")
    first.write_part(processes=1)
    first.publish()
    second = begin_conversion(numbers((3,), (4,)), store, **{**OPTIONS, "write_id": "second"}, mode="append")
    second.write_part(1, of=2, processes=1)
    assert {key.rpartition("/")[2][:4] for key in store.objects if key.startswith("second/")} == {
        "conv",
        "part",
        "shar",
    }
    now[0] += 100 * 24 * 3600
    vacuum(store, older_than="30d", dry_run=False)
    assert [key for key in store.objects if "second" in key] == []
    with pytest.raises(CatalogError):
        second.publish()
    assert ids_of(store) == [0, 1]


def test_another_source_or_other_options_under_the_same_id_are_refused():
    store = MemoryStore()
    begun(store)
    with pytest.raises(CatalogError, match="begun with another source or other options"):
        begun(store, numbers((1,)))
    with pytest.raises(CatalogError, match="not what it was when conversion work began"):
        open_conversion(store, "work", source=NumberSource([Numbers(0, (3,))], mark="2"))
    with pytest.raises(CatalogError, match="has no conversion 'none'"):
        open_conversion(store, "none")
    with pytest.raises(ValueError, match="`source`: expected the source that the conversion was begun with"):
        open_conversion(store, "work")


def test_a_share_that_is_not_there_is_refused():
    conversion = begun(MemoryStore())
    with pytest.raises(ValueError, match="`number`: expected a share from 1 to 2, found 3"):
        conversion.write_part(3, of=2)


def test_a_transform_has_to_be_given_again():
    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    store, source = MemoryStore(), numbers((2,))
    begin_conversion(source, store, transform=same, write_id="work")
    with pytest.raises(ValueError, match="`transform`: expected the function"):
        open_conversion(store, "work", source=source)
    conversion = open_conversion(store, "work", source=source, transform=same)
    conversion.write_part(processes=1)
    assert conversion.publish().rows == 2
    assert load_manifest(store).rows == 2


def test_a_source_that_changes_between_parts_is_not_published():
    source = numbers(*SIZES)
    conversion = begun(MemoryStore(), source)
    conversion.write_part(1, of=2, processes=1)
    source.mark = "2"
    with pytest.raises(SmaltiError, match="changed while it was read"):
        conversion.write_part(2, of=2, processes=1)
    with pytest.raises(SmaltiError, match="changed while it was read"):
        conversion.publish()


def test_a_machine_that_is_late_writes_nothing_after_the_version_is_published():
    store, source = MemoryStore(), numbers(*SIZES)
    conversion, late = begun(store, source), begun(store, source)
    conversion.write_part(processes=1)
    conversion.publish()
    before = set(store.objects)
    assert late.write_part(processes=1).written == ()
    assert late.publish().version == 1
    assert set(store.objects) == before


def test_a_publish_that_another_one_overtakes_returns_its_version(monkeypatch):
    store, source = MemoryStore(), numbers(*SIZES)
    first, second = begun(store, source), begun(store, source)
    first.write_part(processes=1)
    monkeypatch.setattr(second, "_answers", lambda: first.publish() and Conversion._answers(second))
    assert second.publish().version == 1
    assert ids_of(store) == list(range(12))


def test_tuples_in_options_begin_the_same_conversion():
    store, source = MemoryStore(), numbers(*SIZES)
    for _ in range(2):
        assert begin_conversion(source, store, **OPTIONS, metadata={"pair": (1, 2)}).parts == 3
