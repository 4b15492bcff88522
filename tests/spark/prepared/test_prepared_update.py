"""Updates of prepared images: always the rows of a full preparation, and no file is read needlessly."""

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from smalti.catalog import history, rollback, vacuum, verify
from smalti.dataset import StreamingDataset
from smalti.errors import BadImageError, CommitConflict, DatasetExists, FormatError, StoreNotFound
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.rows import choose_parts, images_of_classes
from smalti.spark.prepared.table import FILES, load_prepared, prepared_files
from smalti.spark.prepared.update import find_prepared
from smalti.storage import LocalStore
from smalti.writer import MDSWriter
from tests.spark.photos import put
from tests.spark.prepared.preparer import OPTIONS, Preparer, bring_up_to_date, photo, rows_of
from tests.stores.memory import Killed

ROOT = Path(__file__).parents[3]


@pytest.fixture
def preparer(tmp_path: Path) -> Preparer:
    """Return a preparer of twelve drawn photos of three classes."""
    for kind in ("daisy", "roses", "tulips"):
        for number in range(4):
            put(tmp_path / "photos" / kind / f"{number}.jpg", photo(kind, number))
    return Preparer(tmp_path / "photos")


def in_full(preparer, options=OPTIONS):
    """Return the rows of a full preparation, in a place of its own."""
    other = Preparer(preparer.source)
    table = other.update(options).table
    return rows_of(table), table.digest


def test_the_first_update_prepares_everything(preparer):
    done = preparer.update()
    assert (done.prepared, done.kept, done.removed) == (12, 0, 0)
    assert done.table.counts == {
        "train": {"daisy": 3, "roses": 3, "tulips": 3},
        "validation": {"daisy": 1, "roses": 1, "tulips": 1},
    }
    assert set(rows_of(done.table)) == {
        f"{kind}/{number}.jpg" for kind in ("daisy", "roses", "tulips") for number in range(4)
    }


def test_only_new_and_changed_files_are_prepared_and_the_rows_are_those_of_a_full_preparation(preparer):
    before = preparer.update().table
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    put(preparer.source / "roses" / "7.jpg", photo("roses", 7))
    (preparer.source / "tulips" / "0.jpg").unlink()
    done = preparer.update()
    assert preparer.asked == ["daisy/1.jpg", "roses/7.jpg"]
    assert (done.prepared, done.kept, done.removed) == (2, 10, 1)
    assert {part.raw.basename for part in before.parts} & {part.raw.basename for part in done.table.parts}
    assert (rows_of(done.table), done.table.digest) == in_full(preparer)


def test_a_rewritten_file_with_the_same_image_keeps_its_row(preparer):
    before = preparer.update().table
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 1))
    done = preparer.update()
    assert preparer.asked == ["daisy/1.jpg"]
    assert done.table.digest == before.digest


def test_a_new_class_changes_labels_without_decoding_an_image_again(preparer):
    preparer.update()
    put(preparer.source / "asters" / "0.jpg", photo("daisy", 50))
    put(preparer.source / "asters" / "1.jpg", photo("daisy", 51))
    done = preparer.update()
    assert preparer.asked == ["asters/0.jpg", "asters/1.jpg"]
    rows = rows_of(done.table)
    assert {path.split("/")[0]: label for path, (label, _, _) in rows.items()} == {
        "asters": 0,
        "daisy": 1,
        "roses": 2,
        "tulips": 3,
    }
    assert (rows, done.table.digest) == in_full(preparer)


def test_another_share_that_is_held_out_prepares_nothing(preparer):
    preparer.update()
    other = PrepareOptions(size=16, validation_fraction=0.5)
    done = preparer.update(other)
    assert preparer.asked == []
    assert done.table.counts["validation"] == {"daisy": 2, "roses": 2, "tulips": 2}
    assert rows_of(done.table) == in_full(preparer, other)[0]


@pytest.mark.parametrize("other", [PrepareOptions(size=24), PrepareOptions(size=16, quality=50)])
def test_options_that_change_the_image_prepare_everything(preparer, other):
    preparer.update()
    preparer.update(other)
    assert len(preparer.asked) == 12


def test_deleted_files_alone_need_no_preparation(preparer):
    preparer.update()
    for path in (preparer.source / "roses").iterdir():
        path.unlink()
    done = preparer.update()
    assert preparer.asked == []
    assert (done.kept, done.removed) == (8, 4)
    assert (rows_of(done.table), done.table.digest) == in_full(preparer)


