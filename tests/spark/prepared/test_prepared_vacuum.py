"""Vacuum of prepared images: old leftovers of killed preparations are removed, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from smalti.catalog.retention.sweep import Why
from smalti.errors import CatalogError, CommitConflict, FormatError, StoreError, StoreNotFound
from smalti.sources.image_folder import list_images
from smalti.spark.prepared.newest import newest_table, put_table
from smalti.spark.prepared.parts import recording_writer
from smalti.spark.prepared.table import load_table
from smalti.spark.prepared.update import bring_table_up_to_date, recipe_of, show_own
from smalti.spark.prepared.vacuum import vacuum_prepared
from smalti.spark.prepared.writes import give_up, is_given_up
from smalti.spark.tasks import Attempt
from smalti.storage import LocalStore
from smalti.testing import MemoryStore
from smalti.testing.memory import Killed
from tests.spark.photos import put
from tests.spark.prepared.preparer import OPTIONS, PREPARED, Preparer, photo, rows_of

DAY = 86400.0


class Aging(MemoryStore):
    """A store whose clock the test sets, and that calls `on_write` after puts of matching objects."""

    def __init__(self):
        self.now = 1000 * DAY
        self.on_write = {}
        super().__init__(clock=lambda: self.now)

    def pass_days(self, days):
        self.now += days * DAY

    def below(self, folder):
        return sorted(key for key in self.objects if key.startswith(folder))

    def put(self, key, data):
        super().put(key, data)
        for part in [part for part in self.on_write if part in key.encode() + b" " + bytes(data)]:
            self.on_write.pop(part)()


@pytest.fixture
def preparer(tmp_path):
    """Return a preparer of six photos, with a store for their tables."""
    for kind in ("daisy", "roses"):
        for number in range(3):
            put(tmp_path / "photos" / kind / f"{number}.jpg", photo(kind, number))
    return Preparer(tmp_path / "photos", Aging())


def killed_update(preparer, *, writes=2):
    """Run an update of one new photo that dies after some writes (a marker and a part), and return its write id."""
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    before = set(preparer.store.objects)
    preparer.store.die_after_writes(writes)
    with pytest.raises(Killed):
        preparer.update()
    preparer.store.heal()
    [note] = [key for key in set(preparer.store.objects) - before if key.startswith("_writes/")]
    return note.removeprefix("_writes/").removesuffix(".json")


def test_a_dry_run_reports_leftovers_of_a_killed_preparation_and_removes_nothing(preparer):
    preparer.update()
    dead = killed_update(preparer)
    preparer.store.pass_days(8)
    before = dict(preparer.store.objects)
    [part] = preparer.store.below(f"{dead}/")
    report = vacuum_prepared(preparer.store)
    assert report.dry_run
    assert [each.key for each in report.removed] == [part, f"_writes/{dead}.json"]
    assert report.num_bytes == len(before[part]) + len(before[f"_writes/{dead}.json"])
    assert preparer.store.objects == before


def test_old_leftovers_of_a_killed_preparation_are_removed_and_tables_stay_whole(preparer):
    table = preparer.update().table
    dead = killed_update(preparer)
    preparer.store.pass_days(6)
    assert vacuum_prepared(preparer.store, dry_run=False).removed == ()
    preparer.store.pass_days(2)
    before = set(preparer.store.objects)
    gone = {*preparer.store.below(f"{dead}/"), f"_writes/{dead}.json"}
    assert len(gone) == 2
    vacuum_prepared(preparer.store, dry_run=False)
    assert before - set(preparer.store.objects) == gone
    assert len(rows_of(preparer.store, load_table(preparer.store, table.name))) == 6
    assert vacuum_prepared(preparer.store, dry_run=False).removed == ()


def test_the_next_update_removes_old_leftovers_and_ignores_failures_of_that(preparer):
    preparer.update()
    dead = killed_update(preparer)
    preparer.store.pass_days(8)
    preparer.store.plant("list", error=StoreError("503"))
    assert preparer.update(name="first").prepared == 1
    preparer.store.heal()
    assert len(preparer.store.below(dead)) == 1
    put(preparer.source / "roses" / "9.jpg", photo("roses", 9))
    done = preparer.update()
    assert preparer.store.below(dead) == []
    assert f"_writes/{dead}.json" not in preparer.store.objects
    assert len(rows_of(preparer.store, done.table)) == 8


def test_an_update_without_leftovers_reads_no_table_but_its_base(preparer):
    preparer.update()
    preparer.store.pass_days(8)
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    before = len(preparer.store.calls)
    preparer.update()
    read = [call.key for call in preparer.store.calls[before:] if call.op == "get" and call.key.startswith("_tables/")]
    assert len(read) == 1


def test_parts_of_a_failed_attempt_are_removed_and_named_parts_stay(preparer):
    """An executor is killed after it stored its part; the task is repeated under another name."""
    table = preparer.update().table
    part = min(table.parts)
    folder = part.split("/")[0]
    preparer.store.put(f"{folder}/part-00000-0123abcd.parquet", preparer.store.get(part))
    preparer.store.pass_days(8)
    report = vacuum_prepared(preparer.store, dry_run=False)
    [lost] = report.removed
    assert (lost.key, lost.why) == (f"{folder}/part-00000-0123abcd.parquet", Why.LEFTOVER)
    assert f"_writes/{folder}.json" in preparer.store.objects
    assert len(rows_of(preparer.store, table)) == 6


def test_a_running_preparation_loses_nothing_however_long_it_takes(preparer):
    preparer.update()
    dead = killed_update(preparer)  # stands for a running one: its first part is old, its last is not
    preparer.store.pass_days(30)
    preparer.store.put(f"{dead}/part-00001-0123abcd.parquet", b"of today")
    report = vacuum_prepared(preparer.store, dry_run=False)
    assert report.removed == ()
    assert report.kept["of a write that may still go on"] == 2  # the note and the first part


def test_parts_of_a_table_without_a_pointer_stay(preparer):
    preparer.update()
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    preparer.store.die_after_writes(3)  # dies between the table and the pointer
    with pytest.raises(Killed):
        preparer.update(name="hidden")
    preparer.store.heal()
    preparer.store.pass_days(30)
    assert vacuum_prepared(preparer.store, dry_run=False).removed == ()
    assert len(rows_of(preparer.store, load_table(preparer.store, "hidden"))) == 7


def test_objects_that_smalti_did_not_write_stay(preparer):
    preparer.update()
    dead = killed_update(preparer)
    foreign = [
        "notes.txt",
        "aaaa/part-00000-0123abcd.parquet",  # below no write of Smalti
        f"{dead}/part-00000-5f0c-c000.snappy.parquet",  # Spark's own name
        f"{dead}/deeper/part-00000-0123abcd.parquet",
        f"deeper/{dead}/part-00000-0123abcd.parquet",
        "_writes/README.md",
    ]
    for key in foreign:
        preparer.store.put(key, b"another program's")
    preparer.store.pass_days(30)
    report = vacuum_prepared(preparer.store, dry_run=False)
    assert len(report.removed) == 2
    assert set(foreign) <= set(preparer.store.objects)
    assert report.kept["not of Smalti's making"] == len(foreign)


def test_old_uploads_of_dead_executors_are_aborted(preparer):
    preparer.update()
    dead = killed_update(preparer)
    ours = preparer.store.begin_upload(f"{dead}/part-00001-0123abcd.parquet")
    theirs = preparer.store.begin_upload("elsewhere/part-00001-0123abcd.parquet")
    preparer.store.pass_days(8)
    young = preparer.store.begin_upload(f"{dead}/part-00002-0123abcd.parquet")
    assert vacuum_prepared(preparer.store).uploads == (ours,)
    assert list(preparer.store.unfinished_uploads()) == [ours, theirs, young]
    vacuum_prepared(preparer.store, dry_run=False)
    assert list(preparer.store.unfinished_uploads()) == [theirs, young]


def test_a_marker_stays_while_its_write_has_a_young_upload(preparer):
    preparer.update()
    dead = killed_update(preparer)
    preparer.store.pass_days(5)
    preparer.store.begin_upload(f"{dead}/part-00001-0123abcd.parquet")
    preparer.store.pass_days(5)
    report = vacuum_prepared(preparer.store, dry_run=False)
    assert (report.removed, report.uploads) == ((), ())


def test_an_unfinished_upload_is_aborted_by_a_later_update(preparer):
    table = preparer.update().table
    upload = preparer.store.begin_upload(f"{min(table.parts).split('/')[0]}/part-00001-0123abcd.parquet")
    preparer.store.pass_days(8)
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    preparer.update()
    assert upload not in list(preparer.store.unfinished_uploads())


def test_a_temporary_file_of_a_killed_preparation_is_removed_by_a_later_update(preparer, tmp_path):
    preparer = Preparer(preparer.source, LocalStore(tmp_path / "prepared"))
    preparer.update()
    left = tmp_path / "prepared" / "dead" / ".part-00000-0123abcd.parquet.0123456789abcdef.smalti-tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    os.utime(left, (1e9, 1e9))
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    preparer.update()
    assert not left.exists()


# ---------------------------------------------------------------------- paused updates


def paused_update(preparer, before_resuming):
    """Run an update that pauses for eight days once its part is stored, calling `before_resuming` before it resumes."""

    def prepare(paths, store):
        attempt = Attempt.new(0)
        rows = [{"image": photo("daisy", 8), "path": path, "label": 0, "split": "x"} for path in paths]
        answer = recording_writer(store)(iter([pa.RecordBatch.from_pylist(rows, PREPARED)]), attempt)
        preparer.store.pass_days(8)
        before_resuming()
        return [(attempt, answer)]

    return prepare


def update_by(preparer, prepare, name):
    return bring_table_up_to_date(preparer.store, list_images(str(preparer.source)), name, OPTIONS, prepare)


def test_an_update_that_resumes_after_its_parts_were_removed_publishes_nothing_and_reports_why(preparer):
    before = preparer.update(name="before").table
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    prepare = paused_update(preparer, lambda: vacuum_prepared(preparer.store, dry_run=False))
    with pytest.raises(
        CommitConflict, match=r"considered it dead and removed its parts; no table was published\. Prepare"
    ):
        update_by(preparer, prepare, "late")
    assert load_table(preparer.store, "late") is None
    assert len(rows_of(preparer.store, before)) == 6
    assert preparer.update().prepared == 1


def unpublished_table(preparer):
    """Return a table with a part of its own, before its paused writer stores it, and the write id."""
    preparer.update(name="before")
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    pointer = "_newest/" + preparer.store.below("_newest/")[0].removeprefix("_newest/")
    pointed = preparer.store.get(pointer)
    table = preparer.update(name="late").table
    preparer.store.put(pointer, pointed)
    preparer.store.delete("_tables/late.arrow")
    preparer.store.pass_days(8)
    [own] = table.parts.keys() - load_table(preparer.store, "before").parts.keys()
    return table, own.split("/")[0]


def test_a_table_stored_while_its_write_is_marked_dead_keeps_its_parts(preparer):
    """Vacuum reads the tables again after it has marked the write as dead."""
    table, write_id = unpublished_table(preparer)
    preparer.store.on_write[b'"given_up": true'] = lambda: put_table(preparer.store, table)
    assert vacuum_prepared(preparer.store, dry_run=False).removed == ()
    assert len(rows_of(preparer.store, load_table(preparer.store, "late"))) == 7
    assert not is_given_up(preparer.store, write_id), "nor is it taken for dead any more"


def test_storing_a_table_after_its_write_was_marked_dead_is_a_conflict(preparer):
    table, write_id = unpublished_table(preparer)
    recipe = recipe_of(list_images(str(preparer.source)), OPTIONS)

    def resume():
        with pytest.raises(CommitConflict, match="considered it dead"):
            show_own(preparer.store, table, recipe, write_id)

    preparer.store.on_write[b'"given_up": true'] = resume
    report = vacuum_prepared(preparer.store, dry_run=False)
    assert len(report.removed) == 2
    assert load_table(preparer.store, "late") is None
    assert newest_table(preparer.store, recipe).name == "before"


def test_a_vacuum_that_begins_right_after_the_table_was_stored_removes_nothing_of_it(preparer):
    table, write_id = unpublished_table(preparer)
    recipe = recipe_of(list_images(str(preparer.source)), OPTIONS)
    preparer.store.on_write[b"_tables/late.arrow"] = lambda: vacuum_prepared(preparer.store, dry_run=False)
    show_own(preparer.store, table, recipe, write_id)
    assert newest_table(preparer.store, recipe).name == "late"
    assert len(rows_of(preparer.store, table)) == 7


def test_a_table_that_was_stored_when_its_write_was_marked_dead_is_deleted_again(preparer):
    table, write_id = unpublished_table(preparer)
    recipe = recipe_of(list_images(str(preparer.source)), OPTIONS)
    preparer.store.on_write[b"_tables/late.arrow"] = lambda: give_up(preparer.store, write_id)
    with pytest.raises(CommitConflict, match="considered it dead"):
        show_own(preparer.store, table, recipe, write_id)
    assert load_table(preparer.store, "late") is None
    assert newest_table(preparer.store, recipe).name == "before"


def test_a_vacuum_that_dies_at_any_write_is_continued_by_the_next(preparer):
    table = preparer.update().table
    dead = killed_update(preparer)
    preparer.store.pass_days(8)
    for writes in range(20):
        preparer.store.die_after_writes(writes)
        try:
            vacuum_prepared(preparer.store, dry_run=False)
        except Killed:
            preparer.store.heal()
        else:
            break
        assert len(rows_of(preparer.store, table)) == 6
        vacuum_prepared(preparer.store, dry_run=False)
        assert preparer.store.below(dead) == []
        preparer.store.pass_days(8)
        vacuum_prepared(preparer.store, dry_run=False)
        assert not any(dead in key for key in preparer.store.objects), "a note by itself goes in its time"
        (preparer.source / "daisy" / "8.jpg").unlink()
        dead = killed_update(preparer)
        preparer.store.pass_days(8)
    assert writes == 5  # the time and that away, the note, the part and the note away


# ---------------------------------------------------------------------- what is refused


def test_less_than_a_week_needs_unsafe_ttl(preparer):
    preparer.update()
    killed_update(preparer)
    preparer.store.pass_days(1)
    with pytest.raises(CatalogError, match="Say `unsafe_ttl` if no preparation is running"):
        vacuum_prepared(preparer.store, older_than="1h", dry_run=False)
    assert len(vacuum_prepared(preparer.store, older_than="1h", unsafe_ttl=True, dry_run=False).removed) == 2


def test_an_unreadable_table_stops_the_vacuum(preparer):
    preparer.update()
    killed_update(preparer)
    preparer.store.put("_tables/other.arrow", b"no table")
    preparer.store.pass_days(8)
    before = dict(preparer.store.objects)
    with pytest.raises(FormatError, match=r"_tables/other.arrow is no table of prepared images"):
        vacuum_prepared(preparer.store, dry_run=False)
    assert preparer.store.objects == before


def test_a_place_without_prepared_tables_is_refused_and_nothing_is_stored_there(tmp_path):
    with pytest.raises(StoreNotFound, match="holds no prepared tables: neither _tables nor _writes is there"):
        vacuum_prepared(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


# ---------------------------------------------------------------------- a real one


@pytest.mark.process
def test_after_a_real_sigkill_the_parts_stay_until_they_are_old(tmp_path):
    for number in range(12):
        put(tmp_path / "photos" / "daisy" / f"{number}.jpg", photo("daisy", number))
    path = tmp_path / "tables"
    command = [sys.executable, "-m", "tests.spark.prepared.killed_update", str(tmp_path / "photos"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = files_of(path)
    assert [name for name in left if name.endswith(".parquet")] != []
    assert not (path / "_tables").exists()
    assert vacuum_prepared(path, dry_run=False).removed == ()
    preparer = Preparer(tmp_path / "photos", LocalStore(path))
    table = preparer.update().table
    assert set(left) < set(files_of(path)), "young objects may be of a running preparation"
    long_ago = time.time() - 8 * DAY
    for name in left:
        os.utime(path / name, (long_ago, long_ago))
    report = vacuum_prepared(path, dry_run=False)
    assert sorted(each.key for each in report.removed) == left
    assert len(left) == 3  # two parts, and whose they are
    assert len(rows_of(preparer.store, table)) == 12


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
