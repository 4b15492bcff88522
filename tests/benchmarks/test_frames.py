"""DataFrames and manifests in the harness: the sources, the floors' absence of doubt, and that everything runs."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from benchmarks.frames import source_folder, write_source
from benchmarks.manifest_rows import MANIFEST_ROWS
from benchmarks.measures.framing import _check
from benchmarks.measures.manifests import ACTIONS, measure_manifest
from benchmarks.peers import WriteOptions, find
from benchmarks.photos import FOLDER
from benchmarks.plan import Planned, preparations, task_of
from benchmarks.process import run_task
from benchmarks.scale import SCALES
from benchmarks.spark_rows import SPARK_ROWS
from benchmarks.task import Task

needs_photos = pytest.mark.skipif(not FOLDER.exists(), reason="SMALTI_FLOWERS names no folder of photos")


def frame_task(tmp_path, samples=600, peer="smalti"):
    return Task("frame", peer, "rows", samples, str(tmp_path), {})


def test_the_source_of_all_writers_is_prepared_once(tmp_path):
    tasks = [frame_task(tmp_path, peer=peer) for peer in ("smalti", "mosaicml", "parquet")]
    prepared = preparations([Planned(each, "", 1) for each in tasks], fresh=True)
    assert [(each.measure, each.samples) for each in prepared] == [("prepare-frame", 600)]


def test_the_source_is_an_even_number_of_files_with_every_row_once(tmp_path):
    task = frame_task(tmp_path)
    write_source(task)
    files = sorted(source_folder(task).iterdir())
    assert [pq.read_metadata(file).num_rows for file in files] == [300, 300]
    rows = pq.read_table(source_folder(task))
    assert rows.column("id").to_pylist() == list(range(600))
    assert [str(kind) for kind in rows.schema.types] == ["int64", "int32", "string", "binary"]
    assert rows.column("data")[599].as_py()[:8] == (599).to_bytes(8, "little")
    assert {len(value.as_py()) for value in rows.column("data")} == {1024}


def test_files_as_a_source_are_prepared_apart_from_parquet(tmp_path):
    tasks = [frame_task(tmp_path), replace(frame_task(tmp_path), options={"source": "files", "zstd": True})]
    prepared = preparations([Planned(each, "", 1) for each in tasks], fresh=True)
    assert [each.options for each in prepared] == [{}, {"source": "files"}]


def written(task, folder, rows):
    folder.mkdir(parents=True)
    find("smalti").write(rows, task.kind, folder, WriteOptions())


def test_a_set_with_a_wrong_value_or_too_few_samples_is_no_result(tmp_path):
    task = frame_task(tmp_path)
    rows = task.data.rows
    written(task, tmp_path / "good", rows)
    _check(find("smalti"), task, tmp_path / "good")
    written(task, tmp_path / "short", rows[:-1])
    with pytest.raises(ValueError, match="wrote 599 samples of 600"):
        _check(find("smalti"), task, tmp_path / "short")
    written(task, tmp_path / "wrong", [*rows[:10], {**rows[10], "data": b"x" * 1024}, *rows[11:]])
    with pytest.raises(ValueError, match="wrote 1 wrong samples"):
        _check(find("smalti"), task, tmp_path / "wrong")
    written(task, tmp_path / "twice", [*rows[:10], rows[11], *rows[11:]])
    with pytest.raises(ValueError, match="and 1 twice"):
        _check(find("smalti"), task, tmp_path / "twice")


@pytest.mark.nightly  # `make bench` runs the same
@pytest.mark.torch
def test_everything_that_is_done_with_a_large_manifest_runs(tmp_path):
    smoke = replace(SCALES["smoke"], divisor=500)
    actions = {}
    for row in MANIFEST_ROWS:
        task = task_of(row, row.entrants[0], smoke, str(tmp_path))
        task.scratch.mkdir(exist_ok=True)
        if task.options["action"] not in actions:
            actions[task.options["action"]] = measure_manifest(replace(task, work_dir=str(fresh(tmp_path, task))))
    assert set(actions) == set(ACTIONS)
    assert actions["publish"]["shards"] == 2_000
    assert actions["append"]["shards"] == 2_001
    assert actions["foreign"]["samples"] == 200 * 60_000


def fresh(tmp_path, task):
    """The folder with an empty scratch, as the harness gives every task one."""
    for path in sorted(task.scratch.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return tmp_path


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("key", ["spark-rows", pytest.param("spark-files", marks=needs_photos)])
def test_a_frame_is_written_and_checked_in_a_session_of_its_own(key, tmp_path):
    (row,) = (row for row in SPARK_ROWS if row.key == key)
    task = task_of(row, row.entrants[0], SCALES["smoke"], str(tmp_path))
    assert run_task(replace(task, measure="prepare-frame"), 200).status == "ok"
    outcome = run_task(task, 500)
    assert outcome.status == "ok", outcome.detail
    assert outcome.figures["stored_mb"] > task.samples * 1000 / 1e6
    assert outcome.figures["cpu_us_per_row"] > 0
