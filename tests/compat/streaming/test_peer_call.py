"""MosaicML's call: its arguments, result and samples, but never a half-written set."""

import json
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

from smalti.catalog import load_manifest
from smalti.compat.streaming.base.converters import dataframe_to_mds
from smalti.compat.streaming.base.converters.dataframe_to_mds import _places
from smalti.errors import StoreError
from smalti.format import Shard
from smalti.storage import open_store
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
    infos = load_manifest(open_store(out)).shards
    info = infos[0]
    assert (info.hash_names, info.size_limit, info.compression) == (("sha1",), 1024, None)
    entries = json.loads((out / "index.json").read_bytes())["shards"]
    assert {entry["raw_data"]["basename"] for entry in entries} == {each.raw.basename for each in infos}


@pytest.mark.parametrize(("keep_local", "kept"), [(True, 3), (False, 0)])
def test_a_local_copy_is_made_with_keep_local(spark, tmp_path, keep_local, kept):
    local, remote = tmp_path / "local", f"file://{tmp_path}/remote"
    kwargs = {"out": (str(local), remote), "compression": None, "keep_local": keep_local}
    assert dataframe_to_mds(spark.range(3), mds_kwargs=kwargs) == (str(local), remote)
    assert len(read(tmp_path / "remote")) == 3
    assert sum(entry["samples"] for file in local.glob("index.json")
               for entry in json.loads(file.read_bytes())["shards"]) == kept  # fmt: skip
    assert len(list(local.rglob("*.mds"))) == (2 if kept else 0)  # one of each Spark partition


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"region": 1, "acl": 2}, "`mds_kwargs` has acl, region; its writer takes out"),
        ({"retry": 0}, "at least 1"),
        ({"mode": "append", "exist_ok": True}, 'mode="append" beside it'),
        ({"out": ""}, "`out` is empty"),
        ({"out": (None, "")}, "`out` is empty"),
        ({"compression": "rar"}, "rar"),
    ],
)
def test_meaningless_arguments_are_refused(spark, tmp_path, monkeypatch, kwargs, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, StoreError), match=says):
        dataframe_to_mds(spark.range(3), mds_kwargs={"out": "x", **kwargs})
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
        ([], ["inferred through the alias: 6", "small through the alias: 3"]),
        pytest.param(
            ["more"], ["chosen through the alias: 6", "pickled through the alias: 3"], marks=pytest.mark.nightly
        ),
    ],
)
def test_mosaicml_itself_makes_the_same_shards_by_the_same_calls(tmp_path, more, found):
    """Both functions run in one process over the same frames."""
    peer = Path(sys.prefix) / "peer"
    if not peer.is_dir():
        pytest.skip("MosaicML Streaming is not in .venv/peer; `make setup` lays it there")
    paths = [str(HERE.parents[2]), str(HERE.parents[1] / "golden" / "peer_stubs"), str(peer)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    output = run_alone([sys.executable, "-W", "ignore", HERE / "both_writers.py", tmp_path, *more], env, seconds=500)
    assert [line for line in output.splitlines() if "equal" in line] == [f"{line} equal shards" for line in found]
