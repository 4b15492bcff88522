"""Re-sharding of changed files: always the rows of a full conversion, and no more work than needed."""

import contextlib
import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from assets.drawing import draw_flower
from smalti.catalog import load_manifest, vacuum, verify
from smalti.catalog.sidecars import (
    SampleRun,
    SourceTable,
    live_keys,
    load_sources,
    parse_sources,
    sources_of,
    split_runs,
)
from smalti.catalog.verify import open_checked
from smalti.errors import CatalogError, CommitConflict, IndexFileError, SchemaError, SmaltiError
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.sources.image_folder import list_images
from smalti.spark import reshard
from smalti.spark.added_columns import add_columns
from smalti.spark.prepare import PrepareOptions
from smalti.spark.reshard import SourceFile, convert_files, reshard_files, reshard_images, source_files
from smalti.storage import open_store
from smalti.writer import MDSWriter, delete
from smalti.writer.tables.plan import Attempt
from tests import seeds
from tests.spark.photos import put
from tests.stores import MemoryStore

SCHEMA = StructType(
    [
        StructField("path", StringType()),
        StructField("number", IntegerType()),
        StructField("text", StringType()),
        StructField("split", StringType()),
    ]
)


def rows_of(path, content):
    """Return the rows of a file: up to four, whose number and texts follow from its content."""
    count = (content * 7 + len(path)) % 5
    split = "validation" if content % 3 == 0 else "train"
    return [(path, number, f"{path}:{content}" * (number + 1), split) for number in range(count)]


@dataclass
class Frame:
    """The parts of a DataFrame that the driver reads before a task runs."""

    partitions: list
    schema: StructType = SCHEMA

    @property
    def columns(self):
        return self.schema.fieldNames()


@dataclass
class Converter:
    """Re-sharding without Spark: tasks are called one after the other."""

    content: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    width: int = 3

    def prepare(self, _, paths):
        self.asked = sorted(paths)
        parts = [[] for _ in range(self.width)]
        for path in paths:  # a file's rows may be anywhere
            for place, row in enumerate(rows_of(path, self.content[path])):
                parts[(place + len(path)) % self.width].append(row)
        return Frame(parts)

    def convert(self, frame, plan, path_column):
        answers = []
        for task, rows in enumerate(frame.partitions):
            whole = pa.table([list(column) for column in zip(*rows, strict=True)] or [[], [], [], []], SCHEMA_ARROW)
            batches = iter(whole.select(list(plan.input.names)).to_batches(max_chunksize=3))
            attempt = Attempt.new(task)
            answers.append((attempt, convert_files(plan, path_column, batches, attempt)))
        return answers

    def run(self, store, *, size_limit=400, recipe="one", columns=None, erased="refuse"):
        files = [SourceFile(path, str(content)) for path, content in self.content.items()]
        self.asked = []
        with patch.object(reshard, "_convert_by_tasks", self.convert):
            return reshard_files(
                None,
                files,
                store,
                prepare=self.prepare,
                recipe=recipe,
                columns=columns or {"path": "str", "number": "int32", "text": "str"},
                compression=None,
                size_limit=size_limit,
                partition_by="split",
                erased=erased,
            )


SCHEMA_ARROW = pa.schema([("path", pa.string()), ("number", pa.int32()), ("text", pa.string()), ("split", pa.string())])


def stored_rows(store, manifest):
    """Return the rows of a version as a reader gets them, each with its split."""
    found = Counter()
    for info in manifest.shards:
        with open_checked(store, info) as shard:
            found.update(
                (row["path"], row["number"], row["text"], info.partition)
                for row in map(shard.__getitem__, range(len(shard)))
            )
    return found


def expected_rows(content):
    return Counter(row for path, number in content.items() for row in rows_of(path, number))


def names(manifest):
    return {shard.raw.basename for shard in manifest.shards}


PATHS = st.sampled_from([f"{folder}/{number}" for folder in ("a", "bb") for number in range(9)])
CHANGES = st.dictionaries(PATHS, st.one_of(st.none(), st.integers(0, 40)), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=seeds.sized(30))
@given(history=st.lists(CHANGES, min_size=1, max_size=4), size_limit=st.sampled_from([250, 700, 1 << 20]))
def test_any_history_of_files_gives_the_rows_of_a_full_conversion(history, size_limit):
    store, converter = MemoryStore(), Converter({"a/always": 10, "bb/always": 6})
    before = None
    for changes in history:
        old = dict(converter.content)
        for path, content in changes.items():
            if content is None:
                converter.content.pop(path, None)
            else:
                converter.content[path] = content
        manifest = converter.run(store, size_limit=size_limit)
        if before is not None and converter.content == old:
            assert manifest.version == before.version
        assert stored_rows(store, manifest) == expected_rows(converter.content)
        changed = {path for path, content in converter.content.items() if old.get(path) != content}
        assert converter.asked == sorted(changed if before is not None else converter.content)
        assert verify(store).ok
        before = manifest
    full = Converter(dict(converter.content)).run(MemoryStore(), size_limit=size_limit)
    assert (full.rows, full.row_hash) == (before.rows, before.row_hash)


