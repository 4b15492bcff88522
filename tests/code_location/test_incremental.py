"""The graph on a folder that changes: only what changed is converted, and what is published is exactly the folder."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipelines.home import REPOSITORY, prepare_home
from smalti.catalog import history, verify
from smalti.spark import PrepareOptions, list_images, read_prepared, update_prepared
from smalti.storage import open_store
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.runs.launcher import cancel_dead_commands
from tests.code_location.documented_keys import documented_keys
from tests.code_location.events import end, materialise
from tests.code_location.graph import Graph, draw, draw_all
from tests.code_location.instances import instance_in_memory

pytestmark = [pytest.mark.slow, pytest.mark.spark]


READ_ALL = {"every_row_is_in_the_shards", "hashes_verify", "no_class_vanished"}


class NoSpark(SparkResource):
    """Spark that must not be asked for."""

    def session(self, report: Any = None) -> Any:
        raise AssertionError("Spark was started for nothing")


@pytest.fixture
def graph(tmp_path: Path, session: Any) -> Iterator[Graph]:
    """Twenty photos of two classes, in shards of a few of them."""
    draw_all(tmp_path / "photos", per_class=10)
    with instance_in_memory() as instance:
        yield Graph(instance, tmp_path / "photos", tmp_path / "data")


def names(graph: Graph) -> set[str]:
    return {shard.raw.basename for shard in graph.manifest.shards}


def trainings(graph: Graph) -> list[dg.RunRequest]:
    defs, storage = graph.defs(), {"smalti_storage": graph.storage}
    with dg.build_sensor_context(instance=graph.instance, definitions=defs, resources=storage) as context:
        return list(defs.resolve_sensor_def("flowers_train_sensor").evaluate_tick(context).run_requests or [])


def train(graph: Graph) -> None:
    """Launch the sensor's request as the daemon does, and record a training that ended well."""
    [request] = trainings(graph)
    job = graph.defs().resolve_job_def("flowers_train_job")
    run = graph.instance.create_run_for_job(job, tags=dict(request.tags), run_config=dict(request.run_config))
    materialise(graph.instance, "model", {}, run)
    end(graph.instance, run, dg.DagsterRunStatus.SUCCESS)


def test_a_run_after_five_of_twenty_photos_changed_prepares_five_and_writes_five_without_spark(
    graph: Graph, tmp_path: Path, session: Any
) -> None:
    first = graph.run()
    assert (first["prepared"]["prepared"], first["shards"]["rows_written"]) == (20, 20)
    assert graph.decoded == 20
    before = names(graph)
    for number in range(5):
        draw(graph.photos, f"daisy/{number:02}.jpg", number=100 + number)
    second = graph.run(spark=NoSpark())
    assert second["raw"]["what_was_done"] == "0 new, 5 changed, 0 gone"
    rows, shards = second["prepared"], second["shards"]
    assert (rows["prepared"], rows["kept"], rows["removed"]) == (5, 15, 0)
    assert (shards["version"], shards["rows_written"]) == (2, 5)
    newest, oldest = (record.data for record in shards["version_history"].records)
    assert [(each["version"], each["rows"], each["difference"]) for each in (newest, oldest)] == [
        ("2", "20", "+0 -0 ~5"), ("1", "20", "+20 -0 ~0"),
    ]  # fmt: skip
    assert newest["run"] == shards["published_by"][:8] != oldest["run"]
    states = [record.data["state"] for record in shards["shard_table"].records]
    assert states == ["new"] * (len(states) - shards["shards_kept"]) + ["kept"] * shards["shards_kept"]
    for stage, facts in second.items():
        assert facts.keys() <= documented_keys(stage)
    new = [shard for shard in graph.manifest.shards if shard.raw.basename not in before]
    assert graph.decoded == sum(shard.samples for shard in new) < 20
    assert shards["shards_kept"] == len(before & names(graph)) > 0
    options = PrepareOptions(size=16, validation_fraction=0.25)
    update_prepared(session, list_images(str(graph.photos)), tmp_path / "full", options=options)
    wanted = read_prepared(session, tmp_path / "full").collect()
    assert graph.rows() == {
        row["path"]: (row["split"], row["label"], hashlib.sha256(row["image"]).hexdigest()) for row in wanted
    }


