"""`spark.read.format("mds")`: what comes back is what was stored, of the version that was asked for."""

import datetime as dt
import shutil
from decimal import Decimal

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 -- as users of Spark name it

from smalti.catalog import load_manifest, tag
from smalti.dataset import open_dataset
from smalti.errors import ArgumentError, SmaltiError
from smalti.spark import add_columns, dataframe_to_mds
from smalti.spark.mds.source import MDSDataSource
from smalti.writer import delete
from tests.shard_sets import write_set
from tests.spark.types.test_every_type import SQL
from tests.typed_sets import LOGICAL, write_typed_set

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 4.0 or later")
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def load(spark, place, **options):
    """Return the frame of a set."""
    return spark.read.format("mds").options(**options).load(str(place))


def ids_of(frame, column="id"):
    """Return the values of a column, in order."""
    return sorted(row[0] for row in frame.select(column).collect())


def fault_of(action):
    """Return what Spark says when an action fails."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- which of PySpark's errors it is depends on the place
        action()
    return str(caught.value)


def test_every_type_comes_back_as_spark_had_it(spark, tmp_path):
    table = spark.sql(SQL).coalesce(1).sortWithinPartitions("id")
    names = dict.fromkeys(table.columns) | {"unsigned": "uint8"}
    dataframe_to_mds(table, str(tmp_path), nulls={"holes": "mask"}, columns=names)
    frame = load(spark, tmp_path)
    kinds = dict(frame.dtypes)
    # Within JSON whole numbers are of 64 bits, and a struct's fields are in the order of their names.
    info = "struct<at:timestamp,n:bigint,p:decimal(5,2)>"
    changed = {"unsigned": "smallint", "months": "int", "short_text": "string", "info": info}
    assert kinds == dict(table.dtypes) | changed
    assert [field.name for field in frame.schema if field.nullable] == ["holes"]
    # Spark compares moments without a doubt about zones, and NaN with NaN.
    names = ("moment", "info.at", "info.n", "info.p", "single", "double")
    both = frame.alias("a").join(table.alias("b"), "id")
    same = both.select(*(F.expr(f"a.{name} <=> b.{name}").alias(name) for name in names))
    assert [set(row) for row in same.collect()] == [{True}, {True}]
    columns = [name for name in table.columns if name not in ("moment", "info", "single", "double")]
    first, second = frame.select(*(f"`{name.replace('`', '``')}`" for name in columns)).sort("id").collect()
    assert first.asDict() == {
        "id": 0, "tiny": -128, "small": -32768, "big": -(2**63), "unsigned": 250, "flag": True,
        "price": Decimal("-99999999999999999999.999999"), "day": dt.date(1, 1, 1),
        "clock": dt.datetime(2024, 3, 31, 2, 30),  # noqa: DTZ001 -- it has no zone
        "span": dt.timedelta(microseconds=-86_400_000_001), "months": -27,
        "text": "a\0é😋", "short_text": "ab", "blob": b"", "numbers": [], "grid": [[1.5, 2], [3, 0]],
        "flags": [True, True], "days": [dt.date(1969, 12, 31)], "words": ["a", None], "lookup": {0: [b"x"]},
        "holes": None, "odd. `name": 0,
    }  # fmt: skip
    assert (second["numbers"], second["holes"], second["months"], second["lookup"]) == ([1, 2], 1, 5, {1: [b"x"]})


def test_masks_maps_and_arrays_of_a_set_that_spark_did_not_write(spark, tmp_path):
    write_typed_set(tmp_path, 25)
    rows = load(spark, tmp_path).sort("id").collect()
    day = dt.date(1970, 1, 8)
    assert rows[7].asDict() | {"when": None} == {
        "id": 7, "when": None, "day": day, "ok": True, "age": 7, "name": "n7", "box": [7.0, 0.5],
        "price": Decimal("0.07"), "info": {1: day, 2: None}, "marks": [True, False, True],
    }  # fmt: skip
    assert (rows[6]["age"], rows[6]["name"], rows[6]["box"]) == (None, None, None)
    assert len(rows) == 25


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("scalars", []),
        ("arrays", ["any"]),  # arrays of different types
        ("text", ["j", "sd", "si"]),  # JSON and digits are text for Spark; numbers of more than 64 bits
        ("comp_zstd_3", []),
        ("one_per_shard", []),
        ("jsonl", []),
    ],
)
def test_a_set_of_mosaicml_is_read_as_smalti_reads_it(spark, shared, name, left_out):
    def plain(value):
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        return value if isinstance(value, list | str | bytes) else Decimal(str(value))

    place = shared / "golden" / name
    dataset = open_dataset(place)
    names = [column for column in dataset[0] if column not in left_out]
    frame = load(spark, place, columns=",".join([*names, "_sample_id"]))
    rows = sorted(frame.collect(), key=lambda row: row["_sample_id"])
    for row, number in zip(rows, range(dataset.size), strict=True):
        sample = dataset[number]
        assert [plain(row[column]) for column in names] == [plain(sample[column]) for column in names]


def test_values_that_spark_cannot_hold_are_errors_that_name_the_column(spark, shared, tmp_path):
    said = fault_of(load(spark, shared / "golden" / "arrays", columns="any").collect)
    assert "where the first has float16 and 3: a column of lists has one type. Leave it out with `columns`" in said
    said = fault_of(load(spark, shared / "golden" / "text", columns="si").collect)
    assert "column 'si' (str_int): a value does not fit Arrow type int64" in said
    wide = {"type": "decimal", "precision": 50, "scale": 2}
    place = write_typed_set(tmp_path, 9, logical=LOGICAL | {"price": wide})
    said = fault_of(lambda: load(spark, place))
    assert "column 'price' (str_decimal) has type decimal256(50, 2), for which Spark has none: leave it out" in said


def test_the_version_the_split_and_the_columns_are_those_asked_for(spark, tmp_path):
    rows = spark.range(30).selectExpr("id", "concat('t', id) text", "if(id < 20, 'train', 'val') split")
    options = {"partition_by": "split", "columns": {"id": None, "text": None}}
    dataframe_to_mds(rows, str(tmp_path), **options)
    dataframe_to_mds(rows.where("id < 5"), str(tmp_path), mode="append", **options)
    tag(tmp_path, "first", version=1)
    assert load(spark, tmp_path).count() == 35
    assert load(spark, tmp_path, version="1").count() == load(spark, tmp_path, version="first").count() == 30
    val = load(spark, tmp_path, split="val", version="1", columns="text,_sample_id")
    assert val.columns == ["text", "_sample_id"]
    whole = {row["_sample_id"]: row["text"] for row in load(spark, tmp_path, version="1", sample_ids="true").collect()}
    assert sorted(whole) == list(range(30))
    # The number of a sample is that in the version, whichever split is read.
    assert {row["text"]: whole[row["_sample_id"]] for row in val.collect()} == {f"t{n}": f"t{n}" for n in range(20, 30)}
    assert load(spark, tmp_path, split="train", columns="_sample_id").count() == 25
    chosen = spark.read.format("mds").schema("text string").load(str(tmp_path))
    assert chosen.columns == ["text"]
    assert chosen.distinct().count() == 30


def test_an_action_reads_the_version_of_which_the_schema_is(spark, tmp_path):
    dataframe_to_mds(spark.range(3), str(tmp_path))
    frame = load(spark, tmp_path)
    dataframe_to_mds(spark.range(3, 5), str(tmp_path), mode="append")
    assert ids_of(frame) == ids_of(frame.where("id >= 0")) == [0, 1, 2]
    assert ids_of(load(spark, tmp_path)) == [0, 1, 2, 3, 4]


def test_a_set_without_versions_that_was_replaced_is_not_read_by_an_older_frame(spark, shared, tmp_path):
    shutil.copytree(shared / "golden" / "one_per_shard", tmp_path / "set")
    frame = load(spark, tmp_path / "set")
    shutil.rmtree(tmp_path / "set")
    shutil.copytree(shared / "golden" / "text", tmp_path / "set")
    assert "is not what it was when the DataFrame was made" in fault_of(frame.count)


def test_deleted_samples_are_gone_and_added_columns_are_there(spark, tmp_path):
    dataframe_to_mds(spark.range(20).selectExpr("id", "concat('t', id) text").coalesce(1), str(tmp_path))
    delete(str(tmp_path), [("id", "in", [3, 4])])
    frame = load(spark, tmp_path, sample_ids="true")
    scores = frame.selectExpr("_sample_id sample_id", "id * 0.5D score")
    add_columns(str(tmp_path), {"score": None}, scores, spark=spark)
    left = [n for n in range(20) if n not in (3, 4)]
    rows = load(spark, tmp_path).sort("id").collect()
    assert [row.asDict() for row in rows] == [{"id": n, "text": f"t{n}", "score": n * 0.5} for n in left]
    assert ids_of(load(spark, tmp_path, columns="score"), "score") == [n * 0.5 for n in left]
    picked = ids_of(load(spark, tmp_path, columns="_sample_id", where="score>8.2"), "_sample_id")
    assert picked == [15, 16, 17]
    delete(str(tmp_path), ids=picked)
    assert ids_of(load(spark, tmp_path)) == left[:-3]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """A set of 30 typed samples; of multiples of 3, `age`, `name` and `box` are null."""
    return write_typed_set(tmp_path_factory.mktemp("typed"), 30)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("age>20", [22, 23, 25, 26, 28, 29]),
        ('["age>20", "ok=true"]', [23, 25, 29]),
        ("name=n7", [7]),
        ("price<=0.02", [0, 1, 2]),
        ("day>=1970-01-29", [28, 29]),
        ("when<1970-01-01T00:00:02Z", [0, 1]),
        ("id!=0", list(range(1, 30))),
    ],
)
def test_where_chooses_rows_before_other_columns_are_read(spark, typed, where, expected):
    frame = load(spark, typed, where=where, columns="box,_sample_id,id")
    rows = frame.sort("id").collect()
    assert frame.columns == ["box", "_sample_id", "id"]
    boxes = [None if n % 3 == 0 else [n, 0.5] for n in expected]
    assert [(row["box"], row["_sample_id"], row["id"]) for row in rows] == list(
        zip(boxes, expected, expected, strict=True)
    )


def test_frames_of_one_load_with_different_filters_do_not_mix(spark, typed):
    """Spark up to 4.3 gives all of them the filters that were pushed last, so that none are taken."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = load(spark, typed)
    first, last = frame.where("id < 2"), frame.where("id > 28")
    assert (first.count(), last.count(), frame.count()) == (2, 1, 30)
    assert ids_of(first.union(last)) == [0, 1, 29]


