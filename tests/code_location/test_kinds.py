"""Clips, sounds and masks, these as docs/multimodal.md shows: declared and trained, then evaluated and predicted."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from smalti.dataset import StreamingDataset
from smalti.inference import predict
from smalti.torch.train import Predictor, evaluate_model
from smalti_dagster.data_set import DataSet
from smalti_dagster.resources.storage import StorageResource
from tests.code_location.row_set import Rows
from tests.docs.guide import Guide

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.torch]

SPLITS = ["train"] * 12 + ["validation"] * 4

CLIPS = {
    "name": "clips",
    "source": {"table": "/data/clips", "format": "parquet"},
    "split": {"column": "split"},
    "train": {"task": "clips_task:Clips", "epochs": 1, "batch_size": 4, "options": {"learning_rate": 0.1}},
}
Declare = Callable[[dict[str, Any], str, dict[str, Any]], Rows]


@pytest.fixture
def declare(
    instance: dg.DagsterInstance,
    storage: StorageResource,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Declare:
    """A function that declares a set, with the code of its task, from a table with these columns."""

    def declared(attributes: dict[str, Any], code: str, columns: dict[str, Any]) -> Rows:
        name = attributes["name"]
        pq.write_table(pa.table({**columns, "split": SPLITS}), tmp_path / "table")
        (tmp_path / f"{name}_task.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, f"{name}_task", raising=False)
        assert DataSet.resolve_from_yaml(yaml.safe_dump(attributes)).name == name
        fields = {key: value for key, value in attributes.items() if key != "name"}
        return Rows(instance, storage, **{**fields, "source": {**fields["source"], "table": str(tmp_path / "table")}})

    return declared


def trained(rows: Rows, folder: Path) -> tuple[dict[str, Any], str, str]:
    """Write and train a declared set; return what the model says, its address, and that of the set."""
    shards = rows.run()["shards"]
    assert (shards["samples"], shards["splits"]) == (16, "train, validation")
    facts = rows.train(folder / "runs")
    assert (facts["steps"], facts["held_out_rows"]) == (3, 4)
    return facts, str(facts["model"]), rows.place.url


def held_out(url: str) -> list[dict[str, Any]]:
    dataset = StreamingDataset(remote=url, split="validation", shuffle=False)
    return [dict(dataset[at]) for at in range(len(dataset))]


def video(levels: list[int]) -> bytes:
    """A video of grey frames."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=8)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for level in levels:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), level, np.uint8), format="rgb24")))
        out.mux(stream.encode())
    return file.getvalue()


def sound(level: int, steps: int) -> bytes:
    """A sound of a length of its own, as FLAC."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=8000, layout="mono", format="s16")
        wanted = (np.sin(np.arange(steps)) * level).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(wanted, format="s16", layout="mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


def test_clips_and_sounds_are_declared_trained_evaluated_and_predicted(declare: Declare, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed: pip install av")
    kinds = ["rising" if number % 2 else "fading" for number in range(16)]
    lights = [[20, 120, 220] if kind == "rising" else [220, 120, 20] for kind in kinds]
    columns = {
        "video": [video(levels) for levels in lights],
        "sound": [sound(1000 + 500 * number, 400 + 40 * number) for number in range(16)],
        "kind": kinds,
    }
    rows = declare(CLIPS, Path(__file__).with_name("clips_task.py").read_text(), columns)
    facts, model, data = trained(rows, tmp_path)
    figures = evaluate_model(model, data)
    assert (figures.samples, figures.accuracy, figures.classes) == (4, pytest.approx(facts["accuracy"]), ())
    assert figures.loss == pytest.approx(facts["loss"], rel=1e-4)

    assert predict(model, data).version == 2
    samples = held_out(data)
    assert [bytes(each["video"]) for each in samples] == columns["video"][12:]
    right = sum(each["predicted_kind"] == each["kind"] for each in samples)
    assert right / 4 == facts["accuracy"]
    alone = {name: values[12:] for name, values in columns.items() if name != "kind"}  # their kind is not known
    answers = Predictor(model)(alone)
    assert answers["predicted_kind"].tolist() == [each["predicted_kind"] for each in samples]
    assert answers["confidence"] == pytest.approx([each["confidence"] for each in samples], abs=1e-5)


def test_masks_are_declared_trained_evaluated_and_predicted_as_the_page_says(
    declare: Declare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masks = [np.zeros((16, 16), np.uint8) for _ in range(16)]
    for number, mask in enumerate(masks):
        top, left = divmod(number, 4)
        mask[top : top + 12, left : left + 12] = 1

    def encoded(pixels: Any, form: str) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, form)
        return file.getvalue()

    photos = [np.stack([40 + 20 * mask, 40 + 180 * mask, 40 + 20 * mask], axis=2).astype(np.uint8) for mask in masks]
    columns = {
        "image": [encoded(pixels, "JPEG") for pixels in photos],
        "mask": [encoded(mask, "PNG") for mask in masks],
    }
    guide = Guide("multimodal.md")
    attributes = yaml.safe_load(guide.block("yaml", "name: leaves"))["attributes"]
    rows = declare(attributes, guide.block("python", "class Leaves(Task)"), columns)
    facts, model, data = trained(rows, tmp_path)
    assert facts["main_value"] == facts["iou"]

    code = Guide("inference.md").block("python", "predicted_mask")
    for old, new in (("s3://bucket/runs/leaves-1/model", model), ("s3://bucket/leaves", data)):
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["figures"].metrics == pytest.approx({name: facts[name] for name in ("loss", "iou")}, rel=1e-4)
    assert capsys.readouterr().out.endswith(" 4\n(16, 16) (16, 16)\n")

    both = either = 0
    for sample, mask in zip(held_out(data), masks[12:], strict=True):
        both += np.sum((sample["predicted_mask"] > 0) & (mask > 0))
        either += np.sum((sample["predicted_mask"] > 0) | (mask > 0))
    assert both / either == pytest.approx(facts["iou"], abs=1e-5)
    assert both > 0
    assert names["manifest"].version == 2