def test_a_bad_image_is_read_once_and_left_out(preparer):
    put(preparer.source / "roses" / "9.jpg", b"no image")
    options = PrepareOptions(size=16, on_bad_image="skip")
    first = preparer.update(options)
    assert [path for path, _ in first.table.bad] == ["roses/9.jpg"]
    assert first.table.rows == 12
    put(preparer.source / "roses" / "8.jpg", photo("roses", 8))
    second = preparer.update(options)
    assert preparer.asked == ["roses/8.jpg"]
    assert second.table.bad == first.table.bad


def test_a_new_bad_image_fails_the_update_and_leaves_the_table_unchanged(preparer):
    before = preparer.update().table
    there = set(preparer.store.objects)
    put(preparer.source / "roses" / "8.jpg", photo("roses", 8))
    put(preparer.source / "roses" / "9.jpg", b"no image")
    with pytest.raises(BadImageError, match="1 of 14 files are not usable images"):
        preparer.update()
    [note] = set(preparer.store.objects) - there
    assert note.startswith("_versions/writes/"), "an orphaned task may still put a part, so the marker stays"
    assert load_prepared(preparer.store).name == before.name
    (preparer.source / "roses" / "9.jpg").unlink()
    assert preparer.update().prepared == 1


SKIP = PrepareOptions(size=16, validation_fraction=0.25, on_bad_image="skip")


@pytest.mark.parametrize(("first", "then"), [(OPTIONS, SKIP), (SKIP, OPTIONS)])
def test_another_policy_for_bad_images_prepares_nothing_again(preparer, first, then):
    before = preparer.update(first).table
    done = preparer.update(then)
    assert preparer.asked == []
    assert done.table.digest == before.digest


def test_a_file_that_was_left_out_is_named_under_the_policy_fail(preparer):
    put(preparer.source / "roses" / "9.jpg", b"no image")
    before = preparer.update(SKIP).table
    put(preparer.source / "roses" / "8.jpg", photo("roses", 8))
    put(preparer.source / "tulips" / "9.jpg", b"no image either")
    with pytest.raises(BadImageError, match="2 of 15 files are not usable images") as caught:
        preparer.update()
    assert caught.value.facts["paths"] == ["roses/9.jpg", "tulips/9.jpg"]
    assert load_prepared(preparer.store).name == before.name
    for name in ("roses", "tulips"):
        (preparer.source / name / "9.jpg").unlink()
    assert preparer.update().prepared == 1


def test_a_version_with_bad_images_is_not_found_again_under_the_policy_fail(preparer):
    put(preparer.source / "roses" / "9.jpg", b"no image")
    table, folder = preparer.update(SKIP).table, list_images(str(preparer.source))
    with pytest.raises(BadImageError, match=r"1 of 13 files are not usable images:\n  roses/9\.jpg"):
        find_prepared(folder, preparer.store, options=OPTIONS)
    assert find_prepared(folder, preparer.store, options=SKIP).table.name == table.name


def test_an_update_killed_at_any_write_leaves_the_old_or_the_new_version_and_the_next_run_is_right(preparer):
    first = preparer.update().table
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    wanted = in_full(preparer)
    objects = dict(preparer.store.objects)
    seen = set()
    for writes in range(40):
        preparer.store.objects.clear()
        preparer.store.objects.update(objects)
        preparer.store.die_after_writes(writes)
        try:
            preparer.update()
        except Killed:
            preparer.store.heal()
        else:
            break
        newest = load_prepared(preparer.store)
        assert newest.manifest.version in (1, 2)
        assert len(rows_of(newest)) == (12 if newest.name == first.name else 13)
        seen.add(newest.manifest.version)
        table = preparer.update().table
        assert (rows_of(table), table.digest) == wanted
        assert verify(preparer.store).ok
    assert seen == {1, 2}
    assert writes < 39


def test_of_two_updates_at_once_one_wins_and_the_other_publishes_nothing_and_says_so(preparer):
    preparer.update()
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    other = Preparer(preparer.source, preparer.store)

    def overtaken(paths, write_id):
        put(preparer.source / "roses" / "8.jpg", photo("roses", 8))
        other.update()
        return []

    folder = list_images(str(preparer.source))
    (preparer.source / "daisy" / "8.jpg").touch()
    with pytest.raises(CommitConflict, match="made from version 1, and the newest is 2; nothing of it is visible"):
        bring_up_to_date(preparer.store, folder, SKIP, overtaken)
    assert len(rows_of(load_prepared(preparer.store))) == 14