def test_a_column_with_the_name_of_the_sample_numbers_is_a_column(spark, tmp_path):
    dataframe_to_mds(spark.createDataFrame([("a", 7), ("b", 8)], "_sample_id string, id int"), str(tmp_path))
    assert ids_of(load(spark, tmp_path), "_sample_id") == ["a", "b"]
    assert ids_of(load(spark, tmp_path, columns="_sample_id"), "_sample_id") == ["a", "b"]
    said = fault_of(lambda: load(spark, tmp_path, sample_ids="true"))
    assert "has a column '_sample_id' of its own: leave `sample_ids` out" in said


def test_a_damaged_shard_is_an_error_that_names_it(spark, tmp_path):
    dataframe_to_mds(spark.range(100).coalesce(1), str(tmp_path), compression=None)
    (shard,) = tmp_path.rglob("*.mds")
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    said = fault_of(load(spark, tmp_path).collect)
    assert "ChecksumMismatch" in said
    assert shard.name in said
    assert load(spark, tmp_path, columns="_sample_id").count() == 100  # of which no shard is read


def test_a_frame_that_was_loaded_is_planned_without_reading_a_shard(spark, tmp_path):
    dataframe_to_mds(spark.sql("select id, array(id, 1) pair from range(9)").coalesce(1), str(tmp_path))
    frame = load(spark, tmp_path)  # the axes of `pair` are known from its first value only
    (shard,) = [path for path in tmp_path.rglob("*") if ".mds" in path.name]
    shard.rename(tmp_path / "elsewhere")
    assert frame.rdd.getNumPartitions() == 1
    assert shard.name in fault_of(frame.collect)


