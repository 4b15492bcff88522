"""The DataFrames that are written: of any kind, with any names, and those that are refused with what to do."""

import os
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

from smalti.catalog import load_manifest
from smalti.catalog.manifest import INDEX
from smalti.errors import SchemaError, SmaltiError, StoreAuthError
from smalti.format import Shard
from smalti.spark import add_columns
from smalti.spark.profile import profile_rows
from smalti.spark.rows import identities_in, identity_of, in_partitions, transformed, with_split
from smalti.spark.tasks import decode_errors, has_remote_executors, require_reach
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import LocalStore, open_store
from smalti.writer import MDSWriter
from smalti.writer.tables.transform import Transform

pytestmark = pytest.mark.spark


def read(out):
    samples = []
    for info in load_manifest(open_store(out)).shards:
        shard = Shard.open(out / info.raw.basename, info)
        samples += [shard[i] for i in range(len(shard))]
        shard.close()
    return samples


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: pd.DataFrame({"x": [1]}),
            r"pandas\..*DataFrame: give spark.createDataFrame\(frame\); without Spark, ",
        ),
        (lambda: pa.table({"x": [1]}), r"pyarrow.lib.Table: give .*to_pandas\(\)\); .*`write_batch\(frame\)`"),
        (lambda: [{"x": 1}], r"builtins.list: give spark.createDataFrame\(rows\)(?:\n|$)"),
        (lambda: None, "none was given"),
    ],
)
def test_rows_that_are_no_spark_frame_are_refused_with_the_call_that_makes_one(spark, tmp_path, make, says):
    with pytest.raises(TypeError, match=says):
        dataframe_to_mds(make(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_advised_calls_for_a_pandas_frame_work(spark, tmp_path):
    frame = pd.DataFrame({"x": [1, 2]})
    assert dataframe_to_mds(spark.createDataFrame(frame), tmp_path / "spark").rows == 2
    with MDSWriter(out=tmp_path / "alone", columns={"x": "int64"}) as writer:
        writer.write_batch(pa.Table.from_pandas(frame))
    assert len(read(tmp_path / "alone")) == 2


ODD_NAMES = ["a.b", "a`b", "`", "a.b`c", " ", "a/b", "é", "c0", "a" * 300, "sample_id", "select"]


def test_columns_of_any_name_are_written_and_identified_and_split(spark, tmp_path):
    frame = spark.range(0, 4, 1, 1).select(*(F.col("id").alias(name) for name in ODD_NAMES))
    manifest = dataframe_to_mds(frame, tmp_path, shuffle_rows=True)
    assert sorted(manifest.schema.names) == sorted(ODD_NAMES)
    assert identity_of(frame.repartition(2)).digest == identity_of(frame.repartition(3)).digest
    assert {row["split"] for row in with_split(frame, {"validation": 1.0}, key="a.b`c").collect()} == {"validation"}


NAMED = {
    "dataframe_to_mds": dataframe_to_mds,
    "identity_of": lambda df, _: identity_of(df),
    "with_split": lambda df, _: with_split(df, {}),
}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "A")], ids="-".join)
@pytest.mark.parametrize("function", NAMED)
def test_two_columns_of_one_name_are_refused_before_spark_begins(spark, tmp_path, names, function):
    with pytest.raises(SchemaError, match=r"column '.' more than once|differ only in case"):
        NAMED[function](spark.range(2).selectExpr(*(f"id AS {name}" for name in names)), tmp_path)


STREAMED = {
    "dataframe_to_mds": dataframe_to_mds,
    "add_columns": lambda df, out: add_columns(out, {"x": "int"}, df),
    "identity_of": lambda df, _: identity_of(df),
    "identities_in": lambda df, _: identities_in(df, "value", ["1"]),
    "in_partitions": lambda df, _: in_partitions(df, "value", ["1"]),
    "profile_rows": lambda df, _: profile_rows(df),
    "transformed": lambda df, _: transformed(df, Transform(lambda batch: batch, "arrow")),
    "with_split": lambda df, _: with_split(df, {"validation": 0.5}),
}


@pytest.mark.parametrize("function", STREAMED)
def test_a_streaming_frame_is_refused_with_the_call_that_writes_its_batches(spark, tmp_path, function):
    stream = spark.readStream.format("rate").load()
    with pytest.raises(SchemaError, match=r"writeStream\.format\('mds'\).* With PySpark 3\.5, .*foreachBatch"):
        STREAMED[function](stream, tmp_path)


@pytest.mark.slow
def test_the_advised_call_for_a_streaming_frame_appends_a_version_for_each_batch(spark, tmp_path):
    out, source = tmp_path / "out", tmp_path / "source"
    spark.range(0, 6, 1, 2).write.json(str(source))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))
    query = stream.writeStream.foreachBatch(
        lambda batch, number: dataframe_to_mds(batch, out, mode="append", write_id=f"stream-{number}")
    )
    query.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(int(sample["id"]) for sample in read(out)) == [0, 1, 2, 3, 4, 5]
    assert load_manifest(open_store(out)).version == 2


def test_an_error_of_the_query_says_in_one_line_what_to_do(spark, tmp_path):
    fails = F.udf(lambda number: 1 // 0, "int")
    with pytest.raises(
        SmaltiError, match=r"^Spark could not compute the rows: ZeroDivisionError: .*`dataframe.foreach"
    ):
        dataframe_to_mds(spark.range(1).select(fails("id").alias("x")), tmp_path)
    with (
        pytest.raises(SchemaError, match=r"^Spark refuses the query of the DataFrame: .*nowhere") as caught,
        decode_errors(),
    ):
        spark.range(1).select("nowhere")
    assert isinstance(caught.value.__cause__, AnalysisException)


SPARKS_OWN = {
    "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)": "memoryOverhead",
    "Cannot call methods on a stopped SparkContext.": "start one, and make the DataFrame again",
    "[Errno 111] Connection refused": "start a session",
    "Total size of serialized results is bigger than spark.driver.maxResultSize": "Raise `spark.driver.maxResultSize`",
    "Job 3 cancelled": "call again",
    "anything else": "dataframe.foreach",
}


@pytest.mark.parametrize("text", SPARKS_OWN)
def test_every_error_of_spark_says_what_to_do(text):
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    with pytest.raises(SmaltiError, match=f"{re.escape(text)}.*{SPARKS_OWN[text]}"), decode_errors():
        raise kind(f"An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: {text}\n\tat x.Y")


class FarStore(LocalStore):
    """A folder as a store of other machines."""

    def local_path(self, key):
        return None if key == INDEX else super().local_path(key)


class LoginStore(FarStore):
    """A folder as a store that needs a variable in the environment."""

    def put(self, key, data):
        if "SMALTI_TEST_LOGIN" not in os.environ:
            raise StoreAuthError(f"{self.url}: no login.", key=key)
        super().put(key, data)


def test_an_executor_without_the_drivers_login_is_found_before_rows_are_read(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("smalti.spark.tasks.has_remote_executors", lambda _: True)
    monkeypatch.setenv("SMALTI_TEST_LOGIN", "yes")  # the workers' processes began before
    store = LoginStore(tmp_path)
    store.put("x", b"")
    with pytest.raises(StoreAuthError, match=r"no row was read: .*no login.*`storage_options`.*spark.executorEnv"):
        require_reach(spark, store)
    require_reach(spark, FarStore(tmp_path))
    assert [path.name for path in Path(tmp_path).rglob("*") if path.is_file()] == ["x"]
    assert not has_remote_executors(spark)