def test_of_two_first_updates_at_once_the_second_is_told_to_update_again(preparer):
    other = Preparer(preparer.source, preparer.store)
    full = in_full(preparer)

    def overtaken(paths, write_id):
        answers = other.prepared(paths, write_id)
        other.update()
        return answers

    with pytest.raises(CommitConflict, match="another writer published first; nothing of this one is visible"):
        bring_up_to_date(preparer.store, list_images(str(preparer.source)), OPTIONS, overtaken)
    table = preparer.update().table
    assert (preparer.asked, rows_of(table), table.digest) == ([], *full)


def test_an_unchanged_folder_publishes_nothing_and_an_earlier_state_is_rolled_back_to(preparer):
    first = preparer.update().table
    objects = dict(preparer.store.objects)
    again = preparer.update()
    assert (again.prepared, again.kept, again.removed, again.table.manifest.version) == (0, 12, 0, 1)
    assert preparer.store.objects == objects
    preparer.update(PrepareOptions(size=16, validation_fraction=0.5))
    back = preparer.update().table
    assert (back.manifest.version, back.manifest.operation, back.name) == (3, "rollback", first.name)
    assert rows_of(back) == rows_of(first)
    assert [entry.operation for entry in history(preparer.store)] == ["create", "overwrite", "rollback"]


def test_options_that_were_used_before_build_on_their_own_version(preparer):
    small = PrepareOptions(size=8, validation_fraction=0.25)
    preparer.update(small)
    preparer.update()
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    done = preparer.update(small)
    assert preparer.asked == ["daisy/8.jpg"]
    assert done.table.manifest.version == 3
    assert (rows_of(done.table), done.table.digest) == in_full(preparer, small)


def test_a_part_with_a_row_that_went_is_copied_without_it_and_the_others_are_kept(preparer):
    before = preparer.update().table
    (preparer.source / "tulips" / "0.jpg").unlink()
    table = preparer.update().table
    old, new = ({part.raw.basename for part in each.parts} for each in (before, table))
    assert (len(old - new), len(new - old)) == (1, 1)
    assert sum(part.samples for part in table.parts) == 11
    assert (rows_of(table), table.digest) == in_full(preparer)


def test_many_small_parts_are_copied_into_one(preparer):
    for number in range(10, 20):
        put(preparer.source / "daisy" / f"{number}.jpg", photo("daisy", number))
        done = preparer.update()
        assert len(preparer.asked) == (13 if number == 10 else 1)
        assert len(done.table.parts) <= 9
    assert (rows_of(done.table), done.table.digest) == in_full(preparer)
    assert max(part.samples for part in done.table.parts) >= 9


def test_an_old_version_stays_readable_until_a_vacuum_a_tag_or_age_decides(preparer):
    first = preparer.update().table
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    preparer.update()
    assert rows_of(load_prepared(preparer.store, version=1)) == rows_of(first)
    assert rollback(preparer.store, 1).version == 3
    assert load_prepared(preparer.store).digest == first.digest


def test_a_part_or_table_that_is_damaged_or_missing_is_named(preparer):
    table = preparer.update().table
    [labels] = [key for key in preparer.store.objects if key.endswith("files.parquet")]
    part = table.parts[0].raw.basename
    objects = dict(preparer.store.objects)
    for key, data, kind in (
        (part, objects[part][:-1] + b"?", "checksum"),
        (part, None, "missing"),
        (labels, objects[labels][:-1], "content"),
        (labels, None, "content"),
    ):
        preparer.store.objects.update(objects)
        preparer.store.delete(key)
        if data is not None:
            preparer.store.put(key, data)
        report = verify(preparer.store)
        assert [(problem.key, problem.kind) for problem in report.problems] == [(key, kind)]
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    with pytest.raises(FormatError, match=r"files\.parquet is gone"):
        preparer.update()
    preparer.store.objects.update(objects)
    preparer.store.delete(part)
    with pytest.raises(StoreNotFound, match=part.split("/")[1]):
        images_of_classes(table, 12)


