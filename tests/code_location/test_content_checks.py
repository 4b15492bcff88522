"""Checks of what images hold, in runs of the graph: files that are no images, and images that are alike."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from PIL import Image

from pipelines.home import REPOSITORY
from smalti.catalog import tags
from smalti.storage import open_store
from smalti_dagster.lineage import CHECKED_IN
from tests.code_location.events import op_config
from tests.code_location.graph import Graph
from tests.code_location.instances import instance_in_memory

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PHOTOS = REPOSITORY.parent / "shared" / "flowers"


@pytest.fixture
def graph(tmp_path: Path, session: Any) -> Iterator[Graph]:
    """Real photos of two classes, twelve of each."""
    found = {name: sorted((PHOTOS / name).glob("*.jpg"))[:12] for name in ("daisy", "roses")}
    if not all(found.values()):
        pytest.skip(f"{PHOTOS} is not there")
    for name, paths in found.items():
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number, path in enumerate(paths):
            (folder / f"{number:02}.jpg").write_bytes(path.read_bytes())
    with instance_in_memory() as instance:
        yield Graph(instance, tmp_path / "photos", tmp_path / "data")


def run(graph: Graph, **prepared: Any) -> tuple[bool, dict[str, dg.AssetCheckEvaluation]]:
    """One run; whether it succeeded, and its checks."""
    job = graph.defs().resolve_job_def("flowers_reshard_job")
    config = op_config({"prepared": prepared})
    done = job.execute_in_process(instance=graph.instance, run_config=config, raise_on_error=False)
    return done.success, {each.check_name: each for each in done.get_asset_check_evaluations()}


def test_bad_images_up_to_a_share_are_left_out_more_stop_the_run_and_accepting_them_prepares_nothing_again(
    graph: Graph,
) -> None:
    (graph.photos / "roses" / "empty.jpg").write_bytes(b"")
    is_done, checks = run(graph)
    assert is_done
    assert "1 of 25 files are no usable images: roses/empty.jpg" in str(checks["few_images_were_left_out"].description)

    (graph.photos / "daisy" / "notes.jpg").write_bytes(b"not an image")
    is_done, checks = run(graph)
    bad = checks["few_images_were_left_out"]
    assert not is_done
    assert not bad.passed
    assert bad.severity is dg.AssetCheckSeverity.ERROR
    assert "At most 1 may be left out" in str(bad.description)
    assert "max_bad_share: 0.077`" in str(bad.description)
    assert tags(open_store(graph.place)) == {"checked": 1}

    is_done, checks = run(graph, max_bad_share=0.1)
    assert is_done
    assert checks["few_images_were_left_out"].metadata["may_be_left_out"].value == 3
    assert graph.facts("prepared")["prepared"] == 0
    is_done, checks = run(graph, on_bad_image="fail")
    assert not is_done
    assert graph.facts("prepared")["prepared"] == 0


def test_copies_of_photos_are_shown_once_and_an_unchanged_run_repeats_the_warning_without_reading(graph: Graph) -> None:
    is_done, checks = run(graph)
    assert is_done
    assert checks["few_near_duplicates"].passed
    assert checks["no_split_leakage"].passed
    for number in range(12):  # a smaller copy of each daisy, with another name and at times in the other split
        photo, out = Image.open(graph.photos / "daisy" / f"{number:02}.jpg"), io.BytesIO()
        photo.resize((photo.width // 2, photo.height // 2)).save(out, "JPEG", quality=60)
        name = "roses/mistaken.jpg" if number == 0 else f"daisy/copy {number}.jpg"
        (graph.photos / name).write_bytes(out.getvalue())
    is_done, checks = run(graph)
    assert is_done
    near, leaks = checks["few_near_duplicates"], checks["no_split_leakage"]
    assert (near.passed, leaks.passed) == (False, False)
    assert near.severity is leaks.severity is dg.AssetCheckSeverity.WARN
    assert near.metadata["near_duplicates"].value == 20  # at 16 pixels, two of the twelve copies differ in nine bits
    assert near.metadata["like_one_of_another_class"].value == 2
    shown: Any = near.metadata["pairs"]
    first = shown.records[0].data
    assert {first["image"], first["is like"]} == {"daisy/00.jpg", "roses/mistaken.jpg"}
    assert "![" in str(near.metadata["pictures"].value)
    assert "are near-duplicates of images that are trained on" in str(leaks.description)
    assert tags(open_store(graph.place)) == {"checked": 2}

    _, again = run(graph)
    for name in ("few_near_duplicates", "no_split_leakage"):
        assert CHECKED_IN in again[name].metadata
        assert again[name].description == checks[name].description
