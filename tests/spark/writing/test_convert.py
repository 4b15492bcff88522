"""DataFrames to shard sets on real executors: every value comes back, and no failure leaves half a version."""

import functools
import os
import threading
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

from smalti import convert
from smalti.catalog import history, load_manifest, new_write_id, publish, verify
from smalti.catalog.manifest import Draft
from smalti.errors import BadImageError, CatalogError, DatasetExists, SchemaError, SmaltiError, StoreNotFound
from smalti.format import Schema, Shard, ShardOptions
from smalti.images import encode_jpeg, probe_image
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions, prepare_images
from smalti.spark.prepared.rows import read_prepared
from smalti.spark.prepared.update import update_prepared
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import LocalStore, open_store
from smalti.writer.tables.plan import Attempt, InputRows, OutputColumns, WritePlan, one_answer_each
from smalti.writer.tables.task import write_shards
from tests.faults.jobs_without_spark import collect_shards
from tests.spark.photos import put

pytestmark = pytest.mark.spark


def read(out: Path, split: str | None = None) -> list[dict]:
    """Return every sample, in order, of an uncompressed set."""
    samples = []
    for info in load_manifest(open_store(out)).select(split):
        shard = Shard.open(out / info.raw.basename, info)
        samples += [shard[i] for i in range(len(shard))]
        shard.close()
    return samples


def files(out: Path) -> list[str]:
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*.mds*"))


def assert_nothing_published(out: Path) -> None:
    with pytest.raises(StoreNotFound):
        load_manifest(open_store(out))


# ---------------------------------------------------------------- values


def test_every_type_comes_back_value_for_value(spark, tmp_path):
    schema = (
        "b byte, s short, i int, l long, f float, d double, text string, data binary, price decimal(20,4), "
        "vec array<float>, grid array<array<int>>, meta struct<a:int,b:string>, tags map<string,int>, flag boolean"
    )
    rows = [
        (-128, -32768, -(2**31), -(2**63), 1.5, -0.0, "räksmörgås 🌷\0", b"", Decimal("-0.1000"), [1.0, 2.5],
         [[1, 2], [3, 4]], (1, "x"), {"k": 1}, True),
        (127, 32767, 2**31 - 1, 2**53 + 1, float("inf"), 1e-300, "", b"\0\xff", Decimal("9999999999999999.9999"),
         [3.0], [[5, 6]], (2, "y"), {}, False),
    ]  # fmt: skip
    columns = dict.fromkeys(["b", "s", "i", "l", "f", "d", "text", "data", "price", "vec", "grid"]) | {
        "meta": "json",
        "tags": "json",
        "flag": "uint8",
    }
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    manifest = dataframe_to_mds(frame, tmp_path / "out", columns=columns, compression=None)
    assert manifest.rows == 2
    first, second = sorted(read(tmp_path / "out"), key=lambda sample: sample["b"])
    assert [int(first[name]) for name in "bsil"] == [-128, -32768, -(2**31), -(2**63)]
    assert [int(second[name]) for name in "bsil"] == [127, 32767, 2**31 - 1, 2**53 + 1]
    assert (float(first["f"]), float(second["f"]), float(second["d"])) == (1.5, float("inf"), 1e-300)
    assert np.signbit(first["d"])
    assert (first["text"], first["data"], first["price"]) == ("räksmörgås 🌷\0", b"", Decimal("-0.1000"))
    assert (second["text"], second["data"], second["price"]) == ("", b"\0\xff", Decimal("9999999999999999.9999"))
    assert first["vec"].dtype == np.float32
    assert first["vec"].tolist() == [1.0, 2.5]
    assert first["grid"].tolist() == [[1, 2], [3, 4]]
    assert (first["meta"], first["tags"], int(first["flag"])) == ({"a": 1, "b": "x"}, {"k": 1}, 1)
    assert (second["meta"], second["tags"], int(second["flag"])) == ({"a": 2, "b": "y"}, {}, 0)


