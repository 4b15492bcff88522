"""An image set that is described by a file: CSV or Parquet with a path and a label for each image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.drawing import draw_flower
from smalti.catalog import load_manifest
from smalti.errors import SmaltiError, StoreNotFound
from smalti.spark import ImageFolder
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.declaration import Checks, Declaration, Image, Prepare, Source, Watch
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.manifest import list_manifest
from smalti_dagster.stages.data import build_data
from tests.code_location.declared import define
from tests.spark.own_session import own_session


def lay_out(root: Path, text: str, name: str = "labels.csv") -> str:
    """Three files, and a manifest beside them."""
    (root / "scans").mkdir(parents=True, exist_ok=True)
    for number in range(3):
        (root / "scans" / f"{number}.jpg").write_bytes(b"x" * (number + 1))
    (root / name).write_text(text)
    return str(root / name)


def listed(source: str) -> ImageFolder:
    return list_manifest(source, path_column="path", label_column="label")


def test_classes_are_the_labels_and_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    folder = listed(lay_out(tmp_path, "path,label\nscans/2.jpg,ill\n./scans/0.jpg,well\nscans/1.jpg,ill\n"))
    assert folder.classes == ("ill", "well")
    assert [(file.path, file.label, file.num_bytes) for file in folder.files] == [
        ("scans/0.jpg", 1, 1),
        ("scans/1.jpg", 0, 2),
        ("scans/2.jpg", 0, 3),
    ]
    assert folder.source == str(tmp_path)


def test_parquet_and_numbers_as_labels_do_as_well(tmp_path: Path) -> None:
    lay_out(tmp_path, "")
    pq.write_table(pa.table({"path": ["scans/0.jpg", "scans/1.jpg"], "label": [7, 3]}), tmp_path / "l.parquet")
    assert listed(str(tmp_path / "l.parquet")).classes == ("3", "7")


def test_the_digest_changes_with_a_label_and_with_a_file_and_not_with_the_order(tmp_path: Path) -> None:
    first = listed(lay_out(tmp_path, "path,label\nscans/0.jpg,a\nscans/1.jpg,b\n")).digest
    (tmp_path / "labels.csv").write_text("path,label\nscans/1.jpg,b\nscans/0.jpg,a\n")
    assert listed(str(tmp_path / "labels.csv")).digest == first
    (tmp_path / "labels.csv").write_text("path,label\nscans/1.jpg,a\nscans/0.jpg,b\n")
    assert listed(str(tmp_path / "labels.csv")).digest != first
    (tmp_path / "labels.csv").write_text("path,label\nscans/1.jpg,b\nscans/0.jpg,a\n")
    (tmp_path / "scans" / "0.jpg").write_bytes(b"other")
    assert listed(str(tmp_path / "labels.csv")).digest != first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\nscans/0.jpg,a\n", "has no column 'path'; it has file, label"),
        ("path,label\nscans/9.jpg,a\n", "1 files that are not there: scans/9.jpg"),
        ("path,label\n../x.jpg,a\n", "stay in it, found '../x.jpg'"),
        ("path,label\n/etc/x.jpg,a\n", "must be relative"),
        ("path,label\nscans/0.jpg,a\nscans/0.jpg,b\n", "a path more than once"),
        ("path,label\n", "found no rows"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_with_a_message(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SmaltiError, match=message):
        listed(lay_out(tmp_path, text))


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        listed(str(tmp_path / "labels.csv"))


# ---------------------------------------------------------------- in the graph


def scans(tmp_path: Path, *labels: str) -> Declaration:
    """A data set of pictures in one flat folder, whose labels only the manifest says."""
    (tmp_path / "scans").mkdir(exist_ok=True)
    for number in range(len(labels)):
        path = tmp_path / "scans" / f"{number}.jpg"
        if not path.exists():  # or it would count as changed
            path.write_bytes(draw_flower("daisy", number=number, size=(40, 32)))
    lines = [f"scans/{number}.jpg,{label}" for number, label in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,finding", *lines, ""]))
    source = Source(manifest=str(tmp_path / "labels.csv"), path_column="file", label_column="finding")
    checks = Checks(max_row_loss=0.5)
    return Declaration(name="scans", source=source, prepare=Prepare(image=Image(size=16)), checks=checks)


@pytest.fixture
def spark() -> Iterator[Any]:
    """The session of all tests of one worker, which runs find and leave alone."""
    with own_session() as made:
        yield made


@pytest.mark.slow
@pytest.mark.spark
def test_pictures_are_published_with_the_labels_of_the_manifest(
    instance: dg.DagsterInstance, storage: StorageResource, spark: Any, tmp_path: Path
) -> None:
    declared = scans(tmp_path, "ill", "well", "ill", "well")
    defs = define(declared, storage=storage, spark=SparkResource(master="local[2,2]"))
    assert defs.resolve_job_def("scans_reshard_job").execute_in_process(instance=instance).success
    event = latest(instance, declared.key("shards"))
    assert event is not None
    assert facts_of(event)["samples"] == 4
    manifest = load_manifest(storage.store("scans/shards"))
    assert manifest.metadata["classes"] == ["ill", "well"]
    # Only a label changed, and no picture.
    scans(tmp_path, "ill", "well", "ill", "ill")
    assert defs.resolve_job_def("scans_reshard_job").execute_in_process(instance=instance).success
    again = latest(instance, declared.key("prepared"))
    assert again is not None
    counts = facts_of(again)["counts"].values()
    assert (facts_of(again)["prepared"], sum(split.get("ill", 0) for split in counts)) == (0, 3)
    assert load_manifest(storage.store("scans/shards")).version == 2


def test_a_changed_label_is_seen_by_the_sensor(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    declared = scans(tmp_path, "ill", "well")
    resources = {"smalti_storage": storage, "smalti_spark": SparkResource()}
    found = dg.materialize(
        [build_data(declared)], selection=[declared.key("raw")], instance=instance, resources=resources
    )
    assert found.success
    instance.report_runless_asset_event(dg.AssetMaterialization(declared.key("shards")))
    sensor = build_watch_sensor(declared, Watch(quiet_seconds=0))
    with dg.build_sensor_context(instance=instance, resources={"smalti_storage": storage}) as context:
        assert "nothing changed" in str(sensor.evaluate_tick(context).skip_message)
    scans(tmp_path, "ill", "ill")
    with dg.build_sensor_context(instance=instance, resources={"smalti_storage": storage}) as context:
        assert "the content changed" in str(sensor.evaluate_tick(context).skip_message)
