"""Models of any task, of the examples and a user's: what is predicted for sets and DataFrames, and their evaluation."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from smalti.catalog.sidecars import columns_of
from smalti.dataset import StreamingDataset
from smalti.errors import SchemaError, TrainingError
from smalti.inference import export, predict
from smalti.torch.train import Predictor, Task, TrainConfig, evaluate_model
from smalti.torch.train.trainer.task import load_model, name_of, save_model, task_of
from tests.torch.train.test_tasks import LANGUAGE, SPLITS, TABULAR, TINY, publish_splits, row
from tests.torch.train.tiny_tasks import Line

pytestmark = pytest.mark.torch

ROWS = [row(number) for number in SPLITS["validation"]]
FRAME = pd.DataFrame({name: [each[name] for each in ROWS] for name in ("a", "b", "y")})
COLUMNS = {"a": "float64", "b": "float64", "y": "float64", "tokens": "ndarray:int32:12"}


@pytest.fixture
def saved(tmp_path):
    """A function that returns the address of an untrained model of a task."""

    def save(task, **fields):
        given = task if isinstance(task, Task) else None
        config = TrainConfig(data="none", run_dir="none", task=name_of(given) if given else task, **fields)
        torch.manual_seed(1)
        save_model(task_of(config, given).build_model(config), config, tmp_path / "model", given)
        return str(tmp_path / "model")

    return save


@pytest.fixture
def rows(tmp_path):
    """Root of a shard set with three splits."""
    publish_splits(tmp_path / "set", COLUMNS, row)
    return str(tmp_path / "set")


def weighted(model, task=None):
    """Return what a `Line` says of the held-out rows, by its weights."""
    line, _ = load_model(Path(model), task)
    inputs = FRAME[["a", "b"]].to_numpy(np.float32)
    return inputs @ line.weight.detach().numpy()[0] + float(line.bias.detach())


def held_out(root):
    dataset = StreamingDataset(remote=root, split="validation", shuffle=False)
    return [dataset[at] for at in range(len(dataset))]


def test_a_task_without_predictions_gives_the_outputs_of_its_loss_to_each_sample(saved, rows):
    model = saved(f"{TINY}:Line")
    assert predict(model, rows, prefix="v1_").schema.columns()["y"] == "float64"
    samples = held_out(rows)
    assert [each["v1_output"] for each in samples] == pytest.approx(weighted(model).tolist(), abs=1e-5)
    assert samples[3]["y"] == ROWS[3]["y"]
    found = predict(Predictor(model, batch_size=4), FRAME)
    assert list(found.columns) == ["a", "b", "y", "output"]
    assert found["output"].tolist() == pytest.approx(weighted(model).tolist(), abs=1e-5)


def test_a_regression_predicts_in_the_units_of_its_target_which_need_not_be_there(saved):
    scaled = {**TABULAR["task_options"], "target_mean": 5.0, "target_scale": 10.0}
    model = saved(TABULAR["task"], task_options=scaled)
    network, _ = load_model(Path(model))
    with torch.inference_mode():
        outputs = network.eval()(torch.from_numpy(FRAME[["a", "b"]].to_numpy(np.float32))).numpy()[:, 0]
    found = predict(model, FRAME.drop(columns="y").set_index(FRAME.index + 50))
    assert found["predicted"].tolist() == pytest.approx((outputs * 10 + 5).tolist(), rel=1e-4)
    assert list(found.index) == list(range(50, 64))
    assert len(predict(model, FRAME[:0])["predicted"]) == 0


@pytest.mark.parametrize(("ignore", "last"), [(None, 11), (0, 10)])
def test_a_language_model_predicts_the_token_after_each_block(saved, ignore, last):
    model = saved(LANGUAGE["task"], task_options={**LANGUAGE["task_options"], "ignore": ignore})
    tokens = np.array([[1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 0]] * 3, np.int32)
    found = Predictor(model)({"tokens": tokens})
    network, _ = load_model(Path(model))
    with torch.inference_mode():
        scores = network.eval()(torch.from_numpy(tokens[:1]).long()).logits[0, last].softmax(0)
    assert found["predicted"].tolist() == [int(scores.argmax())] * 3
    assert found["confidence"].tolist() == pytest.approx([float(scores.max())] * 3, rel=1e-4)


class Words(Task):
    """Values of several kinds, of samples that its transform decodes one by one."""

    def build_model(self, config):
        return torch.nn.Linear(1, 1)

    def transform(self, config, *, training):
        return lambda sample: {"number": float(sample["text"].split()[1]), "length": len(sample["text"])}

    def predictions(self, model, batch, config):
        longest = max(int(number) for number in batch["number"].tolist())
        return {
            "word": [f"n{number:.0f}" for number in batch["number"].tolist()],
            "is_even": batch["number"] % 2 == 0,
            "half": batch["number"].to(torch.bfloat16) / 2,
            "padded": torch.ones(len(batch), longest + 1, 2),
            "facts": [{"length": length} for length in batch["length"].tolist()],
        }


def test_texts_arrays_and_objects_are_stored_in_encodings_of_their_own(saved, tmp_path):
    publish_splits(tmp_path / "words", {"text": "str"}, lambda number: {"text": f"number {number % 7}"})
    task = Words()
    manifest = predict(Predictor(saved(task), batch_size=1, task=task), str(tmp_path / "words"))
    sample = held_out(str(tmp_path / "words"))[0]  # number 100 % 7 = 2
    assert (sample["word"], sample["is_even"], sample["half"], sample["facts"]) == ("n2", 1, 1.0, {"length": 8})
    assert (sample["padded"].dtype, sample["padded"].shape) == (np.float32, (3, 2))
    (added,) = columns_of(manifest.sidecars)
    assert added.columns == {
        "word": "str", "is_even": "uint8", "half": "float32", "padded": "ndarray:float32", "facts": "json",
    }  # fmt: skip


def test_a_task_that_was_given_as_an_object_is_given_again_and_sent_with_the_model(saved, rows):
    class Mine(Line):  # known nowhere else: it is sent with its code
        def predictions(self, model, batch, config):
            return {"sign": self.loss(model, batch, config).outputs > 0}

    model = saved(Mine())
    with pytest.raises(SchemaError, match="given as an object"):
        predict(model, FRAME)
    found = predict(model, FRAME, task=Mine())
    assert found["sign"].tolist() == (weighted(model, Mine()) > 0).astype(int).tolist()
    first, second = (pickle.loads(pickle.dumps(Predictor(model, task=task))) for task in (Mine(), Line()))
    assert first({"a": [1.0], "b": [2.0], "y": [0.0]}).keys() == {"sign"}
    assert second({"a": [1.0], "b": [2.0], "y": [0.0]}).keys() == {"output"}
    figures = evaluate_model(model, rows, task=Mine(), device="cpu")
    assert figures.metrics["error"] == pytest.approx(np.abs(weighted(model, Mine()) - FRAME["y"]).mean(), rel=1e-4)


def test_figures_of_an_evaluation_are_those_of_the_task_with_its_report(saved, rows):
    class Reporting(Line):
        def report(self, config, device):
            return Largest()

    model = saved(Reporting())
    figures = evaluate_model(model, rows, task=Reporting(), batch_size=4, device="cpu")
    errors = weighted(model, Reporting()) - FRAME["y"]
    assert (figures.samples, figures.version, figures.accuracy, figures.classes) == (14, 1, None, ())
    assert figures.loss == figures.metrics["loss"] == pytest.approx(np.square(errors).mean(), rel=1e-4)
    assert figures.report == {"largest": pytest.approx(np.square(errors).max(), rel=1e-4)}
    unknown = {**TABULAR["task_options"], "features": ["c"]}
    with pytest.raises(SchemaError, match="reads the column 'c'"):
        evaluate_model(saved(TABULAR["task"], task_options=unknown), rows)


class Largest:
    """A report with the largest loss."""

    value = 0.0

    def add(self, batch, outcome):
        self.value = max(self.value, float((outcome.losses * batch.weights).max()))

    def summary(self, ranks):
        return {"largest": max(ranks.gather(self.value, "find the largest"))}


class WithoutOutputs(Line):
    def loss(self, model, batch, config):
        return super().loss(model, batch, config).losses


class OneForAll(Line):
    def predictions(self, model, batch, config):
        return {"mean": torch.zeros(1)}


@pytest.mark.parametrize(
    ("task", "source", "error", "words"),
    [
        (Line, FRAME.drop(columns="y"), SchemaError, "asks for 'y', and the samples have the columns a, b"),
        (Line, FRAME.assign(output=1), SchemaError, "a column 'output' already; the columns are a, b, y, output"),
        (Line, FRAME[:0], TrainingError, "no samples to predict"),
        (WithoutOutputs, FRAME, TrainingError, r"returned no outputs.* `Outcome\(losses, outputs=...\)`"),
        (OneForAll, FRAME, TrainingError, r"predicted `mean` as \(1,\) for 2 samples; expected one row for each"),
    ],
)
def test_what_a_task_cannot_predict_is_named(saved, task, source, error, words):
    with pytest.raises(error, match=words):
        predict(saved(task()), source, task=task())


def test_what_is_for_images_names_the_task_that_is_not(saved, tmp_path):
    model = saved(**TABULAR)
    (tmp_path / "photos").mkdir()
    for call in (
        lambda: predict(model, tmp_path / "photos"),
        lambda: predict(model, FRAME, column="a"),
        lambda: Predictor(model).probabilities([b""]),
        lambda: export(model, tmp_path / "exported"),
    ):
        with pytest.raises(
            TrainingError, match=r"trained for the task '.*TabularRegression', and this needs an image cl"
        ):
            call()
