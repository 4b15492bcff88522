"""MosaicML's call: its arguments, result and samples, but never a half-written set."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

from smalti.catalog import load_manifest, merge_index
from smalti.errors import DatasetExists, SchemaError, StoreError, StoreNotFound
from smalti.format import Shard
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.spark.writing.mosaic import _places
from smalti.storage import open_store
from smalti.writer import MDSWriter
from tests.peer_program import run_alone

pytestmark = pytest.mark.spark
HERE = Path(__file__).resolve().parent


def read(out):
    samples = []
    for info in load_manifest(open_store(out)).shards:
        shard = Shard.open(out / info.raw.basename, info)
        samples += [shard[i] for i in range(len(shard))]
        shard.close()
    return samples


def test_the_documented_call_gives_the_paths_and_a_version(spark, tmp_path):
    out = tmp_path / "out"
    frame = spark.range(0, 9, 1, 2).withColumn("text", F.col("id").cast("string"))
    kwargs = {"out": str(out), "columns": {"id": "int64", "text": "str"}, "compression": None, "hashes": ["sha1"],
              "size_limit": "1kb", "progress_bar": False, "max_workers": 2, "retry": 3, "keep_local": True}  # fmt: skip
    before = json.dumps(kwargs)
    assert dataframe_to_mds(frame, merge_index=True, mds_kwargs=kwargs) == (str(out), "")
    assert json.dumps(kwargs) == before, "the caller's dict is left as it was"
    assert [(int(s["id"]), s["text"]) for s in read(out)] == [(n, str(n)) for n in range(9)]
    info = load_manifest(open_store(out)).shards[0]
    assert (info.hash_names, info.size_limit, info.compression) == (("sha1",), 1024, None)
    entries = json.loads((out / "index.json").read_bytes())["shards"]
    assert {entry["raw_data"]["basename"] for entry in entries} == {info.raw.basename}


def test_the_rows_may_be_given_under_either_name(spark, tmp_path):
    kwargs = {"out": str(tmp_path / "theirs"), "compression": None}
    assert dataframe_to_mds(dataframe=spark.range(3), mds_kwargs=kwargs) == (str(tmp_path / "theirs"), "")
    assert dataframe_to_mds(dataframe=spark.range(3), out=tmp_path / "ours").rows == 3
    assert dataframe_to_mds(df=spark.range(3), out=tmp_path / "former").rows == 3
    with pytest.raises(TypeError, match="`df` is another name of `dataframe`; give one of them"):
        dataframe_to_mds(spark.range(3), tmp_path / "both", df=spark.range(3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: pd.DataFrame({"x": [1]}),
            r"pandas\..*DataFrame: give spark.createDataFrame\(frame\); without Spark, ",
        ),
        (lambda: pa.table({"x": [1]}), r"pyarrow.lib.Table: give .*to_pandas\(\)\); .*`write_batch\(frame\)`"),
        (lambda: [{"x": 1}], r"builtins.list: give spark.createDataFrame\(rows\)$"),
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


def test_zstd_is_the_default_and_columns_are_planned_by_type(spark, tmp_path):
    dataframe_to_mds(spark.range(3), True, {"out": str(tmp_path / "out")})
    manifest = load_manifest(open_store(tmp_path / "out"))
    assert manifest.shards[0].compression == "zstd"
    assert manifest.schema.columns() == {"id": "int64"}


def test_a_function_over_pandas_frames_makes_the_samples(spark, tmp_path):
    out = tmp_path / "out"

    def halves(frame, *, factor):
        for number in frame["a number"]:
            yield {"x": np.int32(number * factor), "half": "low" if number < 5 else "high", "left out": object()}
            if number == 3:
                yield {"x": -1, "half": "extra"}

    frame = spark.range(0, 10, 1, 2).withColumnRenamed("id", "a number")
    kwargs = {"out": str(out), "columns": {"x": "int32", "half": "str"}, "compression": None}
    dataframe_to_mds(frame, merge_index=True, mds_kwargs=kwargs, udf_iterable=halves, udf_kwargs={"factor": 3})
    found = [(int(sample["x"]), sample["half"]) for sample in read(out)]
    low = [(0, "low"), (3, "low"), (6, "low"), (9, "low"), (-1, "extra"), (12, "low")]
    assert found == low + [(number * 3, "high") for number in range(5, 10)]


def test_a_function_that_fails_leaves_nothing(spark, tmp_path):
    def fails(frame):
        yield {"x": 1}
        raise KeyError("label")

    kwargs = {"out": str(tmp_path / "out"), "columns": {"x": "int"}}
    with pytest.raises(Exception, match="label"):
        dataframe_to_mds(spark.range(4), mds_kwargs=kwargs, udf_iterable=fails)
    with pytest.raises(StoreNotFound):
        load_manifest(open_store(tmp_path / "out"))
    assert list(tmp_path.rglob("*.mds*")) == []


def test_without_merging_each_partition_is_a_folder_that_can_be_merged(spark, tmp_path):
    out = tmp_path / "out"
    kwargs = {"out": str(out), "compression": None}
    assert dataframe_to_mds(spark.range(0, 6, 1, 2), merge_index=False, mds_kwargs=kwargs) == (str(out), "")
    assert not (out / "index.json").exists()
    folders = sorted(path.name for path in out.iterdir())
    assert len(folders) == 2
    assert all((out / folder / "index.json").is_file() for folder in folders)
    merge_index(str(out))
    assert [int(sample["id"]) for sample in read(out)] == [0, 1, 2, 3, 4, 5]


def test_an_existing_set_is_replaced_only_with_exist_ok_and_by_a_version(spark, tmp_path):
    kwargs = {"out": str(tmp_path), "compression": None}
    dataframe_to_mds(spark.range(3), mds_kwargs=kwargs)
    with pytest.raises(DatasetExists) as caught:
        dataframe_to_mds(spark.range(4), mds_kwargs=kwargs)
    assert isinstance(caught.value, FileExistsError)
    dataframe_to_mds(spark.range(4), mds_kwargs={**kwargs, "exist_ok": True})
    assert len(read(tmp_path)) == 4
    assert load_manifest(open_store(tmp_path), version=1).rows == 3
    dataframe_to_mds(spark.range(2), mds_kwargs={**kwargs, "mode": "append"})
    assert [int(sample["id"]) for sample in read(tmp_path)] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(("keep_local", "kept"), [(True, 3), (False, 0)])
def test_a_local_copy_is_made_with_keep_local(spark, tmp_path, keep_local, kept):
    local, remote = tmp_path / "local", f"file://{tmp_path}/remote"
    kwargs = {"out": (str(local), remote), "compression": None, "keep_local": keep_local}
    assert dataframe_to_mds(spark.range(3), mds_kwargs=kwargs) == (str(local), remote)
    assert len(read(tmp_path / "remote")) == 3
    assert sum(entry["samples"] for file in local.glob("index.json")
               for entry in json.loads(file.read_bytes())["shards"]) == kept  # fmt: skip
    assert len(list(local.rglob("*.mds"))) == (1 if kept else 0)


def test_no_rows_are_a_value_error(spark, tmp_path):
    with pytest.raises(ValueError, match="no rows") as caught:
        dataframe_to_mds(spark.range(0), mds_kwargs={"out": str(tmp_path)})
    assert isinstance(caught.value, SchemaError)


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "`out`: expected a path"),
        ((), {"merge_index": True}, "`out` in `mds_kwargs`"),
        ((True,), {"merge_index": True, "mds_kwargs": {"out": "x"}}, "`merge_index` was given twice"),
        (("x",), {"mds_kwargs": {"columns": {}}}, "give the place as `out` in `mds_kwargs`"),
        (("x",), {"merge_index": True}, "give the place as `out` in `mds_kwargs`"),
        ((), {"mds_kwargs": {"out": "x"}, "mode": "append"}, "`mode` cannot be given with it"),
        ((), {"mds_kwargs": {"out": "x"}, "columns": {}, "hashes": ()}, "`columns`, `hashes` cannot be given with it"),
        ((), {"mds_kwargs": {"out": "x", "region": 1, "acl": 2}}, "`mds_kwargs` has acl, region; its writer takes out"),
        ((), {"mds_kwargs": {"out": ("a", "b", "c")}}, r"or \(local, remote\), found"),
        ((), {"mds_kwargs": {"out": "x"}, "udf_iterable": list}, "name them, with their encodings, in `columns`"),
        ((), {"mds_kwargs": {"out": "x"}, "udf_kwargs": {}}, "for `udf_iterable`, which was not given"),
        ((), {"mds_kwargs": {"out": "x", "retry": 0}}, "at least 1"),
        ((), {"mds_kwargs": {"out": "x", "mode": "append", "exist_ok": True}}, 'mode="append" beside it'),
        (("",), {}, "the address is empty"),
        ((), {"mds_kwargs": {"out": ""}}, "the address is empty"),
        ((), {"mds_kwargs": {"out": (None, "")}}, "the address is empty"),
        ((), {"mds_kwargs": {"out": "x", "compression": "rar"}}, "rar"),
    ],
)
def test_meaningless_arguments_are_refused(spark, tmp_path, monkeypatch, args, kwargs, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, StoreError), match=says):
        dataframe_to_mds(spark.range(3), *args, **kwargs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "places"),
    [
        ("/data/set", ("/data/set", "")),
        ("s3://bucket/set", ("", "s3://bucket/set")),
        ("dbfs:/Volumes/a/b/c", ("", "dbfs:/Volumes/a/b/c")),
        (("/tmp/x", "gs://bucket/set"), ("/tmp/x", "gs://bucket/set")),
        (Path("/data/set"), ("/data/set", "")),
    ],
)
def test_places_are_parsed_as_local_and_remote(out, places):
    assert _places(out) == places


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "found"),
    [
        ([], ["plain: 4", "function: 2", "inferred through the alias: 6", "small through the alias: 3"]),
        pytest.param(
            ["more"], ["chosen through the alias: 6", "pickled through the alias: 3"], marks=pytest.mark.nightly
        ),
    ],
)
def test_mosaicml_itself_makes_the_same_shards_by_the_same_calls(tmp_path, more, found):
    """Both functions, and the alias of MosaicML's, run in one process over the same frames."""
    peer = Path(sys.prefix) / "peer"
    if not peer.is_dir():
        pytest.skip("MosaicML Streaming is not in .venv/peer; `make setup` lays it there")
    paths = [str(HERE.parents[2]), str(HERE.parents[1] / "golden" / "peer_stubs"), str(peer)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    output = run_alone([sys.executable, "-W", "ignore", HERE / "both_writers.py", tmp_path, *more], env, seconds=150)
    assert [line for line in output.splitlines() if "equal" in line] == [f"{line} equal shards" for line in found]