def test_photos_that_go_and_come_back_lead_back_to_the_same_digest_and_are_not_trained_on_twice(graph: Graph) -> None:
    first = graph.run()["shards"]
    train(graph)
    gone = {name: (graph.photos / name).read_bytes() for name in ("roses/03.jpg", "daisy/07.jpg")}
    for name in gone:
        (graph.photos / name).unlink()
    second = graph.run()
    assert second["raw"]["what_was_done"] == "0 new, 0 changed, 2 gone"
    assert second["prepared"]["removed"] == 2
    assert set(graph.rows()) == {f"{kind}/{n:02}.jpg" for kind in ("daisy", "roses") for n in range(10)} - gone.keys()
    train(graph)
    for name, data in gone.items():
        (graph.photos / name).write_bytes(data)
    third = graph.run()
    assert (third["shards"]["version"], third["shards"]["digest"]) == (3, first["digest"])
    assert third["shards"]["rows_written"] == 0
    assert "the same as version 1" in third["shards"]["what_was_done"]
    assert trainings(graph) == []
    draw(graph.photos, "roses/03.jpg", number=200)  # a change after a way back is built on what was gone back to
    fourth = graph.run()
    assert (fourth["prepared"]["prepared"], fourth["shards"]["rows_written"]) == (1, 1)


def test_nothing_new_is_the_same_version_without_spark_and_is_not_trained_on_again(graph: Graph) -> None:
    first = graph.run()
    assert graph.checks_made >= READ_ALL
    train(graph)
    again = graph.run(spark=NoSpark(master="local[2]"))
    assert READ_ALL & graph.checks_made == {"hashes_verify"}
    assert again["raw"]["what_was_done"] == "nothing changed"
    assert again["prepared"]["what_was_done"] == "nothing changed: all 20 files were prepared before"
    assert again["shards"]["what_was_done"].startswith("nothing changed since version 1: 20 samples")
    assert again["shards"]["digest"] == first["shards"]["digest"]
    for stage, name in (("raw", "gallery"), ("prepared", "gallery"), ("prepared", "image_sizes_picture")):
        assert again[stage][name] == first[stage][name]
    assert again["shards"]["version_history"] == first["shards"]["version_history"]
    assert {record.data["state"] for record in again["shards"]["shard_table"].records} == {"kept"}
    assert len(history(open_store(graph.place))) == 1
    assert trainings(graph) == []
    os.utime(graph.photos / "roses" / "03.jpg", (1, 1))  # nor does a photo that was only touched make a version
    touched = graph.run()
    assert touched["raw"]["what_was_done"] == "0 new, 1 changed, 0 gone"
    assert touched["prepared"]["prepared"] == 1
    assert touched["shards"]["what_was_done"].startswith("nothing changed since version 1")


@pytest.mark.nightly  # of rows: test_partitions.py, the rows of a partition
def test_a_rewrite_writes_everything_and_is_then_built_on(graph: Graph) -> None:
    graph.run()
    rewritten = graph.run(rewrite=True)["shards"]
    assert (rewritten["version"], rewritten["rows_written"], rewritten["shards_kept"]) == (2, 20, 0)
    draw(graph.photos, "roses/03.jpg", number=200)
    assert graph.run()["shards"]["rows_written"] == 1


@pytest.mark.process
def test_j7_a_version_whose_run_recorded_nothing_is_found_and_recorded_by_the_next_run(graph: Graph) -> None:
    first = graph.run()["shards"]
    with instance_in_memory() as fresh:  # what Dagster knew of that run is lost
        again = replace(graph, instance=fresh).run(spark=NoSpark())["shards"]
    assert (again["version"], again["digest"]) == (1, first["digest"])
    assert again["what_was_done"].startswith("nothing changed since version 1")


def test_j7_a_recorded_version_that_is_not_in_the_store_is_made_again(graph: Graph) -> None:
    graph.run()
    before = graph.rows()
    shutil.rmtree(graph.place)
    again = graph.run()["shards"]
    assert (again["version"], again["rows_written"]) == (1, 20)
    assert graph.rows() == before


def test_a_run_that_was_killed_before_it_published_leaves_the_old_version_and_the_next_one_is_right(
    graph: Graph, tmp_path: Path
) -> None:
    prepare_home(tmp_path / "home")
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        stored = Graph(instance, graph.photos, graph.data)
        stored.run()
        before = (stored.manifest, stored.rows())
        draw(graph.photos, "roses/03.jpg", number=200)
        done = subprocess.run(
            [sys.executable, "-m", "tests.code_location.killed_reshard", *map(str, (tmp_path / "home", graph.photos)),
             str(graph.data), "2"],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == -9, done.stdout + done.stderr
        assert (stored.manifest, stored.rows()) == before
        assert verify(open_store(graph.place)).ok
        cancel_dead_commands(instance)
        facts = stored.run()
        assert (facts["shards"]["version"], facts["shards"]["rows_written"]) == (2, 1)
        assert stored.rows().keys() == before[1].keys()
        assert {p for p, row in stored.rows().items() if before[1][p] != row} == {"roses/03.jpg"}
