"""Exported models, loaded again without Smalti, answer as the model does."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from smalti.errors import TrainingError
from smalti.images import decode_batch
from smalti.inference import export
from smalti.torch.train import Predictor, TrainConfig
from smalti.torch.train.tasks.images import build_model
from smalti.torch.train.trainer.task import save_model
from tests.conftest import SHARED
from tests.torch.train.conftest import square

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]


def test_a_program_answers_as_the_model_for_batches_of_any_size(trained, tmp_path):
    images = [square(number) for number in range(7)]
    done = export(trained.model_dir, tmp_path / "exported", images=images)
    assert (done.images, done.weights_difference) == (7, 0.0)
    assert done.program_difference < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported"]
    extra = {"smalti.json": ""}
    program = torch.export.load(tmp_path / "exported" / "program.pt2", extra_files=extra).module()
    assert json.loads(extra["smalti.json"])["class_names"] == ["red", "green", "blue"]
    expected = Predictor(trained.model_dir)(images)
    for count in (1, 7):
        found = program(torch.from_numpy(decode_batch(images[:count], size=24)))
        assert found.argmax(dim=1).tolist() == expected["predicted"][:count].tolist()
        assert found.amax(dim=1).tolist() == pytest.approx(expected["confidence"][:count].tolist(), abs=1e-5)
    assert Predictor(tmp_path / "exported").config == Predictor(trained.model_dir).config


def test_nothing_is_left_of_an_export_that_fails_and_nothing_replaced(trained, tmp_path):
    predictor = Predictor(trained.model_dir)
    predictor.model = _Branching()
    with pytest.raises(TrainingError, match="torch cannot export the model"):
        export(predictor, tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []
    predictor.model = _Other(3)
    with pytest.raises(TrainingError, match=r"model\.safetensors was loaded again, and its probabilities differ"):
        export(predictor, tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileExistsError, match="exists"):
        export(predictor, tmp_path)


class _Other(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, pixels):
        return pixels.mean(dim=(2, 3))[:, : self.classes]


class _Branching(torch.nn.Module):
    def forward(self, pixels):
        return pixels.mean(dim=(2, 3)) if float(pixels.mean()) > 0 else pixels.amax(dim=(2, 3))


@pytest.mark.nightly
def test_an_exported_mobilenet_answers_as_the_model_on_real_photos(tmp_path):
    photos = sorted((SHARED / "flowers").glob("*/*.jpg"))[::50]
    if not photos:
        pytest.skip("there are no photos in ../shared/flowers")
    config = TrainConfig(data="none", run_dir="none", task_options={"class_names": list("abcde"), "num_classes": 5})
    save_model(build_model(config), config, tmp_path / "model")
    done = export(tmp_path / "model", tmp_path / "exported", images=[path.read_bytes() for path in photos])
    assert done.images == len(photos) >= 5
    assert max(done.weights_difference, done.program_difference) < 1e-4


def test_the_documented_calls_run(trained, squares, tmp_path, monkeypatch, capsys):
    """Those of docs/inference.md, with folders of this machine, in this process."""
    text = (ROOT / "docs/inference.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)  # the second one: code_location/test_kinds.py
    code = code.replace("s3://bucket/runs/flowers-1/model", trained.model_dir).replace("s3://bucket/flowers", "set")
    code = code.replace('launcher="processes", num_processes=2', "timeout_seconds=60.0")
    shutil.copytree(squares, tmp_path / "set")
    (tmp_path / "new-photos").mkdir()
    (tmp_path / "new-photos" / "1.jpg").write_bytes(square(1))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert names["table"].num_rows == 1
    assert names["manifest"].version == 2
    assert capsys.readouterr().out.startswith(f"{trained.accuracy} ")
