"""A saved model on versions that it was not trained on, by one rank and by several."""

from dataclasses import replace

import pytest
import torch

from smalti.errors import CatalogError, TrainingError
from smalti.torch.train import evaluate_model
from smalti.torch.train.tasks.images import build_model
from smalti.torch.train.trainer.task import load_model, save_model
from tests.torch.train.conftest import publish_squares

pytestmark = pytest.mark.torch

COLOURS = ("red", "green", "blue")


def test_on_its_own_version_the_figures_are_those_of_the_training(trained, squares):
    found, said = evaluate_model(trained.model_dir, str(squares), class_names=COLOURS), trained.history[-1]
    assert (found.version, found.samples, found.accuracy) == (1, 14, trained.accuracy)
    assert [list(row) for row in found.confusion] == said["confusion"]
    assert [each["sample_id"] for each in found.most_wrong] == [each["sample_id"] for each in said["most_wrong"]]
    assert found.loss == pytest.approx(trained.loss, abs=1e-5)


@pytest.mark.slow
@pytest.mark.nightly  # beside the evaluation of two processes in `launch/test_processes.py`
def test_two_processes_count_each_sample_once_as_one_does(trained, squares):
    """14 samples in steps of 4: the last step is padded on the second rank, and the second has two steps less."""
    here, there = (
        evaluate_model(trained.model_dir, str(squares), batch_size=4, timeout_seconds=280.0, **options)
        for options in ({}, {"launcher": "processes", "num_processes": 2})
    )
    assert (there.samples, there.accuracy, there.confusion) == (14, here.accuracy, here.confusion)
    assert [each["sample_id"] for each in there.most_wrong] == [each["sample_id"] for each in here.most_wrong]


def test_classes_are_compared_by_name_and_not_by_number(trained, tmp_path):
    publish_squares(
        tmp_path / "set", label=lambda number: (number + 1) % 3, metadata={"classes": ["blue", "red", "green"]}
    )
    found = evaluate_model(trained.model_dir, str(tmp_path / "set"))
    assert (found.accuracy, found.classes) == (trained.accuracy, ("blue", "red", "green"))


def test_samples_of_a_class_that_it_does_not_know_are_wrong(trained, squares):
    confusion = trained.history[-1]["confusion"]
    found = evaluate_model(trained.model_dir, str(squares), class_names=("red", "green", "violet"))
    assert found.accuracy == pytest.approx((confusion[0][0] + confusion[1][1]) / 14)
    assert found.classes == ("red", "green", "violet", "blue")
    assert [sum(row) for row in found.confusion] == [sum(row) for row in confusion] + [0]
    assert [row[2] for row in found.confusion] == [0, 0, 0, 0]


def test_a_split_that_the_version_does_not_have_is_refused(trained, squares):
    with pytest.raises(CatalogError, match="no split 'test'"):
        evaluate_model(trained.model_dir, str(squares), class_names=COLOURS, split="test")


def test_a_folder_without_a_model_is_refused(squares, tmp_path):
    with pytest.raises(TrainingError, match=r"smalti\.json is missing"):
        evaluate_model(str(tmp_path), str(squares))


def test_a_model_of_transformers_is_loaded_as_it_was_saved(config, tmp_path):
    settings = replace(config, model="mobilenet_v2")
    model = build_model(settings).eval()
    save_model(model, settings, tmp_path / "model")
    loaded, found = load_model(tmp_path / "model")
    pixels = torch.rand(2, 3, 24, 24)
    with torch.inference_mode():
        assert torch.equal(model(pixels).logits, loaded.eval()(pixels).logits)
    assert found.task_options["class_names"] == list(COLOURS)