def test_a_partition_has_whole_shards_up_to_its_size_and_parts_of_larger_ones(spark, tmp_path):
    write_set(tmp_path, 60)
    sizes = [shard.raw.num_bytes for shard in load_manifest(tmp_path).shards]
    assert len(sizes) > 4
    whole = load(spark, tmp_path, partition_size=str(2 * max(sizes)))
    assert whole.rdd.getNumPartitions() == -(-len(sizes) // 2)
    parts = load(spark, tmp_path, partition_size=str(max(sizes) // 3), sample_ids="true")
    assert parts.rdd.getNumPartitions() > 2 * len(sizes)
    assert [(row["_sample_id"], row["id"]) for row in parts.sort("id").collect()] == [(n, n) for n in range(60)]
    assert load(spark, tmp_path).rdd.getNumPartitions() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "zstd"}, "no option `compression` here: it is an option of writing"),
        ({"tag": "best"}, "no option `tag` here: give the tag as `version`"),
        ({"colums": "id"}, "did you mean `columns`?"),
        ({"sample_ids": "yes"}, "option `sample_ids`: expected true or false, found 'yes'"),
        ({"partition_size": "much"}, "`partition_size`: 'much' is not a byte count"),
        ({"version": "7"}, "has no version 7"),
        ({"split": "train"}, "has no splits"),
        ({"columns": "text,nothing"}, "`columns` names 'nothing'"),
        ({"where": "nothing=1"}, "there is no column 'nothing'"),
        ({"where": "id=many"}, "column 'id' holds int64, and 'many' is no value of it"),
        ({"where": "vector=1"}, "column 'vector' holds "),
        ({"where": "id"}, "expected COLUMN=VALUE"),
        ({"columns": ""}, "`columns` names no column; to count the samples, read `_sample_id` alone"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(tmp_path, options, said):
    write_set(tmp_path, 3)
    with pytest.raises(SmaltiError) as caught:
        MDSDataSource({"path": str(tmp_path), **options}).schema()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            "id int",
            "column 'id' has type bigint, and the schema that was given says int: load it as it is, and cast it",
        ),
        ("nothing int", "`columns` names 'nothing'"),
        ("text string, vector array<double>", "column 'vector' has type array<float>"),
    ],
)
def test_a_schema_that_the_set_does_not_have_is_refused(spark, tmp_path, schema, said):
    write_set(tmp_path, 3)
    assert said in fault_of(spark.read.format("mds").schema(schema).load(str(tmp_path)).collect)


def test_a_stream_of_a_set_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ArgumentError, match=r"not read as one: .* reads the newest version"):
        MDSDataSource({"path": str(tmp_path)}).streamReader(None)