def small_set(count=12, **options):
    """Return a set with about one shard per file: content 12 is three rows in `train`."""
    store, converter = MemoryStore(), Converter({f"a/{number:02}": 10 for number in range(count)})
    return store, converter, converter.run(store, **options)


def test_deleted_samples_stay_away_while_their_file_is_unchanged():
    store, converter, first = small_set()
    report = delete(store, [[("path", "in", ["a/03", "a/05"])], [("path", "==", "a/07"), ("number", "==", 0)]])
    left = expected_rows(converter.content)
    for row in [*rows_of("a/03", 10), *rows_of("a/05", 10), rows_of("a/07", 10)[0]]:
        left[row] -= 1
    assert report.num_deleted == first.rows - sum(left.values())
    assert stored_rows(store, load_manifest(store)) == +left
    assert converter.run(store).version == 2, "nothing changed"
    converter.content["a/new"] = 10
    made = converter.run(store)
    assert converter.asked == ["a/new"]
    assert stored_rows(store, made) == +left + Counter(rows_of("a/new", 10))
    checked = verify(store)
    assert checked.ok
    assert checked.row_hash == made.row_hash


@pytest.mark.parametrize("change", ["content", "recipe"])
def test_a_changed_file_with_deleted_samples_is_refused_skipped_or_converted(change):
    store, converter, _ = small_set(4)
    delete(store, [("path", "==", "a/03")])
    if change == "content":
        converter.content["a/03"] = 25
    converter.content["a/01"] = 25
    run = {"recipe": "two" if change == "recipe" else "one"}
    with pytest.raises(
        CatalogError, match=r"samples of 1 new or changed files were deleted .*: a/03\. Remove"
    ) as error:
        converter.run(store, **run)
    assert error.value.paths == ["a/03"]
    assert load_manifest(store).version == 2
    others = {path: content for path, content in converter.content.items() if path != "a/03"}
    assert stored_rows(store, converter.run(store, **run, erased="skip")) == expected_rows(others)
    assert converter.run(store, **run).version == 3, "what was skipped is remembered"
    converter.content["a/03"] = 40
    assert stored_rows(store, converter.run(store, **run, erased="convert")) == expected_rows(converter.content)


def test_unchanged_files_return_the_same_version():
    store, converter, first = small_set()
    again = converter.run(store)
    assert (again.version, again.write_id) == (first.version, first.write_id) == (1, first.write_id)
    assert converter.asked == []


def test_added_files_leave_every_shard_where_it_is():
    store, converter, first = small_set()
    converter.content |= {"a/90": 11, "a/91": 10}
    second = converter.run(store)
    assert converter.asked == ["a/90", "a/91"]
    assert names(first) < names(second)
    assert second.rows == first.rows + len(rows_of("a/90", 11)) + len(rows_of("a/91", 10))


def test_only_shards_with_a_changed_or_deleted_file_are_replaced_and_the_rest_of_them_is_not_converted():
    store, converter, first = small_set()
    (entry,) = [dict(sources_of(first.sidecars))]
    runs = load_sources(store, entry).runs
    converter.content["a/03"] = 14
    del converter.content["a/07"]
    second = converter.run(store)
    assert converter.asked == ["a/03"]
    torn = {name for name, held in runs.items() if {run.path for run in held} & {"a/03", "a/07"}}
    assert 0 < len(torn) < len(first.shards)
    assert names(first) - names(second) == torn
    assert stored_rows(store, second) == expected_rows(converter.content)


def test_deletions_alone_need_no_conversion():
    store, converter, _ = small_set()
    for path in ("a/00", "a/05"):
        del converter.content[path]
    assert stored_rows(store, converter.run(store)) == expected_rows(converter.content)
    assert converter.asked == []


def test_a_file_that_gives_no_row_is_converted_once():
    store, converter, _ = small_set()
    converter.content["bbb/empty"] = 13  # (13 * 7 + 9) % 5 is 0
    assert rows_of("bbb/empty", 13) == []
    second = converter.run(store)
    assert converter.asked == ["bbb/empty"]
    assert converter.run(store).version == second.version
    assert converter.asked == []


@pytest.mark.slow
def test_many_small_shards_are_copied_into_full_ones():
    store, converter = MemoryStore(), Converter({"a/00": 10})
    for number in range(1, 30):
        converter.content[f"a/{number:02}"] = 10
        manifest = converter.run(store, size_limit=4000)
    assert converter.asked == ["a/29"]
    assert len(manifest.shards) <= 12
    assert stored_rows(store, manifest) == expected_rows(converter.content)


