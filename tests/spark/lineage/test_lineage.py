"""The source of a DataFrame, and the write id by which a repeated write is recognised."""

import json
import os
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from smalti.spark.lineage import plan_digest, source_of, write_id_of
from tests.spark.photos import put

EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
PLANS = "org.apache.spark.sql.catalyst.plans.logical."


@pytest.fixture(scope="module")
def numbers(spark, tmp_path_factory):
    """Return a Parquet folder of two files."""
    folder = tmp_path_factory.mktemp("lineage") / "numbers"
    rows = spark.range(0, 20, 1, 2).selectExpr("id", "id * 2 AS x", "concat('a#12', id) AS s")
    rows.write.parquet(str(folder))
    return str(folder)


@pytest.mark.spark
def test_the_source_of_files_has_their_number_size_and_digest(spark, numbers):
    (source,) = source_of(spark.read.parquet(numbers))["sources"]
    assert (source["format"], source["files"], source["paths"]) == ("parquet", 2, [f"file:{numbers}"])
    assert source["num_bytes"] == sum(path.stat().st_size for path in Path(numbers).glob("*.parquet"))


@pytest.mark.spark
def test_the_same_query_of_the_same_files_has_the_same_write_id_and_another_has_another(spark, numbers, tmp_path):
    def ids(*queries):
        return [write_id_of(source_of(query(spark.read.parquet(numbers))), {"compression": None}) for query in queries]

    def same(frame):
        return frame.filter("x > 4").selectExpr("id", "try_cast(s AS int) AS n")

    first, again, *others = ids(
        same,
        same,
        lambda frame: frame.filter("x > 5").selectExpr("id", "try_cast(s AS int) AS n"),
        lambda frame: frame.filter("x > 4").selectExpr("id", "cast(s AS int) AS n"),
        lambda frame: frame.filter("x > 4").selectExpr("id", "try_cast(s AS int) AS m"),
        lambda frame: frame.filter("s = 'a#12'"),
        lambda frame: frame.filter("s = 'a#13'"),
        lambda frame: frame,
    )
    assert first == again
    assert len(first) == 32
    assert len({first, *others}) == 1 + len(others)
    source = source_of(same(spark.read.parquet(numbers)))
    assert write_id_of(source, {"compression": "zstd"}) != first
    everything = ids(lambda frame: frame)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert ids(lambda frame: frame) != everything
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert spark.conf.get("spark.sql.debug.maxToStringFields") == "25"


@pytest.mark.spark
def test_changed_files_or_options_of_reading_change_the_write_id(spark, tmp_path):
    put(tmp_path / "in" / "a.csv", b"id\n1\n")

    def write_id(**options):
        return write_id_of(source_of(spark.read.schema("id string").csv(str(tmp_path / "in"), **options)), {})

    first = write_id()
    assert first is not None
    assert write_id() == first
    assert write_id(header=True) != first
    put(tmp_path / "in" / "a.csv", b"id\n7\n")
    os.utime(tmp_path / "in" / "a.csv", (1_000_000_000, 1_000_000_000))
    assert write_id() != first
    second = write_id()
    put(tmp_path / "in" / "b.csv", b"2\n")
    assert write_id() != second


@pytest.mark.spark
@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.selectExpr("rand(3) AS r"),
        lambda frame: frame.selectExpr("current_timestamp() AS now"),
        lambda frame: frame.selectExpr("monotonically_increasing_id() AS n"),
        lambda frame: frame.selectExpr("input_file_name() AS n"),
        lambda frame: frame.limit(3),
        lambda frame: frame.sample(0.5, 1),
        lambda frame: frame.dropDuplicates(["x"]),
        lambda frame: frame.selectExpr("row_number() OVER (ORDER BY x) AS n"),
        lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema),
        lambda frame: frame.union(frame.sparkSession.createDataFrame([(1, 2, "x")], frame.schema)),
        lambda frame: frame.union(frame.sparkSession.range(3).selectExpr("id", "id AS x", "'' AS s")),
    ],
    ids=["rand", "now", "ids", "file", "limit", "sample", "first", "rank", "function", "memory", "range"],
)
def test_rows_that_may_differ_next_time_have_no_write_id(spark, numbers, change):
    source = source_of(change(spark.read.parquet(numbers)))
    assert "plan" not in source
    assert write_id_of(source, {}) is None
    assert source["sources"][0]["files"] == 2


@pytest.mark.spark
def test_rows_from_memory_have_no_source(spark):
    assert source_of(spark.range(3)) == {}
    assert write_id_of({}, {}) is None


def digest_of(nodes, text, about):
    return plan_digest(json.dumps(nodes), text, about=about)


def literal(kind):
    return [
        {"class": f"{PLANS}Project", "list": [[{"class": f"{EXPRESSIONS}Literal", "value": "1", "dataType": kind}]]}
    ]


def test_a_plan_of_unknown_parts_has_no_digest():
    about = {"version": "4.0"}
    known = [{"class": f"{PLANS}Filter", "condition": [{"class": f"{EXPRESSIONS}GreaterThan"}]}]
    assert digest_of(known, "Filter", about) is not None
    for name in ("com.example.MyPlan", f"{PLANS}MapInArrow", f"{EXPRESSIONS}PythonUDF", f"{EXPRESSIONS}CurrentDate"):
        assert digest_of([*known, {"class": name}], "Filter", about) is None
    assert digest_of(literal("integer"), "", about) is not None
    for kind in ("binary", {"type": "array"}, "variant"):
        assert digest_of(literal(kind), "", about) is None


