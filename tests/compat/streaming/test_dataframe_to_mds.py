"""`dataframe_to_mds` and its helpers by MosaicML's names; `test_peer_call` tests that the shards are MosaicML's."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import types as T  # noqa: N812  as everybody writes it

from smalti.catalog import load_manifest, merge_index
from smalti.catalog.verify import open_checked
from smalti.compat.streaming.base.converters import (
    SPARK_TO_MDS,
    dataframe_to_mds,
    infer_dataframe_schema,
    is_json_compatible,
)
from smalti.errors import SchemaError
from smalti.storage import open_store


@dataclass
class Frame:
    """The part of a DataFrame that the checks read."""

    schema: T.StructType

    @property
    def columns(self):
        return self.schema.names


def frame_of(**kinds):
    return Frame(T.StructType([T.StructField(name, kind) for name, kind in kinds.items()]))


def read(out):
    store, samples = open_store(out), []
    for info in load_manifest(store).shards:
        with open_checked(store, info) as shard:
            samples += [shard[i] for i in range(len(shard))]
    return samples


PAIR = T.StructType([T.StructField("n", T.IntegerType()), T.StructField("text", T.StringType())])


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        (T.ByteType(), "uint8"),
        (T.ShortType(), "uint16"),
        (T.LongType(), "int64"),
        (T.DecimalType(20, 4), "str_decimal"),
        (T.ArrayType(T.ShortType()), "ndarray:int16"),
        (T.ArrayType(T.FloatType(), containsNull=False), "ndarray:float32"),
    ],
)
def test_a_type_has_mosaicmls_encoding(kind, encoding):
    assert infer_dataframe_schema(frame_of(x=kind)) == {"x": encoding}


@pytest.mark.parametrize("kind", [T.BooleanType(), T.TimestampType(), T.DateType(), PAIR, T.ArrayType(T.StringType())])
def test_a_type_without_an_encoding_is_a_value_error(kind):
    with pytest.raises(ValueError, match="is not supported by dataframe_to_mds"):
        infer_dataframe_schema(frame_of(x=kind))


ARGUMENTS = {
    "ArrayType": (T.IntegerType(),),
    "MapType": (T.StringType(), T.IntegerType()),
    "CharType": (3,),
    "VarcharType": (3,),
    "GeographyType": (4326,),
    "GeometryType": (0,),
}


def all_types():
    """Return one of each type that Spark has."""
    kinds = [value for value in vars(T).values() if isinstance(value, type) and issubclass(value, T.AtomicType)]
    kinds += [T.ArrayType, T.MapType, T.StructType, T.NullType, *filter(None, [getattr(T, "VariantType", None)])]
    bases = {kind for kind in kinds if any(kind in other.__bases__ for other in kinds)} - {T.StringType}
    return [kind(*ARGUMENTS.get(kind.__name__, ())) for kind in dict.fromkeys(kinds) if kind not in bases]


def encoding_or_error(kind):
    try:
        return infer_dataframe_schema(frame_of(x=kind))["x"]
    except SchemaError as error:
        return str(error)


@pytest.mark.parametrize("kind", all_types(), ids=str)
def test_each_type_of_spark_has_an_encoding_or_an_error_that_says_what_to_do(kind):
    found = encoding_or_error(kind)
    assert found in SPARK_TO_MDS.values() or "cast the column, leave it out, or name its encoding" in found


def test_the_table_of_types_is_mosaicmls():
    assert len(SPARK_TO_MDS) == 19
    assert {str(kind) for kind, encoding in SPARK_TO_MDS.items() if encoding is None} == {
        "BooleanType()", "TimestampType()", "TimestampNTZType()", "DateType()", "DayTimeIntervalType(0, 3)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        (T.IntegerType(), "int32"),
        (T.BinaryType(), "jpeg"),
        (T.BinaryType(), "pil"),
        (PAIR, "json"),
        (T.ArrayType(T.IntegerType()), "ndarray:int32:2,3"),
    ],
)
def test_an_encoding_that_fits_is_accepted(kind, encoding):
    assert infer_dataframe_schema(frame_of(x=kind), {"x": encoding}) is None


@pytest.mark.parametrize(
    ("kind", "columns", "says"),
    [
        (T.LongType(), {"x": "int32"}, "Mismatched types: column name `x` is `int64` in DataFrame but `int32`"),
        (T.LongType(), {"x": "int"}, "int is not supported"),
        (T.LongType(), {"x": "json"}, "can not be encoded by MDS JSON"),
        (T.StringType(), {"x": "png"}, "Non-binary col x cannot encode as png: found string"),
        (T.BooleanType(), {"x": "uint8"}, r"BooleanType\(\) is not supported"),
        (T.LongType(), {"y": "int64"}, r"y is not a column of input dataframe: \['x'\]"),
    ],
)
def test_an_encoding_that_does_not_fit_is_a_value_error(kind, columns, says):
    with pytest.raises(ValueError, match=says):
        infer_dataframe_schema(frame_of(x=kind), columns)


@pytest.mark.parametrize(
    ("kind", "is_compatible"),
    [
        (T.StringType(), True),
        (T.NullType(), True),
        (T.LongType(), False),
        (T.DoubleType(), False),
        (PAIR, True),
        (T.ArrayType(PAIR), True),
        (T.MapType(T.StringType(), T.ArrayType(T.BinaryType())), False),
        (T.MapType(T.LongType(), T.StringType()), False),
    ],
)
def test_json_holds_texts_32_bit_numbers_and_nests_of_them(kind, is_compatible):
    assert is_json_compatible(kind) is is_compatible


@pytest.mark.parametrize(
    ("frame", "kwargs", "says"),
    [
        (None, {"mds_kwargs": {"out": "x"}}, "^Input dataframe is None or Empty!"),
        (frame_of(x=T.LongType()), {}, "`out` and `columns` need to be specified in `mds_kwargs`"),
        (frame_of(x=T.LongType()), {"mds_kwargs": {"columns": {}}}, "`out` and `columns` need to be specified"),
        (
            frame_of(x=T.LongType()),
            {"mds_kwargs": {"out": "x"}, "udf_iterable": list},
            "must provide correct `columns`",
        ),
        (frame_of(x=T.LongType()), {"mds_kwargs": {"out": ("a", "b", "c")}}, "expected a path"),
        (frame_of(x=T.LongType()), {"mds_kwargs": {"out": ("a", "b", "c")}}, "^Invalid `out` argument"),
        (frame_of(x=T.LongType()), {"mds_kwargs": {"out": "s3c://x"}}, "^Invalid Cloud provider prefix: s3c\\. "),
        (
            frame_of(x=T.LongType()),
            {"mds_kwargs": {"out": ("a", "s3c://x")}},
            "^Invalid Cloud provider prefix: s3c\\. ",
        ),
        (frame_of(x=T.LongType()), {"mds_kwargs": {"out": "x", "region": 1}}, "region"),
    ],
)
def test_a_call_that_cannot_be_done_is_refused_before_spark_begins(tmp_path, monkeypatch, frame, kwargs, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=says):
        dataframe_to_mds(frame, **kwargs)
    assert list(tmp_path.iterdir()) == []


def test_columns_that_nobody_checked_are_a_warning_and_the_callers_arguments_stay(tmp_path, caplog):
    (tmp_path / "notes.txt").write_text("mine")
    kwargs = {"out": str(tmp_path)}
    with pytest.raises(FileExistsError):
        dataframe_to_mds(frame_of(x=T.LongType()), mds_kwargs=kwargs)
    assert [record.message for record in caplog.records] == [
        "User's discretion required: columns arg is missing from mds_kwargs. Will be auto-inferred",
        "Auto inferred schema: {'x': 'int64'}",
    ]
    assert kwargs == {"out": str(tmp_path)}
    caplog.clear()
    with pytest.raises(FileExistsError):
        dataframe_to_mds(frame_of(), mds_kwargs={**kwargs, "columns": {"y": "int"}}, udf_iterable=list)
    assert caplog.text.count("With udf_iterable defined, it's up to the user's discretion") == 1


def test_a_local_folder_with_files_is_refused_as_mosaicml_refuses_it(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    frame = frame_of(x=T.LongType())
    for out in (str(tmp_path), (str(tmp_path), "s3://bucket/set")):
        with pytest.raises(FileExistsError, match="Directory is not empty"):
            dataframe_to_mds(frame, mds_kwargs={"out": out})


@pytest.mark.spark
def test_partitions_end_shards_and_keep_their_order(spark, tmp_path):
    def twice(frame, *, word):
        for number in frame["id"]:
            yield {"id": int(number), "share": number / 3, "word": word, "left out": object()}
            yield {"id": -int(number), "share": 0.1, "word": word}

    out = tmp_path / "out"
    kwargs = {"out": str(out), "columns": {"id": "int", "share": "float32", "word": "str"}, "hashes": ["sha1"]}
    before = json.dumps(kwargs)
    answer = dataframe_to_mds(
        spark.range(0, 6, 1, 3), merge_index=True, mds_kwargs=kwargs, udf_iterable=twice, udf_kwargs={"word": "so"}
    )
    assert answer == (str(out), "")
    assert json.dumps(kwargs) == before
    samples = read(out)
    assert [sample["id"] for sample in samples] == [0, 0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5]
    assert {sample["word"] for sample in samples} == {"so"}
    shards = json.loads((out / "index.json").read_bytes())["shards"]
    assert [(info["samples"], info["compression"], info["hashes"]) for info in shards] == [(4, "zstd", ["sha1"])] * 3
    assert {name for info in load_manifest(open_store(out)).shards for name in info.raw.hashes} == {"sha1"}


@pytest.mark.spark
def test_without_merging_each_partition_is_a_set_and_they_can_be_merged_later(spark, tmp_path):
    out = tmp_path / "out"
    dataframe_to_mds(spark.range(0, 6, 1, 2), merge_index=False, mds_kwargs={"out": str(out), "compression": None})
    assert not (out / "index.json").exists()
    indexes = [json.loads(file.read_bytes()) for file in sorted(out.glob("*/index.json"))]
    found = [
        [(info["samples"], info["hashes"], info["raw_data"]["hashes"]) for info in index["shards"]] for index in indexes
    ]
    assert found == [[(3, [], {})], [(3, [], {})]]
    merge_index(str(out))
    assert [int(sample["id"]) for sample in read(out)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.spark
def test_a_remote_set_is_replaced_by_a_version_and_copied_with_keep_local(spark, tmp_path):
    remote = f"file://{tmp_path}/remote"
    first = dataframe_to_mds(spark.range(3), mds_kwargs={"out": remote})
    assert first[1] == remote
    assert not Path(first[0]).exists(), "a temporary path, of which nothing is kept"
    again = dataframe_to_mds(spark.range(2), mds_kwargs={"out": (str(tmp_path / "l"), remote), "keep_local": True})
    assert again == (str(tmp_path / "l"), remote)
    assert [load_manifest(open_store(remote), version=number).rows for number in (1, 2)] == [3, 2]
    assert sum(info["samples"] for info in json.loads((tmp_path / "l" / "index.json").read_bytes())["shards"]) == 2


@pytest.mark.spark
def test_a_function_that_fails_leaves_a_folder_that_can_be_written_again(spark, tmp_path):
    def fails(frame):
        yield {"id": 1}
        raise KeyError("label")

    out = tmp_path / "out"
    kwargs = {"out": str(out), "columns": {"id": "int"}, "compression": None}
    with pytest.raises(Exception, match="label"):
        dataframe_to_mds(spark.range(0, 4, 1, 1), mds_kwargs=kwargs, udf_iterable=fails)
    assert not (out / "index.json").exists()
    dataframe_to_mds(spark.range(0, 4, 1, 1), mds_kwargs=kwargs, udf_iterable=lambda frame: [{"id": len(frame)}])
    assert [sample["id"] for sample in read(out)] == [4]
    (entry,) = json.loads((out / "index.json").read_bytes())["shards"]
    assert (entry["hashes"], entry["raw_data"]["hashes"]) == ([], {})
    assert list(load_manifest(open_store(out)).shards[0].raw.hashes) == ["xxh3_64"]


@pytest.mark.spark
def test_no_rows_are_a_value_error_and_leave_no_set(spark, tmp_path):
    with pytest.raises(ValueError, match=r"^Input dataframe is None or Empty! It has no rows") as caught:
        dataframe_to_mds(spark.range(0), mds_kwargs={"out": str(tmp_path / "out")})
    assert isinstance(caught.value, SchemaError)
    assert not (tmp_path / "out" / "index.json").exists()