def test_another_recipe_converts_everything():
    store, converter, first = small_set()
    second = converter.run(store, recipe="two")
    assert converter.asked == sorted(converter.content)
    assert not names(first) & names(second)
    assert second.row_hash == first.row_hash


def test_a_set_without_a_list_of_its_files_is_converted_whole_and_then_has_one(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"path": "str"}) as writer:
        writer.write({"path": "somebody's"})
    store, converter = open_store(tmp_path), Converter({"a/1": 12})
    assert stored_rows(store, converter.run(store)) == expected_rows(converter.content)
    assert load_manifest(store).version == 2
    assert converter.run(store).version == 2


def test_no_row_at_all_publishes_nothing():
    store, converter, _ = small_set(2)
    converter.content.clear()
    with pytest.raises(SchemaError, match="no file has a row"):
        converter.run(store)
    assert load_manifest(store).version == 1


def test_a_reshard_that_was_overtaken_publishes_nothing():
    store, converter, _ = small_set(3)
    slow = Converter({**converter.content, "a/50": 10})
    prepare = slow.prepare

    def overtaken(spark, paths):
        converter.content["a/60"] = 11
        converter.run(store)
        return prepare(spark, paths)

    slow.prepare = overtaken
    with pytest.raises(CommitConflict):
        slow.run(store)
    assert stored_rows(store, load_manifest(store)) == expected_rows(converter.content)


def test_rows_of_files_that_were_not_asked_for_are_refused():
    store, converter, _ = small_set(3)
    converter.content["a/50"] = 10
    converter.prepare = lambda *_: Frame([rows_of("a/51", 10)])
    with pytest.raises(SchemaError, match="gave rows of 'a/51', which is not one of the requested files"):
        converter.run(store)


def test_a_table_of_sources_that_is_damaged_is_refused():
    store, converter, first = small_set(3)
    key = sources_of(first.sidecars)["key"]
    data = store.get(key)
    converter.content["a/50"] = 10
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IndexFileError, match="damaged or replaced"):
        converter.run(store)
    store.delete(key)
    with pytest.raises(IndexFileError, match="is gone"):
        converter.run(store)