def test_examples_of_classes_are_read_from_the_parts_with_most_to_give():
    parts = {
        "many images": {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"]},
        "many classes": {"a": ["a3"], "c": ["c0"], "d": ["d0"]},
        "one class": {"a": ["a4", "a5"]},
        "rest": {"c": ["c1", "c2"], "d": ["d1", "d2"]},
    }
    assert choose_parts(parts, 2) == {
        "many images": {"a0": "a", "a1": "a", "b0": "b", "b1": "b"},
        "rest": {"c1": "c", "c2": "c", "d1": "d", "d2": "d"},
    }


# ---------------------------------------------------------------------- reading


def test_the_files_of_a_version_hold_exactly_its_rows_and_are_joined_by_path(tmp_path, preparer):
    preparer = Preparer(preparer.source, LocalStore(tmp_path / "prepared"))
    preparer.update()
    put(preparer.source / "asters" / "0.jpg", photo("daisy", 50))
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    put(preparer.source / "roses" / "9.jpg", b"no image")
    (preparer.source / "tulips" / "0.jpg").unlink()
    table = preparer.update(SKIP).table
    files = prepared_files(tmp_path / "prepared")
    images, labels = ds.dataset(files.images).to_table(), ds.dataset(files.labels).to_table()
    joined = images.join(labels, "path", join_type="inner")
    assert (images.num_rows, joined.num_rows) == (12, 12)
    columns = [joined.column(name).to_pylist() for name in ("path", "label", "split", "digest")]
    assert {path: tuple(rest) for path, *rest in zip(*columns, strict=True)} == rows_of(table)
    assert images.schema.names == ["path", "image", "width", "height"]
    assert labels.schema.names == FILES.names
    first = prepared_files(tmp_path / "prepared", version=1)
    assert ds.dataset(first.images).to_table().num_rows == 12
    assert "tulips/0.jpg" in ds.dataset(first.images).to_table(columns=["path"])["path"].to_pylist()


def test_photos_keep_their_split_when_others_come_if_a_share_is_kept_for_a_test(preparer):
    options = PrepareOptions(size=16, validation_fraction=0.25, test_fraction=0.25)
    before = {path: split for path, (_, split, _) in rows_of(preparer.update(options).table).items()}
    for number in range(4, 8):
        put(preparer.source / "daisy" / f"{number}.jpg", photo("daisy", number))
    done = preparer.update(options)
    after = {path: split for path, (_, split, _) in rows_of(done.table).items()}
    assert after.items() >= before.items()
    assert (len(before), len(after), done.prepared) == (12, 16, 4)
    assert set(done.table.counts) == {"train", "validation", "test"}


def test_duckdb_reads_a_version_by_the_line_of_the_documentation(tmp_path, preparer):
    duckdb = pytest.importorskip("duckdb")
    table = Preparer(preparer.source, LocalStore(tmp_path / "prepared")).update().table
    [line] = [line for line in (ROOT / "docs" / "spark.md").read_text().splitlines() if "duckdb.sql(" in line]
    found = eval(line, {"duckdb": duckdb, "files": prepared_files(tmp_path / "prepared")})
    found = found.select("path", "label", "split", "digest").fetchall()
    assert {path: tuple(rest) for path, *rest in found} == rows_of(table)


def test_a_shard_set_and_prepared_images_are_not_taken_for_each_other(tmp_path, preparer):
    with MDSWriter(out=tmp_path / "mds", columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    objects = {path: path.read_bytes() for path in (tmp_path / "mds").rglob("*") if path.is_file()}
    with pytest.raises(DatasetExists, match="holds a shard set, and no prepared images"):
        Preparer(preparer.source, LocalStore(tmp_path / "mds")).update()
    assert {path: path.read_bytes() for path in (tmp_path / "mds").rglob("*") if path.is_file()} == objects
    with pytest.raises(FormatError, match=r"version 1 of .* holds no prepared images: it is a shard set"):
        load_prepared(tmp_path / "mds")
    Preparer(preparer.source, LocalStore(tmp_path / "prepared")).update()
    with pytest.raises(FormatError, match=r"is a Parquet file of prepared images and no shard: .*read_prepared"):
        len(StreamingDataset(remote=tmp_path / "prepared", batch_size=1))


def test_tables_of_the_former_layout_are_named_and_stay_as_they_were(preparer):
    old = {
        "_tables/0123.arrow": b"a table",
        "_newest/abc.json": b'["0123"]',
        "_writes/20260101t000000-0123456789abcdef.json": b"{}",
        "20260101t000000-0123456789abcdef/part-00000-0123abcd.parquet": b"a part",
    }
    for key, data in old.items():
        preparer.store.put(key, data)
    with pytest.raises(StoreNotFound, match="it has the tables of a Smalti before versions, which are not read"):
        load_prepared(preparer.store)
    table = preparer.update().table
    assert len(rows_of(table)) == 12
    vacuum(preparer.store, older_than=0, unsafe_ttl=True, dry_run=False)
    assert {key: preparer.store.get(key) for key in old} == old
    assert len(rows_of(load_prepared(preparer.store))) == 12