def test_rows_keep_their_order_over_tasks_and_shards(spark, tmp_path):
    frame = spark.range(0, 1000, 1, 3).withColumn("data", F.expr("cast(repeat('x', 100) as binary)"))
    manifest = dataframe_to_mds(frame, tmp_path / "out", compression=None, size_limit=4096)
    assert len(manifest.shards) > 20
    assert [int(sample["id"]) for sample in read(tmp_path / "out")] == list(range(1000))


def test_the_same_rows_give_the_same_bytes(spark, tmp_path):
    frame = spark.range(0, 500, 1, 2).withColumn("text", F.col("id").cast("string"))
    contents = []
    for name in ("one", "two"):
        dataframe_to_mds(frame, tmp_path / name, size_limit=1024)
        contents.append([(tmp_path / name / shard.stored.basename).read_bytes()
                         for shard in load_manifest(open_store(tmp_path / name)).shards])  # fmt: skip
    assert contents[0] == contents[1]


def test_convert_without_spark_gives_the_same_shards_and_logical_types(spark, tmp_path):
    """The same files as partitions, every family of types, and a policy for nulls of each kind."""
    values = [
        "cast(id as byte) b", "cast(id as short) s", "cast(id as int) i", "id l", "cast(id as float) f", "id / 7 d",
        "id % 2 = 0 flag", "concat('row ', id) text", "cast(concat('x', id) as binary) data",
        "cast(id / 4 as decimal(12,2)) price", "date_add(date'2026-01-01', cast(id as int)) day",
        "timestamp_micros(id * 1000001) moment", "timestamp_ntz'2026-01-01 00:00:00' local", "array(id, id + 1) vec",
        "array(array(1.5f, cast(id as float))) grid", "named_struct('a', id, 'b', array(concat('t', id))) meta",
        "map(concat('k', id), id) tags", "if(id % 3 = 0, null, id) marked", "if(id % 5 = 0, null, id) filled",
        "if(id % 4 = 0, 'test', 'train') part",
    ]  # fmt: skip
    frames = []
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")  # Spark's default
    for number in range(3):
        frame = spark.range(number * 40, number * 40 + 40).selectExpr(*values).coalesce(1)
        frame.write.parquet(str(tmp_path / "in" / str(number)))
        frames.append(spark.read.parquet(str(tmp_path / "in" / str(number))))
    rows = functools.reduce(lambda one, other: one.union(other), frames)
    options = {
        "nulls": {"marked": "mask", "filled": {"default": -1}},
        "partition_by": "part",
        "size_limit": 4096,
        "hashes": ("sha256", "xxh3_64"),
    }
    by_spark = dataframe_to_mds(rows, tmp_path / "spark", **options)
    without = convert(tmp_path / "in" / "*" / "*.parquet", tmp_path / "without", processes=1, part_bytes=1, **options)
    assert (without.logical, without.schema, without.row_hash) == (by_spark.logical, by_spark.schema, by_spark.row_hash)
    assert len(by_spark.shards) > 4
    for one, other in zip(without.shards, by_spark.shards, strict=True):
        assert one.partition == other.partition
        assert (tmp_path / "without" / one.stored_files[-1].basename).read_bytes() == (
            tmp_path / "spark" / other.stored_files[-1].basename
        ).read_bytes()


@pytest.mark.parametrize(
    ("nulls", "says"),
    [
        ("reject", "column 'x', sample 1: a null cannot be stored"),
        ({"x": {"default": "text"}}, "the default in `nulls` for column 'x' is no "),
        ({"y": "mask"}, "`nulls` names 'y', the columns are x"),
        ({"x": "drop"}, "`nulls` for column 'x' is 'drop'; expected"),
    ],
)
def test_convert_refuses_nulls_and_policies_as_the_spark_path_does(spark, tmp_path, nulls, says):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": pa.array([1, None])}), path)
    for write, source in ((dataframe_to_mds, spark.read.parquet(str(path))), (convert, path)):
        with pytest.raises(SchemaError) as caught:
            write(source, tmp_path / write.__name__, nulls=nulls)
        assert says in caught.value.message
        assert_nothing_published(tmp_path / write.__name__)


