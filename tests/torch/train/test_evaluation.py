"""A saved model on versions that it was not trained on."""

from dataclasses import replace

import pytest
import torch

from smalti.errors import CatalogError
from smalti.torch.train import measure_saved_model, train
from smalti.torch.train.models import build_model, load_model, save_model
from tests.torch.train.conftest import publish_squares

pytestmark = pytest.mark.torch

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def trained(squares, tmp_path_factory):
    """The result of a training that is neither hopeless nor perfect."""
    from smalti.torch.train import TrainConfig

    return train(
        TrainConfig(
            data=str(squares), run_dir=str(tmp_path_factory.mktemp("run")), num_classes=3, class_names=COLOURS,
            image_size=24, model="tests.torch.train.tiny_models:convolution", epochs=2, batch_size=8, device="cpu",
        )
    )  # fmt: skip


def test_on_its_own_version_it_is_as_accurate_as_the_training_said(trained, squares):
    assert measure_saved_model(trained.model_dir, str(squares), version=1, class_names=COLOURS) == trained.accuracy


def test_classes_are_compared_by_name_and_not_by_number(trained, tmp_path):
    publish_squares(tmp_path / "set", label=lambda number: (number + 1) % 3)
    found = measure_saved_model(
        trained.model_dir, str(tmp_path / "set"), version=1, class_names=("blue", "red", "green")
    )
    assert found == trained.accuracy


def test_samples_of_a_class_that_it_does_not_know_are_wrong(trained, squares):
    confusion = trained.history[-1]["confusion"]
    known = (confusion[0][0] + confusion[1][1]) / 14
    found = measure_saved_model(trained.model_dir, str(squares), version=1, class_names=("red", "green", "violet"))
    assert found == pytest.approx(known)


def test_a_split_that_the_version_does_not_have_is_refused(trained, squares):
    with pytest.raises(CatalogError, match="no split 'test'"):
        measure_saved_model(trained.model_dir, str(squares), version=1, class_names=COLOURS, split="test")


def test_a_model_of_transformers_is_loaded_as_it_was_saved(config, tmp_path):
    settings = replace(config, model="mobilenet_v2", width=0.35)
    model = build_model(settings).eval()
    save_model(model, settings, tmp_path / "model")
    loaded, found = load_model(tmp_path / "model")
    pixels = torch.rand(2, 3, 24, 24)
    with torch.inference_mode():
        assert torch.equal(model(pixels).logits, loaded.eval()(pixels).logits)
    assert found.class_names == COLOURS
