"""Vacuum of prepared images, by the catalogue's own: leftovers of killed updates and old versions go, nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smalti.catalog import tag, vacuum
from smalti.catalog.retention.sweep import Why
from smalti.errors import CatalogError, VersionNotFound
from smalti.sources.image_folder import list_images
from smalti.spark.prepared.table import load_prepared
from smalti.storage import LocalStore
from tests.spark.photos import put
from tests.spark.prepared.preparer import OPTIONS, Preparer, bring_up_to_date, photo, rows_of
from tests.stores import MemoryStore
from tests.stores.memory import Killed

DAY = 86400.0
MARKERS = "_versions/writes/"


class Aging(MemoryStore):
    """A store whose clock the test sets."""

    def __init__(self):
        self.now = 1000 * DAY
        super().__init__(clock=lambda: self.now)

    def pass_days(self, days):
        self.now += days * DAY

    def below(self, folder):
        return sorted(key for key in self.objects if key.startswith(folder))


@pytest.fixture
def preparer(tmp_path):
    """Return a preparer of six photos, with a store for their versions."""
    for kind in ("daisy", "roses"):
        for number in range(3):
            put(tmp_path / "photos" / kind / f"{number}.jpg", photo(kind, number))
    return Preparer(tmp_path / "photos", Aging())


def killed_update(preparer):
    """Run an update of one new photo that dies after its marker and its part, and return its write id."""
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    preparer.store.die_after_writes(2)
    with pytest.raises(Killed):
        preparer.update()
    preparer.store.heal()
    [note] = preparer.store.below(MARKERS)
    return note.removeprefix(MARKERS).removesuffix(".json")


def test_old_leftovers_of_a_killed_update_are_removed_and_versions_stay_whole(preparer):
    table = preparer.update().table
    dead = killed_update(preparer)
    preparer.store.pass_days(6)
    assert vacuum(preparer.store, dry_run=False).removed == ()
    preparer.store.pass_days(2)
    [part] = preparer.store.below(f"{dead}/")
    objects = dict(preparer.store.objects)
    report = vacuum(preparer.store)
    assert [(each.key, each.why) for each in report.removed] == [
        (part, Why.ORPHAN),
        (f"{MARKERS}{dead}.json", Why.ORPHAN),
    ]
    assert preparer.store.objects == objects, "a dry run removes nothing"
    vacuum(preparer.store, dry_run=False)
    assert not any(dead in key for key in preparer.store.objects)
    assert rows_of(load_prepared(preparer.store)) == rows_of(table)


def test_a_running_update_loses_nothing_however_long_it_takes(preparer):
    preparer.update()
    running = killed_update(preparer)
    preparer.store.pass_days(30)
    preparer.store.put(f"{running}/part-00001-0123abcd.parquet", b"of today")
    assert vacuum(preparer.store, dry_run=False).removed == ()


def test_parts_of_a_failed_attempt_are_removed_and_the_versions_stay(preparer):
    """An executor is killed after it stored its part; the task is repeated under another name."""
    table = preparer.update().table
    part = table.parts[0].raw.basename
    lost = f"{part.split('/')[0]}/part-00000-0123abcd.parquet"
    preparer.store.put(lost, preparer.store.get(part))
    preparer.store.pass_days(8)
    [removed] = vacuum(preparer.store, dry_run=False).removed
    assert (removed.key, removed.why) == (lost, Why.LEFTOVER)
    assert len(rows_of(load_prepared(preparer.store))) == 6


def test_objects_of_other_programs_stay(preparer):
    preparer.update()
    preparer.store.put("notes/part-00000-0123abcd.parquet", b"mine")
    preparer.store.put("readme.txt", b"mine")
    preparer.store.pass_days(30)
    assert vacuum(preparer.store, dry_run=False).removed == ()


def test_superseded_versions_go_when_they_are_old_and_tagged_ones_stay(preparer):
    tables = [preparer.update().table]
    for number in (90, 91):
        put(preparer.source / "daisy" / "1.jpg", photo("daisy", number))
        tables.append(preparer.update().table)
    tag(preparer.store, "best", 1)
    preparer.store.pass_days(8)
    report = vacuum(preparer.store, dry_run=False)
    assert report.expired == (2,)
    assert rows_of(load_prepared(preparer.store, tag="best")) == rows_of(tables[0])
    assert rows_of(load_prepared(preparer.store)) == rows_of(tables[2])
    with pytest.raises(VersionNotFound, match="version 2 was removed by a vacuum"):
        load_prepared(preparer.store, version=2)


def test_an_update_after_a_vacuum_keeps_the_parts_of_the_version_before(preparer):
    before = preparer.update().table
    killed_update(preparer)
    preparer.store.pass_days(8)
    vacuum(preparer.store, dry_run=False)
    done = preparer.update()
    assert (done.prepared, done.kept) == (1, 6)
    assert [part for part in before.parts if part not in list(done.table.parts)] == []
    assert len(rows_of(done.table)) == 7


def test_every_sixteenth_version_an_update_vacuums_by_itself(preparer):
    preparer.update()
    dead = killed_update(preparer)
    preparer.store.pass_days(8)
    for number in range(15):
        assert preparer.store.below(dead) != []
        put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90 + number))
        done = preparer.update()
    assert done.table.manifest.version == 16
    assert preparer.store.below(dead) == []
    assert rows_of(load_prepared(preparer.store)) == rows_of(done.table)


def test_an_update_that_resumes_after_its_parts_were_removed_publishes_nothing_and_reports_why(preparer):
    before = preparer.update().table
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))

    def paused(paths, write_id):
        answers = preparer.prepared(paths, write_id)
        preparer.store.pass_days(8)
        vacuum(preparer.store, dry_run=False)
        return answers

    with pytest.raises(CatalogError, match=r"was considered abandoned, and a vacuum .* removes its shards"):
        bring_up_to_date(preparer.store, list_images(str(preparer.source)), OPTIONS, paused)
    assert rows_of(load_prepared(preparer.store)) == rows_of(before)
    assert preparer.update().prepared == 1


@pytest.mark.process
def test_after_a_real_sigkill_the_parts_stay_until_they_are_old(tmp_path):
    for number in range(12):
        put(tmp_path / "photos" / "daisy" / f"{number}.jpg", photo("daisy", number))
    path = tmp_path / "prepared"
    command = [sys.executable, "-m", "tests.spark.prepared.killed_update", str(tmp_path / "photos"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = files_of(path)
    assert len(left) == 3  # two parts, and whose they are
    preparer = Preparer(tmp_path / "photos", LocalStore(path))
    table = preparer.update().table
    assert vacuum(path, dry_run=False).removed == ()
    assert set(left) < set(files_of(path)), "young objects may be of a running update"
    long_ago = time.time() - 8 * DAY
    for name in left:
        os.utime(path / name, (long_ago, long_ago))
    report = vacuum(path, dry_run=False)
    assert sorted(each.key for each in report.removed) == left
    assert rows_of(load_prepared(path)) == rows_of(table)


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