def test_what_is_published_verifies_and_no_object_is_left_over(spark, tmp_path):
    out = tmp_path / "out"
    manifest = dataframe_to_mds(spark.range(0, 200, 1, 3), out, hashes=("sha256", "xxh64"), size_limit=512)
    assert verify(open_store(out), deep=True).problems == ()
    assert files(out) == sorted(shard.stored.basename for shard in manifest.shards)
    assert all(name.endswith(".mds.zstd") for name in files(out))


def test_splits_are_folders_of_their_own(spark, tmp_path):
    frame = spark.range(0, 100, 1, 4).withColumn("split", F.expr("if(id % 10 = 0, 'validation', 'train')"))
    manifest = dataframe_to_mds(frame, tmp_path, compression=None, partition_by="split", columns={"id": "int"})
    assert manifest.partitions == ("train", "validation")
    assert [int(sample["id"]) for sample in read(tmp_path, "validation")] == list(range(0, 100, 10))
    assert len(read(tmp_path, "train")) == 90
    assert read(tmp_path, "train")[0].keys() == {"id"}, "the split is not stored when it is not asked for"
    assert all(shard.stored.basename.startswith(f"{shard.partition}/") for shard in manifest.shards)


def test_names_with_dots_spaces_and_backticks_are_stored_like_others(spark, tmp_path):
    frame = spark.createDataFrame([(1, "x")], "`a.b` int, `odd ``name` string")
    dataframe_to_mds(frame, tmp_path, compression=None)
    assert read(tmp_path) == [{"a.b": 1, "odd `name": "x"}]


def test_empty_partitions_leave_no_shards(spark, tmp_path):
    frame = spark.range(3).repartition(20)
    manifest = dataframe_to_mds(frame, tmp_path, compression=None)
    assert manifest.rows == 3
    assert all(shard.samples > 0 for shard in manifest.shards)


# ---------------------------------------------------------------- versions


def test_lineage_and_metadata_are_kept(spark, tmp_path):
    manifest = dataframe_to_mds(spark.range(3), tmp_path, lineage={"source": "x"}, metadata={"classes": ["a", "b"]})
    assert manifest.lineage["source"] == "x"
    assert load_manifest(open_store(tmp_path)).metadata["classes"] == ["a", "b"]


def test_create_append_and_overwrite(spark, tmp_path):
    dataframe_to_mds(spark.range(3), tmp_path, compression=None)
    assert dataframe_to_mds(spark.range(3, 5), tmp_path, compression=None, mode="append").rows == 5
    third = dataframe_to_mds(spark.range(7), tmp_path, compression=None, mode="overwrite")
    assert (third.version, third.rows) == (3, 7)
    assert [info.rows for info in history(open_store(tmp_path))] == [3, 5, 7]


def failing(spark, kind=RuntimeError):
    """Return a frame whose evaluation fails, which proves that no row was read."""

    def fail(batches):
        raise kind("a row was read")
        yield

    return spark.range(10).mapInArrow(fail, "id long")


def test_a_place_that_holds_a_set_is_refused_before_a_row_is_read(spark, tmp_path):
    dataframe_to_mds(spark.range(3), tmp_path)
    with pytest.raises(DatasetExists, match="already holds a data set"):
        dataframe_to_mds(failing(spark), tmp_path)


def test_a_write_id_that_is_published_returns_its_version_without_a_job(spark, tmp_path):
    write_id = new_write_id()
    first = dataframe_to_mds(spark.range(3), tmp_path, write_id=write_id)
    dataframe_to_mds(spark.range(9), tmp_path, mode="append")
    for mode in ("create", "append", "overwrite"):
        again = dataframe_to_mds(failing(spark), tmp_path, write_id=write_id, mode=mode)
        assert (again.version, again.digest, again.rows) == (1, first.digest, 3)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"columns": {"nope": "int"}}, "'nope'"),
        ({"columns": {"id": "str"}}, "cannot be stored as 'str'"),
        ({"partition_by": "nope"}, "`partition_by` names 'nope'"),
        ({"partition_by": "id"}, "must hold text"),
        ({"compression": "rar"}, "rar"),
        ({"hashes": ("crc0",)}, "crc0"),
        ({"size_limit": -1}, "-1|size"),
    ],
)
def test_wrong_options_are_refused_before_a_row_is_read(spark, tmp_path, kwargs, says):
    with pytest.raises((SchemaError, ValueError), match=says):
        dataframe_to_mds(failing(spark), tmp_path, **kwargs)
    assert_nothing_published(tmp_path)