def test_a_digest_renumbers_columns_and_distinguishes_them():
    def plan(*numbers):
        ids = [{"product-class": f"{EXPRESSIONS}ExprId", "id": number, "jvmId": "any"} for number in numbers]
        return [{"class": f"{PLANS}Project", "list": ids}]

    first = digest_of(plan(7, 8, 7), "Project [a#7, b#8]", {})
    assert digest_of(plan(41, 12, 41), "Project [a#41, b#12]", {}) == first
    assert digest_of(plan(7, 8, 8), "Project [a#7, b#8]", {}) != first


class Java:
    """An object of the JVM, as py4j exposes it: every attribute is a method."""

    def __init__(self, kind, **answers):
        self.kind, self.answers = kind, answers

    def getClass(self):  # noqa: N802
        return Java("Class", getSimpleName=self.kind.rsplit(".", 1)[-1], getName=self.kind)

    def __getattr__(self, name):
        return lambda *_: self.answers[name]


class Seq(list):
    """A sequence of Scala."""

    def apply(self, place):
        return self[place]

    def size(self):
        return len(self)


def frame_of(leaf):
    plan = Java("Plan", collectLeaves=Seq([leaf]), deterministic=False)
    return type("Frame", (), {"_jdf": Java("Dataset", queryExecution=Java("QueryExecution", analyzed=plan))})()


def delta_leaf(text):
    location = Java(
        "org.apache.spark.sql.delta.files.TahoeLogFileIndex",
        rootPaths=Seq([Java("Path", toString="s3://user:secret@lake/t")]),
        toString=text,
    )
    relation = Java("HadoopFsRelation", location=location, fileFormat=Java("F", toString="Delta"))
    return Java("org.apache.spark.sql.execution.datasources.LogicalRelation", relation=relation)


def test_the_source_of_a_delta_table_has_the_version_of_its_file_index():
    found = source_of(frame_of(delta_leaf("Delta[version=17, s3://lake/t]")))
    assert found == {"sources": [{"format": "delta", "paths": ["s3://***@lake/t"], "version": 17}]}
    assert "version" not in source_of(frame_of(delta_leaf("TahoeLogFileIndex(...)")))["sources"][0]


def iceberg(asked=None, current=884, options=None, branch=None, audited=""):
    """Return the source of an Iceberg table whose branch `b` and tag `t` are at 31 and 41."""
    heads = {"b": 31, "t": 41}

    def snapshot(number):
        return None if number is None else Java("Snapshot", snapshotId=number)

    inner = type(
        "Table",
        (),
        {"currentSnapshot": lambda _: snapshot(current), "snapshot": lambda _, name: snapshot(heads.get(name))},
    )()
    table = Java(
        "org.apache.iceberg.spark.source.SparkTable", snapshotId=asked, name="lake.db.t", table=inner, branch=branch
    )
    leaf = Java(
        "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation",
        table=table,
        options=Java("Map", asCaseSensitiveMap=options or {}),
        conf=Java("SQLConf", getConfString=audited),
    )
    (source,) = source_of(frame_of(leaf))["sources"]
    assert (source.pop("format"), source.pop("table")) == ("iceberg", "lake.db.t")
    assert ("options" in source) == bool(options)
    source.pop("options", None)
    return source


def test_the_source_of_an_iceberg_table_has_the_snapshot_that_is_read():
    """As Iceberg 1.10.2 in Spark 3.5 reads it: options and branches are not part of the table's name in Spark."""
    assert iceberg() == {"snapshot": "884"}
    assert iceberg(asked=12) == {"snapshot": "12"}
    assert iceberg(current=None) == {}
    assert iceberg(options={"Snapshot-ID": "12"}) == {"snapshot": "12"}
    assert iceberg(branch="b") == {"snapshot": "31"}
    assert iceberg(options={"branch": "b"}) == {"snapshot": "31"}
    assert iceberg(options={"tag": "t"}) == {"snapshot": "41"}
    assert iceberg(branch="gone") == {}
    assert iceberg(options={"split-size": "1000"}) == {"snapshot": "884"}


def test_changes_between_snapshots_and_audited_branches_have_no_snapshot():
    assert iceberg(options={"start-snapshot-id": "1", "end-snapshot-id": "2"}) == {}
    assert iceberg(options={"as-of-timestamp": "1700000000000"}) == {}
    assert iceberg(audited="audit") == {}


class ConnectFrame:
    """A DataFrame of Spark Connect, whose server knows one Delta table."""

    def __init__(self, files, version=None):
        self.files, self.version, self.asked, self.sparkSession = files, version, [], self

    def inputFiles(self):  # noqa: N802 -- Spark's name
        return self.files

    def sql(self, query):
        self.asked.append(query)
        if self.version is None:
            raise AnalysisException("[DELTA_MISSING_DELTA_TABLE]")
        return self

    def first(self):
        return {"version": self.version}


def test_spark_connect_has_the_names_of_files_and_no_plan():
    frame = ConnectFrame(["s3://b/t/day=1/part-1.parquet", "s3://b/t/day=2/part-0.parquet"])
    found = source_of(frame)
    (source,) = found["sources"]
    assert source.keys() == {"format", "files", "names_digest"}
    assert (source["files"], source["format"]) == (2, "files")
    assert write_id_of(found, {}) is None
    assert source_of(ConnectFrame([])) == {}


@pytest.mark.parametrize("below", ["day=1/hour=a%20b/part-1.parquet", "part-1.parquet"])
def test_spark_connect_is_asked_for_the_version_of_a_delta_table(below):
    frame = ConnectFrame([f"s3://b/the%20`table`/{below}"], version=11)
    (source,) = source_of(frame)["sources"]
    assert (source["delta_version"], source["paths"]) == (11, ["s3://b/the `table`"])
    assert frame.asked == ["DESCRIBE HISTORY delta.`s3://b/the ``table``` LIMIT 1"]
