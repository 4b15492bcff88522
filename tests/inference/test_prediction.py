"""Predictions for folders, DataFrames and shard sets are those of the model on the same images, one by one."""

import io
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from smalti.dataset import StreamingDataset
from smalti.errors import BadImageError, SchemaError, StoreNotFound, TrainingError
from smalti.images import decode_batch
from smalti.inference import predict
from smalti.storage import open_store
from smalti.torch.train import Predictor
from smalti.torch.train.tracking.served_model import _load_pyfunc
from smalti.torch.train.trainer.task import load_model
from tests.torch.train.conftest import publish_squares, square

pytestmark = pytest.mark.torch

COLOURS = ("red", "green", "blue")
NUMBERS = range(1000, 1010)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def expected(trained):
    """Return class and confidence by number of the square, by the model itself, one image at a time."""
    model, _ = load_model(Path(trained.model_dir))
    found = {}
    for number in NUMBERS:
        pixels = (decode_batch([square(number)], size=24) / 255 - MEAN) / STD
        with torch.inference_mode():
            scores = model.eval()(torch.tensor(pixels, dtype=torch.float32).permute(0, 3, 1, 2))
        confidence, label = scores[0].softmax(0).max(0)
        found[number] = (int(label), COLOURS[int(label)], pytest.approx(float(confidence), abs=1e-4))
    assert {label for label, _, _ in found.values()} > {0}  # not one class for all
    return found


def rows_of(table):
    return list(zip(table["predicted"], table["predicted_name"], table["confidence"], strict=True))


def test_a_folder_becomes_a_table_of_its_images_by_path(trained, tmp_path, expected):
    for number in NUMBERS:
        path = tmp_path / ("inner" if number % 2 else ".") / f"{number}.JPG"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(square(number))
    (tmp_path / "notes.txt").write_text("not an image")
    table = predict(Predictor(trained.model_dir, batch_size=4), tmp_path).to_pydict()
    evens, odds = list(NUMBERS)[::2], list(NUMBERS)[1::2]
    assert table["path"] == [f"{n}.JPG" for n in evens] + [f"inner/{n}.JPG" for n in odds]
    assert rows_of(table) == [expected[n] for n in evens + odds]


def test_a_photo_is_turned_as_its_camera_says_but_not_a_sample_of_a_shard_set(trained):
    rng = np.random.default_rng(0)
    upright = rng.integers(0, 256, (24, 24, 3), np.uint8)
    turned, tag = io.BytesIO(), Image.Exif()
    tag[0x0112] = 6  # to be turned right by 90 degrees
    Image.fromarray(np.rot90(upright)).save(turned, "PNG", exif=tag)
    predictor = Predictor(trained.model_dir)
    found = predictor.probabilities([turned.getvalue()])
    assert torch.equal(found, predictor.of_pixels(upright[None]))
    as_stored = predictor.probabilities([turned.getvalue()], upright=False)
    assert torch.equal(as_stored, predictor.of_pixels(np.rot90(upright)[None].copy()))


def test_a_model_in_mlflow_answers_as_the_predictor(trained):
    pixels = np.stack([decode_batch([square(number)], size=24)[0] for number in NUMBERS])
    served = _load_pyfunc(trained.model_dir).predict(pixels)
    assert served.dtype == np.float32
    assert served == pytest.approx(Predictor(trained.model_dir).of_pixels(pixels).numpy(), abs=1e-5)


def test_a_frame_of_pandas_keeps_its_columns_and_index(trained, expected):
    frame = pd.DataFrame({"n": list(NUMBERS), "image": [square(n) for n in NUMBERS]}, index=range(90, 100))
    found = predict(trained.model_dir, frame, prefix="p_")
    assert list(found.columns) == ["n", "image", "p_predicted", "p_predicted_name", "p_confidence"]
    assert list(found.index) == list(range(90, 100))
    assert rows_of({name.removeprefix("p_"): found[name] for name in found.columns}) == list(expected.values())
    assert list(frame.columns) == ["n", "image"]
    assert len(predict(trained.model_dir, frame[:0])) == 0


def test_a_shard_set_gets_the_columns_in_a_new_version(trained, tmp_path):
    publish_squares(tmp_path / "set", train=5)
    manifest = predict(trained.model_dir, str(tmp_path / "set"))
    assert manifest.version == 2
    samples = list(StreamingDataset(remote=str(tmp_path / "set"), split="validation", batch_size=1))
    rows = [(each["predicted"], each["predicted_name"]) for each in samples]
    assert len(rows) == 14
    assert sum(label == each["label"] for (label, _), each in zip(rows, samples, strict=True)) == round(
        trained.accuracy * 14
    )
    assert {COLOURS[label] == name for label, name in rows} == {True}


def test_a_bad_image_is_named(trained, tmp_path):
    (tmp_path / "good.jpg").write_bytes(square(1))
    (tmp_path / "poor.jpg").write_bytes(square(2)[:40])
    predictor = Predictor(trained.model_dir, batch_size=1)
    with pytest.raises(BadImageError, match=r"^poor\.jpg: "):
        predict(predictor, tmp_path)
    frame = pd.DataFrame({"image": [square(1), b"", None]}, index=["a", "b", "c"])
    with pytest.raises(BadImageError, match="row 'b' of 'image': "):
        predict(predictor, frame[:2])
    with pytest.raises(SchemaError, match="row 'c' of 'image' is NoneType, expected the bytes"):
        predict(predictor, frame)


def test_what_cannot_be_predicted_is_refused(trained, squares, tmp_path):
    with pytest.raises(StoreNotFound, match="neither a shard set nor images"):
        predict(trained.model_dir, tmp_path)
    with pytest.raises(SchemaError, match="no column 'image' of images; the columns are a"):
        predict(trained.model_dir, pd.DataFrame({"a": [1]}))
    with pytest.raises(SchemaError, match="a column 'predicted' already"):
        predict(trained.model_dir, pd.DataFrame({"image": [b""], "predicted": [0]}))
    with pytest.raises(SchemaError, match="no column 'photo' of images; the columns are image, label"):
        predict(trained.model_dir, str(squares), column="photo")
    with pytest.raises(TrainingError, match=r"smalti\.json is missing"):
        predict(str(tmp_path), pd.DataFrame({"image": []}))


def test_a_sent_predictor_is_loaded_once_and_needs_no_files(trained, tmp_path):
    shutil.copytree(trained.model_dir, tmp_path / "model")
    sent = [pickle.dumps(Predictor(tmp_path / "model")) for _ in range(2)]
    shutil.rmtree(tmp_path / "model")
    first, second = map(pickle.loads, sent)
    assert first is second
    assert first([square(1000)])["predicted_name"][0] in COLOURS


def test_by_its_address_a_model_that_was_replaced_is_refused(trained):
    store = open_store("memory://models/squares")
    for path in Path(trained.model_dir).iterdir():
        store.put(path.name, path.read_bytes())
    predictor = Predictor("memory://models/squares")
    sent = pickle.dumps(predictor)
    assert Path(trained.model_dir, "model.safetensors").read_bytes()[-500:] not in sent
    assert pickle.loads(sent).digest == predictor.digest
    newer = pickle.dumps(predictor).replace(predictor.digest.encode(), b"0" * 64)
    with pytest.raises(TrainingError, match="was replaced while it was in use"):
        pickle.loads(newer)
