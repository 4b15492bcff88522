"""The whole graph on a few drawn flowers, run as `make demo` runs it, and looked at as the UI looks at it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipelines.home import REPOSITORY
from smalti.catalog import load_manifest, tags
from smalti.storage import open_store
from smalti_dagster.declaration.configuration import OVERRIDDEN
from smalti_dagster.lineage import DATA_SET_TAG, TRAINS_TAG, facts_of, latest
from smalti_dagster.reports.pictures import INLINE_LIMIT
from smalti_dagster.resources.storage import LocalStorage
from smalti_dagster.shard_tags import CHECKED
from tests.code_location.documented_keys import documented_keys
from tests.code_location.shipped import defs

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.torch, pytest.mark.process, pytest.mark.timeout(400)]

PER_CLASS = 6
CHECKS = {
    "every_class_can_be_split": True,
    "few_images_were_left_out": True,
    "every_row_is_in_the_shards": True,
    "hashes_verify": True,
    "no_class_vanished": True,
    "class_balance_is_kept": True,
    "few_near_duplicates": True,
    "no_split_leakage": True,
    "accuracy_is_above_chance": False,  # nothing is learned from 24 images in one epoch
    "accuracy_has_not_dropped": True,  # nothing is promoted yet
}


@dataclass(frozen=True)
class Demo:
    """A place where the demo was run, and what it said."""

    home: Path
    data: Path
    output: str

    def again(self, *arguments: str) -> str:
        return run(self.home, self.data, *arguments)


def run(home: Path, data: Path, *arguments: str) -> str:
    options = ["--images-per-class", str(PER_CLASS), "--image-size", "32", "--epochs", "1", *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.demo", *options],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "DAGSTER_HOME": str(home),
            "SMALTI_ROOT": str(data),
            "SMALTI_DEPLOYMENT": "local",
            "SOURCE": "",
            "FLOWERS_URL": "",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    place = tmp_path_factory.mktemp("demo")
    home, data = place / "dagster", place / "data"
    return Demo(home, data, run(home, data))


@pytest.fixture
def opened(demo: Demo) -> Iterator[dg.DagsterInstance]:
    """The instance that `make ui` would open."""
    with dg.DagsterInstance.from_config(str(demo.home)) as instance:
        yield instance


def facts(instance: dg.DagsterInstance, stage: str) -> dict[str, Any]:
    event = latest(instance, dg.AssetKey(["flowers", stage]))
    assert event is not None
    return facts_of(event)


def test_it_shows_progress_and_ends_with_the_summary(demo: Demo) -> None:
    lines = demo.output.splitlines()
    for stage in ("[1/4] flowers/raw", "[2/4] flowers/prepared", "[3/4] flowers/shards", "[4/4] flowers/model"):
        assert stage in lines
    assert any("epoch 1 of 1: held-out accuracy" in line and "images/s" in line for line in lines)
    said = lines[lines.index("      check accuracy is above chance: FAILED") + 1]
    assert said.endswith("train for more epochs, or with other options.")
    summary = demo.output[demo.output.index("Done in ") :]
    for part in (
        f"{5 * PER_CLASS} read from",
        " bytes, in ",
        "version   1, digest ",
        "accuracy  ",
        "model     ",
        "make ui",
    ):
        assert part in summary


def test_the_ui_finds_every_asset_with_what_a_person_wants_to_see(opened: dg.DagsterInstance) -> None:
    assert facts(opened, "raw")["images"] == 5 * PER_CLASS
    rows = facts(opened, "prepared")
    assert rows["counts"]["train"] == dict.fromkeys(["daisy", "dandelion", "roses", "sunflowers", "tulips"], 5)
    assert rows["dagster/row_count"] == 5 * PER_CLASS
    shards, model = facts(opened, "shards"), facts(opened, "model")
    assert shards["samples"] == 5 * PER_CLASS
    assert model["held_out_images"] == 5
    assert (model["shards_version"], model["shards_digest"]) == (shards["version"], shards["digest"])
    assert (Path(model["model"]) / "model.safetensors").is_file()
    for teaser in (facts(opened, "raw")["samples"], rows["samples"], model["curves"]):
        assert len(teaser) < INLINE_LIMIT
    for picture in (
        facts(opened, "raw")["gallery"],
        rows["gallery"],
        model["curves_picture"],
        model["confusion_picture"],
        model["most_wrong_gallery"],
    ):
        assert picture.count("data:image/") >= 1
    for stage in ("raw", "prepared", "shards", "model"):
        assert facts(opened, stage).keys() <= documented_keys(stage)


def test_every_check_was_made(opened: dg.DagsterInstance) -> None:
    graph = defs.resolve_asset_graph()
    keys = [key for key in graph.asset_check_keys if key.asset_key.path[0] == "flowers"]
    records = opened.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    found = {key.name: record.status.value == "SUCCEEDED" for key, record in records.items()}
    assert found == CHECKS


def test_j9_outputs_are_records_and_nothing_is_pickled(demo: Demo) -> None:
    kept = {path.relative_to(demo.home) for path in (demo.home / "storage").rglob("*") if path.is_file()}
    assert [path for path in kept if "compute_logs" not in path.parts and path.suffix != ".db"] == []


def test_each_epoch_is_an_observation_with_the_curves_so_far(opened: dg.DagsterInstance) -> None:
    records = opened.fetch_observations(dg.AssetKey(["flowers", "model"]), limit=100).records
    found = [record.event_log_entry.asset_observation for record in records]
    # On a busy machine an epoch takes so long that a step of it is observed, too.
    of_epochs = [each for each in found if each is not None and "step" not in each.metadata]
    assert [each.metadata["progress"].value for each in of_epochs] == ["epoch 1 of 1"]


def test_the_training_is_known_by_the_digest_of_its_version(demo: Demo, opened: dg.DagsterInstance) -> None:
    store = open_store(demo.data / "flowers" / "shards")
    digest = load_manifest(store).digest
    assert tags(store) == {CHECKED: 1}
    assert opened.get_runs_count(dg.RunsFilter(tags={TRAINS_TAG: digest, DATA_SET_TAG: "flowers"})) >= 1


def test_automatic_training_does_not_follow_a_run_that_overrode_the_declared_source(
    demo: Demo, opened: dg.DagsterInstance
) -> None:
    """The demo draws fewer flowers than are declared."""
    storage = {"smalti_storage": LocalStorage(root=str(demo.data))}
    with dg.build_sensor_context(instance=opened, definitions=defs, resources=storage) as context:
        message = str(defs.resolve_sensor_def("flowers_train_sensor").evaluate_tick(context).skip_message)
    assert f"was made from generated images (per_class={PER_CLASS})" in message
    assert "the declaration says generated images (per_class=160)" in message


def test_what_the_demo_overrides_is_shown_as_such(opened: dg.DagsterInstance) -> None:
    assert facts(opened, "raw")[OVERRIDDEN] == {
        "generate_options": {"declared": {"per_class": 160}, "in this run": {"per_class": PER_CLASS}}
    }
    assert facts(opened, "prepared")[OVERRIDDEN] == {"image_size": {"declared": 96, "in this run": 32}}
    assert facts(opened, "model")[OVERRIDDEN] == {"epochs": {"declared": 30, "in this run": 1}}
    assert OVERRIDDEN not in facts(opened, "shards")


@pytest.mark.nightly  # in one process: test_incremental.py, nothing new is the same version
def test_the_same_again_is_no_new_version(demo: Demo) -> None:
    store = open_store(demo.data / "flowers" / "shards")
    before = load_manifest(store)
    assert "nothing changed since version 1" in demo.again()
    assert load_manifest(store) == before


@pytest.mark.nightly
def test_other_images_are_a_new_version_and_the_former_ones_the_same_shards_again(demo: Demo, tmp_path: Path) -> None:
    store = open_store(demo.data / "flowers" / "shards")
    before = load_manifest(store)
    photo = next((demo.data / "flowers" / "generated").rglob("daisy/*.jpg"))
    for name in ("oaks", "firs"):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"{number}.jpg").write_bytes(photo.read_bytes())
    output = demo.again("--source", str(tmp_path))
    assert "8 read from" in output
    after = load_manifest(store)
    assert (after.version, after.metadata["classes"]) == (2, ["firs", "oaks"])

    # Back to the flowers: the set goes back to the same shards and so to the same digest.
    demo.again("--replace")  # nobody named them as a source, so the classes that go would be missed
    assert tags(store) == {CHECKED: 3}
    back = load_manifest(store)
    assert (back.version, back.digest) == (3, before.digest)