def test_a_table_of_sources_round_trips_and_damage_to_it_is_an_index_error():
    table = SourceTable(
        {"a": "1", "b": "2", "none": "3"}, {"s0": [SampleRun("a", 2), SampleRun("b", 1), SampleRun("a", 4)]}
    )
    data = table.emit()
    found = parse_sources(data, where="here")
    assert (found.fingerprints, found.runs) == (table.fingerprints, table.runs)
    assert found.shards_with({"b"}) == {"s0"}
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        with contextlib.suppress(IndexFileError):
            parse_sources(bytes(damaged), where="here")
    with pytest.raises(IndexFileError, match="no table of source files"):
        parse_sources(data[: len(data) // 2], where="here")
    with pytest.raises(IndexFileError, match="covers other shards"):
        found.check(small_set(3)[2].shards, where="here")


def test_runs_are_split_where_shards_of_any_size_end():
    schema = Schema.from_columns({"path": "str"})
    shards = [ShardInfo(schema, samples, FileInfo(f"s{place}", 100)) for place, samples in enumerate((2, 3, 1))]
    runs = [SampleRun("a", 3), SampleRun("b", 1), SampleRun("b", 1), SampleRun("c", 1)]
    assert split_runs(runs, shards) == {
        "s0": [SampleRun("a", 2)],
        "s1": [SampleRun("a", 1), SampleRun("b", 2)],
        "s2": [SampleRun("c", 1)],
    }
    with pytest.raises(SmaltiError, match="shard s2 holds 1 samples of no file"):
        split_runs(runs[:3], shards)
    with pytest.raises(SmaltiError, match="of c or more are in no shard"):
        split_runs([*runs, SampleRun("c", 2)], shards)


def test_a_set_with_added_columns_is_not_resharded():
    store, converter, _ = small_set(3)
    add_columns(store, {"length": "int"}, lambda batch: {"length": list(map(len, batch["text"]))})
    converter.content["a/50"] = 10
    with pytest.raises(SchemaError, match="its columns 'length' were added beside the shards"):
        converter.run(store)


def test_the_table_of_sources_is_a_live_object():
    store, _, first = small_set(3)
    assert list(live_keys(store, first.sidecars)) == [f"{first.write_id}/sources.arrow"]


def test_a_vacuum_keeps_reused_shards(tmp_path):
    store, converter = open_store(tmp_path), Converter({f"a/{number:02}": 10 for number in range(12)})
    first = converter.run(store)
    converter.content["a/03"] = 14
    second = converter.run(store)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    vacuum(tmp_path, older_than=0.0, unsafe_ttl=True, dry_run=False)
    assert names(first) & names(second)
    assert not any((tmp_path / name).exists() for name in names(first) - names(second))
    converter.content["a/05"] = 11
    assert stored_rows(store, converter.run(store)) == expected_rows(converter.content)
    assert converter.asked == ["a/05"]


def test_a_path_column_that_is_not_stored_is_refused():
    with pytest.raises(SchemaError, match="must hold the path of each row's file in column 'path'"):
        small_set(2, columns={"number": "int32"})
    with pytest.raises(ValueError, match="names 1 paths more than once"):
        reshard_files(None, [SourceFile("a", "1")] * 2, MemoryStore(), prepare=None, recipe=1)


def image_rows(out, manifest):
    store, found = open_store(out), {}
    for info in manifest.shards:
        with open_checked(store, info) as shard:
            batch = shard.batch(np.arange(len(shard)))
            for path, label, image in zip(batch["path"], batch["label"].tolist(), batch["image"], strict=True):
                assert path not in found
                found[path] = (info.partition, label, hashlib.sha256(image).hexdigest())
    return found


@pytest.mark.spark
def test_a_folder_of_images_is_followed_and_has_the_rows_of_a_full_conversion(spark, flowers, tmp_path):
    options = PrepareOptions(size=16, validation_fraction=0.25)
    first = reshard_images(spark, list_images(str(flowers)), tmp_path / "set", options=options, size_limit=3000)
    assert first.rows == 12
    (flowers / "daisy" / "1.jpg").unlink()
    put(flowers / "roses" / "2.jpg", draw_flower("roses", number=77, size=(90, 90)))
    put(flowers / "tulips" / "7.jpg", draw_flower("tulips", number=7, size=(64, 48)))
    second = reshard_images(spark, list_images(str(flowers)), tmp_path / "set", options=options, size_limit=3000)
    assert second.rows == 12
    assert names(first) & names(second)
    full = reshard_images(spark, list_images(str(flowers)), tmp_path / "full", options=options, size_limit=3000)
    assert image_rows(tmp_path / "set", second) == image_rows(tmp_path / "full", full)
    assert second.row_hash == full.row_hash
    assert second.metadata["classes"] == ["daisy", "roses", "tulips"]
    assert (
        reshard_images(spark, list_images(str(flowers)), tmp_path / "set", options=options, size_limit=3000).version
        == 2
    )


def test_a_new_class_changes_the_files_whose_labels_change(flowers):
    before = {file.path: file.fingerprint for file in source_files(list_images(str(flowers)), PrepareOptions())}
    put(flowers / "lilies" / "0.jpg", draw_flower("daisy", number=9, size=(64, 48)))
    after = {file.path: file.fingerprint for file in source_files(list_images(str(flowers)), PrepareOptions())}
    changed = {path for path, mark in after.items() if before.get(path) != mark}
    assert {path.split("/")[0] for path in changed} == {"lilies", "roses", "tulips"}
    assert len(changed) == 9


def test_a_file_that_changes_its_split_counts_as_changed(flowers):
    options = PrepareOptions(validation_fraction=0.5)
    before = {file.path: file.fingerprint for file in source_files(list_images(str(flowers)), options)}
    for number in range(4, 8):
        put(flowers / "daisy" / f"{number}.jpg", draw_flower("daisy", number=number, size=(64, 48)))
    after = {file.path: file.fingerprint for file in source_files(list_images(str(flowers)), options)}
    assert {mark.split()[-1] for mark in after.values()} == {"train", "validation"}
    moved = {path for path, mark in before.items() if after[path] != mark}
    assert all(path.startswith("daisy/") for path in moved)
    assert all(after[path].split()[:-1] == before[path].split()[:-1] for path in moved)


@pytest.mark.spark
def test_any_list_of_files_is_converted_by_any_function(spark, tmp_path):
    for number in range(6):
        put(tmp_path / "in" / f"{number}.txt", b"one\ntwo\n" * (number + 1))

    def files():
        return [
            SourceFile(path.as_uri().replace("file:///", "file:/"), f"{path.stat().st_size}")
            for path in sorted((tmp_path / "in").iterdir())
        ]

    def prepare(session, paths):
        frame = session.read.text(list(paths))
        return frame.selectExpr("value", "concat('file:', input_file_name()) AS odd").selectExpr(
            "value", "regexp_replace(odd, 'file:file:/+', 'file:/') AS path"
        )

    def run():
        return reshard_files(spark, files(), tmp_path / "set", prepare=prepare, recipe=1)

    assert run().rows == 2 * 21
    put(tmp_path / "in" / "3.txt", b"three\n")
    (tmp_path / "in" / "5.txt").unlink()
    assert run().rows == 2 * 21 - 8 + 1 - 12
    assert run().version == 2