def test_a_type_that_cannot_be_stored_is_refused_before_a_row_is_read(spark, tmp_path):
    frame = failing(spark).withColumn("nothing", F.lit(None))
    with pytest.raises(SchemaError, match="column 'nothing' has type void"):
        dataframe_to_mds(frame, tmp_path)


@pytest.mark.parametrize(
    ("expression", "columns", "says"),
    [
        ("if(id = 150, null, id)", None, "column 'x'.*null"),
        ("if(id = 150, null, cast(id as string))", None, "column 'x'.*null"),
        ("array(1, if(id = 150, null, 2))", None, "column 'x'.*null"),
        ("id + 200", {"x": "uint8"}, "column 'x'.*without loss"),
        ("cast('text, no image' as binary)", {"x": "jpeg"}, "column 'x'"),
        ("cast(unhex('ff00') as string)", None, "column 'x'.*UTF-8"),
        ("array_repeat(1, if(id = 150, 3, 2))", {"x": "ndarray:int32:2"}, "column 'x'.*shape"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named_and_nothing_is_published(spark, tmp_path, expression, columns, says):
    frame = spark.range(0, 200, 1, 2).select(F.expr(expression).alias("x"))
    with pytest.raises(SchemaError, match=says) as caught:
        dataframe_to_mds(frame, tmp_path, columns=columns, size_limit=256)
    assert caught.value.column == "x"
    assert "Traceback" not in str(caught.value)
    assert_nothing_published(tmp_path)


@pytest.mark.parametrize("value", ["a/b", "", "..", "x" * 200, "sp ace"])
def test_a_split_that_cannot_be_a_folder_is_refused(spark, tmp_path, value):
    frame = spark.range(3).withColumn("split", F.lit(value))
    with pytest.raises(SchemaError, match="cannot be the folder of a split"):
        dataframe_to_mds(frame, tmp_path, partition_by="split")


def test_a_null_split_and_too_many_splits_are_refused(spark, tmp_path):
    with pytest.raises(SchemaError, match="belongs to no split"):
        dataframe_to_mds(spark.range(3).withColumn("s", F.lit(None).cast("string")), tmp_path, partition_by="s")
    many = spark.range(0, 65, 1, 1).withColumn("s", F.col("id").cast("string"))
    with pytest.raises(SchemaError, match="more than 64 values"):
        dataframe_to_mds(many, tmp_path, partition_by="s")
    assert files(tmp_path) == []


def test_no_rows_make_no_version(spark, tmp_path):
    with pytest.raises(SchemaError, match="no rows"):
        dataframe_to_mds(spark.range(0), tmp_path)
    assert_nothing_published(tmp_path)


def test_an_error_of_the_users_function_is_named_and_its_traceback_is_kept(spark, tmp_path):
    with pytest.raises(SmaltiError, match="ZeroDivisionError: a row was read") as caught:
        dataframe_to_mds(failing(spark, ZeroDivisionError), tmp_path)
    assert type(caught.value.__cause__).__name__ == "PythonException"
    assert_nothing_published(tmp_path)


def test_a_target_that_cannot_be_written_is_a_typed_error(spark, tmp_path):
    put(tmp_path / "file", b"in the way")
    with pytest.raises(OSError, match="file") as caught:
        dataframe_to_mds(spark.range(3), tmp_path / "file" / "out")
    assert type(caught.value).__module__ == "smalti.errors"


# ---------------------------------------------------------------- death


@pytest.mark.process
def test_an_executor_killed_in_the_middle_of_a_shard_leaves_nothing_in_the_version(spark, tmp_path):
    """The first attempt at partition 1 is killed by SIGKILL after shards were uploaded; Spark tries again."""
    out, mark = tmp_path / "out", tmp_path / "killed"

    def kill_once(batches):
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            if TaskContext.get().partitionId() == 1 and number == 5 and not mark.exists():
                deadline = time.monotonic() + 120
                while len(shards := list(out.rglob("00001-*/*.mds"))) < 4 and time.monotonic() < deadline:
                    time.sleep(0.02)
                mark.write_text(str(len(shards)))
                os.kill(os.getpid(), 9)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = spark.range(0, 2000, 1, 2).withColumn("data", F.expr("cast(repeat('x', 2000) as binary)"))
        frame = frame.mapInArrow(kill_once, frame.schema)
        manifest = dataframe_to_mds(frame, out, compression=None, size_limit=20_000)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1024")
    assert int(mark.read_text()) >= 4, "the first attempt had uploaded shards when it died"
    assert manifest.rows == 2000
    assert [int(sample["id"]) for sample in read(out)] == list(range(2000))
    named = {shard.stored.basename for shard in manifest.shards}
    orphans = set(files(out)) - named
    assert len(orphans) >= int(mark.read_text())
    assert len({name.split("/")[1] for name in named}) == 2, "one attempt per task"
    assert not {name.split("/")[1] for name in orphans} & {name.split("/")[1] for name in named}
    assert verify(open_store(out), deep=True).problems == ()


@pytest.mark.process
def test_a_task_that_always_dies_publishes_nothing(spark, tmp_path):
    def die(batches):
        for batch in batches:
            yield batch
            os.kill(os.getpid(), 9)

    frame = spark.range(0, 4000, 1, 2).mapInArrow(die, "id long")
    with pytest.raises(Exception, match=r"(?i)python worker|crashed|aborted"):
        dataframe_to_mds(frame, tmp_path, size_limit=1024)
    assert_nothing_published(tmp_path)


def plan(store, *, write_id, partition_by=None):
    schema = Schema.from_columns({"id": "int64"})
    rows = InputRows(("id", partition_by) if partition_by else ("id",), partition_by=partition_by)
    return WritePlan(store, write_id, ShardOptions(size_limit=256), rows, OutputColumns(schema))


def batches(start=0):
    return iter([pa.RecordBatch.from_pydict({"id": np.arange(start + n * 10, start + n * 10 + 10)}) for n in range(20)])


def test_two_attempts_of_one_task_that_both_finish_never_share_an_object(tmp_path):
    """With speculation, the version has each row once, whichever answer Spark takes."""
    store = LocalStore(tmp_path)
    write_id = new_write_id()
    answers = {}

    def attempt(name):
        answers[name] = write_shards(plan(store, write_id=write_id), batches(), Attempt(0, name))

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("aaaaaaaa", "bbbbbbbb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    both = [(Attempt(0, name), answer) for name, answer in answers.items()]
    with pytest.raises(Exception, match="two attempts of task 0"):
        one_answer_each(both)
    shards = collect_shards(one_answer_each(both[1:]))
    publish(store, Draft(write_id, Schema.from_columns({"id": "int64"}), shards))
    assert [int(sample["id"]) for sample in read(tmp_path)] == list(range(200))
    assert len(files(tmp_path)) == 2 * len(shards)


def test_a_paused_attempt_that_resumes_after_the_commit_changes_nothing(tmp_path):
    store, write_id = LocalStore(tmp_path), new_write_id()
    gate, paused = threading.Event(), threading.Event()

    def slow():
        for number, batch in enumerate(batches()):
            if number == 10:
                paused.set()
                assert gate.wait(120)
            yield batch

    zombie = threading.Thread(
        target=lambda: write_shards(plan(store, write_id=write_id), slow(), Attempt(0, "dddddddd"))
    )
    zombie.start()
    assert paused.wait(120)
    answer = write_shards(plan(store, write_id=write_id), batches(), Attempt(0, "eeeeeeee"))
    draft = Draft(write_id, Schema.from_columns({"id": "int64"}), collect_shards([(Attempt(0, "eeeeeeee"), answer)]))
    published = publish(store, draft)
    gate.set()
    zombie.join(120)
    assert load_manifest(store).digest == published.digest
    assert [int(sample["id"]) for sample in read(tmp_path)] == list(range(200))
    assert verify(store, deep=True).problems == ()


def test_an_attempt_that_fails_deletes_its_objects(tmp_path):
    def breaks():
        yield from batches()
        raise SchemaError("the source broke", column="id")

    with pytest.raises(SchemaError, match="the source broke"):
        write_shards(plan(LocalStore(tmp_path), write_id=new_write_id()), breaks(), Attempt(0, "aaaaaaaa"))
    assert files(tmp_path) == []


def test_shards_on_another_machines_disk_fail_the_write_before_publishing(tmp_path):
    """A local path on a cluster: every executor writes to its own disk, which the driver does not see."""
    here, there, write_id = LocalStore(tmp_path / "driver"), LocalStore(tmp_path / "executor"), new_write_id()
    answer = write_shards(plan(there, write_id=write_id), batches(), Attempt(0, "aaaaaaaa"))
    draft = Draft(write_id, Schema.from_columns({"id": "int64"}), collect_shards([(Attempt(0, "aaaaaaaa"), answer)]))
    with pytest.raises(CatalogError, match="not in the store"):
        publish(here, draft)


# ---------------------------------------------------------------- images


def test_prepared_images_become_shards_with_their_splits(spark, flowers, tmp_path):
    folder = list_images(str(flowers))
    update_prepared(spark, folder, tmp_path / "p", options=PrepareOptions(size=16, validation_fraction=0.25))
    manifest = dataframe_to_mds(
        read_prepared(spark, tmp_path / "p"),
        tmp_path / "mds",
        columns={"image": "jpeg", "label": "int32", "class_name": "str", "path": "str"},
        partition_by="split",
        compression=None,
    )
    assert {part: sum(s.samples for s in manifest.select(part)) for part in manifest.partitions} == {
        "train": 9,
        "validation": 3,
    }
    samples = read(tmp_path / "mds")
    assert {sample["path"] for sample in samples} == {file.path for file in folder.files}
    assert all(folder.classes[int(sample["label"])] == sample["class_name"] for sample in samples)


def test_the_frame_of_prepare_images_is_written_by_its_policy(spark, flowers, tmp_path):
    put(flowers / "roses" / "broken.jpg", b"\xff\xd8\xff nonsense")
    folder = list_images(str(flowers))
    with pytest.raises(BadImageError, match=r"roses/broken\.jpg is not a usable image"):
        dataframe_to_mds(prepare_images(spark, folder, PrepareOptions(size=16)), tmp_path / "a", compression=None)
    assert_nothing_published(tmp_path / "a")
    skipping = prepare_images(spark, folder, PrepareOptions(size=16, on_bad_image="skip"))
    manifest = dataframe_to_mds(skipping, tmp_path / "b", compression=None)
    assert manifest.rows == 12
    assert manifest.schema.columns()["image"] == "jpeg"
    assert "error" not in manifest.schema.columns()


def test_jpeg_bytes_pass_through_untouched(spark, tmp_path):
    data = encode_jpeg(np.full((20, 30, 3), 77, np.uint8), 80)
    frame = spark.createDataFrame([(bytearray(data),)], "image binary")
    dataframe_to_mds(frame, tmp_path, columns={"image": "jpeg"}, compression=None)
    info = load_manifest(open_store(tmp_path)).shards[0]
    shard = Shard.open(tmp_path / info.raw.basename, info)
    (stored,) = shard.batch(np.array([0]))["image"]
    assert bytes(stored) == data
    assert probe_image(data).width == 30
    shard.close()
