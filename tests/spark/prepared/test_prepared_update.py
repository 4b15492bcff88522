"""Updates of prepared images: always the rows of a full preparation, and no file is read needlessly."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.errors import BadImageError, FormatError, StoreNotFound
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.newest import newest_table
from smalti.spark.prepared.rows import labels_in, read_part
from smalti.spark.prepared.table import load_table
from smalti.spark.prepared.update import recipe_of, show_again
from smalti.testing.memory import Killed
from tests.spark.photos import put
from tests.spark.prepared.preparer import OPTIONS, Preparer, photo, rows_of


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
    return rows_of(other.store, table), table.digest


def test_the_first_update_prepares_everything(preparer):
    done = preparer.update()
    assert (done.prepared, done.kept, done.removed) == (12, 0, 0)
    assert done.table.counts == {
        "train": {"daisy": 3, "roses": 3, "tulips": 3},
        "validation": {"daisy": 1, "roses": 1, "tulips": 1},
    }
    assert set(rows_of(preparer.store, done.table)) == {
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
    assert set(before.parts) < set(done.table.parts)
    assert (rows_of(preparer.store, done.table), done.table.digest) == in_full(preparer)


def test_a_rewritten_file_with_the_same_image_keeps_its_row(preparer):
    before = preparer.update().table
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 1))
    done = preparer.update(name="touched")
    assert preparer.asked == ["daisy/1.jpg"]
    assert done.table.digest == before.digest


def test_a_new_class_changes_labels_without_decoding_an_image_again(preparer):
    preparer.update()
    put(preparer.source / "asters" / "0.jpg", photo("daisy", 50))
    put(preparer.source / "asters" / "1.jpg", photo("daisy", 51))
    done = preparer.update()
    assert preparer.asked == ["asters/0.jpg", "asters/1.jpg"]
    rows = rows_of(preparer.store, done.table)
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
    done = preparer.update(other, name="half")
    assert preparer.asked == []
    assert done.table.counts["validation"] == {"daisy": 2, "roses": 2, "tulips": 2}
    assert rows_of(preparer.store, done.table) == in_full(preparer, other)[0]


@pytest.mark.parametrize("other", [PrepareOptions(size=24), PrepareOptions(size=16, quality=50)])
def test_options_that_change_the_image_prepare_everything(preparer, other):
    preparer.update()
    preparer.update(other, name="other")
    assert len(preparer.asked) == 12


def test_deleted_files_alone_need_no_preparation(preparer):
    preparer.update()
    for path in (preparer.source / "roses").iterdir():
        path.unlink()
    done = preparer.update()
    assert preparer.asked == []
    assert (done.kept, done.removed) == (8, 4)
    assert (rows_of(preparer.store, done.table), done.table.digest) == in_full(preparer)


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
    assert note.startswith("_writes/"), "an orphaned task may still put a part, so the marker stays"
    assert newest_table(preparer.store, recipe_of(list_images(str(preparer.source)), OPTIONS)).name == before.name
    (preparer.source / "roses" / "9.jpg").unlink()
    assert preparer.update().prepared == 1


SKIP = PrepareOptions(size=16, validation_fraction=0.25, on_bad_image="skip")


@pytest.mark.parametrize(("first", "then"), [(OPTIONS, SKIP), (SKIP, OPTIONS)])
def test_another_policy_for_bad_images_prepares_nothing_again(preparer, first, then):
    before = preparer.update(first).table
    done = preparer.update(then, name="other")
    assert preparer.asked == []
    assert done.table.digest == before.digest


def test_a_file_that_was_left_out_is_named_under_the_policy_fail(preparer):
    put(preparer.source / "roses" / "9.jpg", b"no image")
    before = preparer.update(SKIP).table
    put(preparer.source / "roses" / "8.jpg", photo("roses", 8))
    put(preparer.source / "tulips" / "9.jpg", b"no image either")
    with pytest.raises(BadImageError, match="2 of 15 files are not usable images") as caught:
        preparer.update(name="strict")
    assert caught.value.facts["paths"] == ["roses/9.jpg", "tulips/9.jpg"]
    assert newest_table(preparer.store, recipe_of(list_images(str(preparer.source)), OPTIONS)).name == before.name
    for name in ("roses", "tulips"):
        (preparer.source / name / "9.jpg").unlink()
    assert preparer.update(name="strict").prepared == 1


def test_a_table_with_bad_images_is_not_shown_again_under_the_policy_fail(preparer):
    put(preparer.source / "roses" / "9.jpg", b"no image")
    table, folder = preparer.update(SKIP).table, list_images(str(preparer.source))
    with pytest.raises(BadImageError, match=r"1 of 13 files are not usable images:\n  roses/9\.jpg"):
        show_again(folder, preparer.store, name=table.name, options=OPTIONS)
    assert show_again(folder, preparer.store, name=table.name, options=SKIP).name == table.name


def test_an_update_killed_at_any_write_leaves_the_old_or_the_new_table_and_the_next_run_is_right(preparer):
    first = preparer.update().table
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    put(preparer.source / "daisy" / "8.jpg", photo("daisy", 8))
    wanted = in_full(preparer)
    objects = dict(preparer.store.objects)
    recipe = recipe_of(list_images(str(preparer.source)), OPTIONS)
    for writes in range(20):
        preparer.store.objects.clear()
        preparer.store.objects.update(objects)
        preparer.store.die_after_writes(writes)
        try:
            preparer.update()
        except Killed:
            preparer.store.heal()
        else:
            break
        newest = newest_table(preparer.store, recipe)
        assert (newest.name == first.name) == (writes < 4)  # the pointer is the fourth
        assert len(rows_of(preparer.store, newest)) == (12 if writes < 4 else 13)
        table = preparer.update().table
        assert (rows_of(preparer.store, table), table.digest) == wanted
    assert writes == 6  # whose parts they are, a part, the table, the pointer; what time it is, and that away


def test_only_the_newest_table_and_the_one_before_are_kept_with_what_they_need(preparer):
    names = [preparer.update(name="0").table.name]
    for number in range(1, 4):
        put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90 + number))
        names.append(preparer.update(name=str(number)).table.name)
    assert [name for name in names if load_table(preparer.store, name) is not None] == ["2", "3"]
    living = {part for name in ("2", "3") for part in load_table(preparer.store, name).parts}
    parts = {key for key in preparer.store.objects if key.endswith(".parquet")}
    assert parts == living
    assert len(parts) == 3 + 2  # of the first time, and of each daisy that is still named


def test_many_small_parts_are_copied_into_one(preparer):
    for number in range(10, 20):
        put(preparer.source / "daisy" / f"{number}.jpg", photo("daisy", number))
        done = preparer.update()
        assert len(preparer.asked) == (13 if number == 10 else 1)
    assert len(done.table.parts) <= 9
    assert (rows_of(preparer.store, done.table), done.table.digest) == in_full(preparer)
    joined = [part for part in done.table.parts if "joined" in part]
    (found,) = [pq.read_table(pa.BufferReader(preparer.store.get(part))).num_rows for part in joined]
    assert found == done.table.parts[joined[0]].rows >= 9


def test_a_damaged_table_is_refused_and_a_missing_one_is_made_again(preparer):
    table = preparer.update().table
    key = f"_tables/{table.name}.arrow"
    data = preparer.store.get(key)
    put(preparer.source / "daisy" / "1.jpg", photo("daisy", 90))
    preparer.store.put(key, data[: len(data) // 2])
    with pytest.raises(FormatError, match="is no table of prepared images; delete it"):
        preparer.update()
    preparer.store.delete(key)
    assert preparer.update().prepared == 12


def test_a_missing_part_is_named(tmp_path, preparer):
    table = preparer.update().table
    part = min(table.parts)
    preparer.store.delete(part)
    with pytest.raises(StoreNotFound, match=part.split("/")[1]):
        list(read_part(preparer.store, part, labels_in(table, part)))
