"""The advice of messages about writing, conversion, export and versions, applied."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

import smalti
from smalti import (
    MDSWriter,
)
from smalti.writer import PurgeOptions
from smalti.writer.tables.transform import Transform
from tests.rules.followed_advice import Cases, check_followed, command, convert, plain_set, put, rows
from tests.shard_sets import COLUMNS, sample

CASES = Cases()
case = CASES.add


# ------------------------------------------------------------------ writer, conversion and export


@case("writer", 'use mode="append" to add to it or mode="overwrite"')
def a_set_that_is_there(at):
    put(at / "set")
    yield lambda: put(at / "set")
    yield lambda: put(at / "set", mode="append")
    yield lambda: put(at / "set", mode="overwrite")


@case("writer", "leave `exist_ok` out")
def a_mode_beside_exist_ok(at):
    put(at / "set")
    yield lambda: put(at / "set", mode="append", exist_ok=True)
    yield lambda: put(at / "set", mode="append")


@case("writer", "Append to the remote set alone")
def a_local_copy_of_what_is_appended(at):
    put(at / "set")
    options = {"columns": COLUMNS, "mode": "append"}
    yield lambda: MDSWriter(out=(str(at / "local"), str(at / "set")), keep_local=True, **options)
    yield lambda: MDSWriter(out=str(at / "set"), **options).finish()


@case("writer", "ask for less")
def shards_that_are_too_large(at):
    yield lambda: put(at / "set", size_limit="5gb")
    yield lambda: put(at / "set", size_limit="1gb")


@case("writer", "name each once")
def a_hash_twice(at):
    yield lambda: put(at / "set", hashes=["sha1", "sha1"])
    yield lambda: put(at / "set", hashes=["sha1"])


@case("writer", "Write the column as json or ndarray")
def a_column_to_pickle(at):
    def written(encoding, **options):
        with MDSWriter(out=str(at / encoding), columns={"a": encoding}, **options) as writer:
            writer.write({"a": [1] if encoding != "ndarray" else np.array([1])})

    yield lambda: written("pkl")
    yield lambda: written("json")
    yield lambda: written("ndarray")


@case("writer", "write the columns of the set, or give mode='overwrite'")
def other_columns(at):
    def written(columns, mode):
        with MDSWriter(out=str(at / "set"), columns=columns, mode=mode) as writer:
            writer.write({name: sample(1).get(name, 1) for name in columns})

    put(at / "set")
    yield lambda: written({"id": "int", "size": "int"}, "append")
    yield lambda: written(COLUMNS, "append")
    yield lambda: written({"id": "int", "size": "int"}, "overwrite")


@case("writer", 'nulls={\'id\': "mask"}` or `{"default": ...}')
def a_null(at):
    source = rows(at)
    yield lambda: convert(source, str(at / "one"))
    yield lambda: convert(source, str(at / "two"), nulls={"id": "mask"})
    yield lambda: convert(source, str(at / "three"), nulls={"id": {"default": 0}})


@case("writer", "must hold text, found int64: cast it first")
def a_split_of_numbers(at):
    source = rows(at, pa.table({"id": [1, 2], "part": [0, 1]}))

    def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": batch["id"], "part": batch["part"].cast(pa.string())})

    yield lambda: convert(source, str(at / "one"), partition_by="part")
    yield lambda: convert(source, str(at / "two"), partition_by="part", transform=cast)


@case("writer", "Say the form in words: Transform(function, 'pandas')")
def a_transform_annotated_by_another_type(at):
    source = rows(at, pa.table({"id": [1, 2]}))

    def unchanged(batch: dict) -> dict:
        return batch

    yield lambda: convert(source, str(at / "one"), transform=unchanged)
    yield lambda: convert(source, str(at / "two"), transform=Transform(unchanged, "pandas"))


@case("writer", "did you mean 'str'?")
def an_encoding_that_is_unknown(at):
    yield lambda: MDSWriter(out=str(at / "set"), columns={"a": "text"})
    yield lambda: MDSWriter(out=str(at / "set"), columns={"a": "str"})


@case("writer", "tar files of WebDataset are not compressed")
def compressed_tar_files(at):
    place = put(at / "set")
    yield lambda: smalti.export(place, str(at / "out"), format="webdataset", columns=["id"], compression="zstd")
    yield lambda: smalti.export(place, str(at / "tar"), format="webdataset", columns=["id"])
    yield lambda: smalti.export(place, str(at / "parquet"), format="parquet", columns=["id"], compression="zstd")


@case("writer", "a Parquet file has the columns' own names")
def endings_in_a_parquet_file(at):
    place = put(at / "set")
    names = {"id": "cls"}
    yield lambda: smalti.export(place, str(at / "out"), format="parquet", columns=["id"], names=names)
    yield lambda: smalti.export(place, str(at / "parquet"), format="parquet", columns=["id"])
    yield lambda: smalti.export(place, str(at / "tar"), format="webdataset", columns=["id"], names=names)


@case("writer", "change the numbers with a `transform`, and give the `columns` of the set, and metadata=")
def other_classes(at):
    def shifted(batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index("label")
        return batch.set_column(place, "label", pc.add(batch["label"], pa.scalar(1, batch["label"].type)))

    for name in ("one/a", "two/b"):
        (at / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(at / name / "1.png")
    target = str(at / "set")
    convert(str(at / "one"), target)
    columns = {each.name: each.encoding for each in smalti.info(target).columns}
    options = {"columns": columns, "transform": shifted, "metadata": {"classes": ["a", "b"]}}
    yield lambda: convert(str(at / "two"), target, mode="append")
    yield lambda: convert(str(at / "two"), target, mode="append", **options)
    yield lambda: convert(str(at / "two"), target, mode="overwrite")


@case("writer", "name one: format=")
def a_folder_of_two_formats(at):
    (at / "mixed").mkdir()
    pq.write_table(pa.table({"id": [1]}), at / "mixed" / "a.parquet")
    (at / "mixed" / "b.jsonl").write_text('{"id": 2}\n')
    yield lambda: convert(str(at / "mixed"), str(at / "one"))
    yield lambda: convert(str(at / "mixed" / "*.parquet"), str(at / "two"))
    yield lambda: convert(str(at / "mixed"), str(at / "three"), format="jsonl")


# ------------------------------------------------------------------ versions


@case("versions", "say `move` to give it to version 2")
def a_tag_of_another_version(at):
    place = put(at / "set")
    put(at / "set", mode="append")
    smalti.tag(place, "best", 1)
    yield lambda: smalti.tag(place, "best", 2)
    yield lambda: smalti.tag(place, "best", 2, move=True)


@case("versions", "Say `unsafe_ttl` if no")
def a_short_vacuum(at):
    place = put(at / "set")
    yield lambda: smalti.vacuum(place, older_than="1h")
    yield lambda: smalti.vacuum(place, older_than="1h", unsafe_ttl=True)


@case("versions", "Take them out with `drop_columns`, append, and add them again")
def an_append_beside_added_columns(at):
    place = put(at / "set", 10)

    def half(batch):
        return {"half": np.asarray(batch["id"]) / 2}

    def add():
        smalti.add_columns(place, {"half": "float64"}, half)

    add()
    yield lambda: put(at / "set", mode="append")
    yield lambda: smalti.drop_columns(place, ["half"])
    yield lambda: put(at / "set", mode="append")
    yield add


@case("versions", "give the common root as `out`")
def shards_beside_the_root(at):
    put(at / "all" / "a")
    put(at / "all" / "b")
    (at / "empty").mkdir()
    files = [str(at / "all" / name / "index.json") for name in "ab"]
    yield lambda: smalti.merge_index(index_file_urls=files, out=str(at / "empty"))
    yield lambda: smalti.merge_index(index_file_urls=files, out=str(at / "all"))


@case("versions", "give either `where` or `ids`")
def a_deletion_of_nothing(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place)
    yield lambda: smalti.delete(place, [("id", "==", 3)])
    yield lambda: smalti.delete(place, ids=[4], column="id")


@case("versions", "expected a list of comparisons such as")
def a_condition_as_text(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place, "id == 3")
    yield lambda: smalti.delete(place, [("id", "==", 3)])


@case("versions", "Say `allow_empty` for a version without samples")
def a_deletion_of_everything(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place, [("id", ">=", 0)])
    yield lambda: smalti.delete(place, [("id", ">=", 0)], allow_empty=True)


@case("versions", "convert it to a versioned set at another place (`smalti convert`), delete there")
def a_deletion_in_a_plain_set(at):
    place = plain_set(at)
    yield lambda: smalti.delete(place, [("id", "==", 3)])
    yield lambda: command("convert", place, at / "new")
    yield lambda: smalti.delete(str(at / "new"), [("id", "==", 3)])


@case("versions", "`column` belongs to `ids`")
def a_column_beside_comparisons(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place, [("id", "==", 3)], column="id")
    yield lambda: smalti.delete(place, [("id", "==", 3)])


@case("versions", "say `restore_erased` of `copy_version`")
def a_copy_of_deleted_samples(at):
    source, target = put(at / "set"), str(at / "copy")
    smalti.copy_version(source, target)
    smalti.delete(target, [("id", "==", 3)])
    put(at / "set", mode="append")
    yield lambda: smalti.copy_version(source, target, mode="overwrite")
    yield lambda: smalti.copy_version(source, target, mode="overwrite", restore_erased=True)


@case("versions", "publish a copy after it with `copy_version` and mode='overwrite'")
def a_mirror_with_versions_of_its_own(at):
    source, target = put(at / "set"), put(at / "other")
    yield lambda: smalti.sync(source, target)
    yield lambda: smalti.sync(source, str(at / "mirror"))
    yield lambda: smalti.copy_version(source, target, mode="overwrite")


@case("versions", 'samples); use mode="overwrite" to replace it by a new version')
def a_copy_to_another_set(at):
    place, other = put(at / "set"), put(at / "other", 5)
    yield lambda: smalti.copy_version(place, other)
    yield lambda: smalti.copy_version(place, other, mode="overwrite")


@case("versions", "expected refuse, remove or move")
def a_purge_with_another_word(at):
    yield lambda: PurgeOptions(tags="keep")
    yield lambda: PurgeOptions(tags="remove")


@pytest.mark.parametrize(("advice", "steps"), CASES)
def test_advice_that_is_followed_helps(tmp_path, monkeypatch, advice, steps):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    check_followed(tmp_path, advice, steps)
