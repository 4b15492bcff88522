"""Measuring the graph: the pictures, how events become seconds, and what both ways have to give."""

from types import SimpleNamespace

import dagster as dg
import pytest

from benchmarks.graph.pictures import PictureFolder, name_of
from benchmarks.graph.timeline import parts_of
from benchmarks.graph_rows import GRAPH_ROWS
from benchmarks.photos import number_in
from benchmarks.plan import task_of
from benchmarks.scale import SCALES
from smalti.images import encode_jpeg, probe_image

KINDS = dg.DagsterEventType


@pytest.fixture(scope="module")
def picture():
    import numpy as np

    return encode_jpeg(np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8), 90)


def test_every_picture_is_a_small_file_of_its_own_and_a_folder_is_made_to_hold_exactly_so_many(tmp_path, picture):
    folder = PictureFolder(tmp_path, SimpleNamespace(pictures=[picture, picture]))
    folder.require(7)
    files = sorted(tmp_path.glob("*/*.jpg"), key=lambda path: path.name)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == [name_of(number) for number in range(7)]
    assert [number_in(path.read_bytes()) for path in files] == list(range(7))
    header = probe_image(files[0].read_bytes())
    assert (header.width, header.height) == (128, 128)
    before = files[0].stat().st_mtime_ns
    folder.add(7, 2)
    assert len(list(tmp_path.glob("*/*.jpg"))) == 9
    folder.require(6)
    assert len(list(tmp_path.glob("*/*.jpg"))) == 6
    assert files[0].stat().st_mtime_ns == before


def event(kind, seconds, *, asset=None):
    key = dg.AssetKey(["pictures", asset]) if asset else None
    found = SimpleNamespace(
        event_type=kind,
        event_type_value=kind.value,
        step_materialization_data=SimpleNamespace(materialization=SimpleNamespace(asset_key=key)),
        asset_check_evaluation_data=SimpleNamespace(asset_key=key),
    )
    return SimpleNamespace(dagster_event=found, timestamp=seconds)


def test_the_seconds_of_a_run_are_those_between_its_events():
    events = [
        event(KINDS.RUN_ENQUEUED, 100.5),
        event(KINDS.RUN_STARTING, 102.0),
        event(KINDS.RUN_START, 105.0),
        event(KINDS.STEP_WORKER_STARTING, 105.2),  # a part of what follows
        SimpleNamespace(dagster_event=None, timestamp=106.0),  # a line in the log
        event(KINDS.STEP_START, 107.0),
        event(KINDS.ASSET_MATERIALIZATION, 108.0, asset="raw"),
        event(KINDS.ASSET_MATERIALIZATION, 110.0, asset="shards"),
        event(KINDS.ASSET_CHECK_EVALUATION, 111.0, asset="shards"),
        event(KINDS.ASSET_CHECK_EVALUATION, 114.0, asset="shards"),
        event(KINDS.STEP_SUCCESS, 114.5),
        event(KINDS.RUN_SUCCESS, 115.0),
    ]
    parts = parts_of(events, begin=100.0)
    assert parts == {
        "enqueued": 0.5, "dequeued": 1.5, "worker": 3.0, "step": 2.0, "raw": 1.0, "shards": 2.0, "shards_checks": 4.0,
        "teardown": 0.5, "end": 0.5,
    }  # fmt: skip
    assert sum(parts.values()) == 15.0


def test_the_rows_of_a_size_share_one_measurement_of_all_stages_and_one_of_whole_runs():
    tasks = {}
    for row in GRAPH_ROWS:
        task = task_of(row, row.entrants[0], SCALES["full"], "/work")
        tasks.setdefault((task.measure, task.samples), set()).add(str(task.to_json()))
    assert {key: len(found) for key, found in tasks.items()} == {
        ("graph-stages", 3_670): 1, ("graph-stages", 50_000): 1, ("graph-runs", 3_670): 1, ("graph-runs", 50_000): 1,
    }  # fmt: skip
