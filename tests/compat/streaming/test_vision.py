"""The datasets of images: what a sample is, and what their constructors take."""

import importlib.util
import inspect
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smalti.compat.streaming import vision
from smalti.compat.streaming.vision import StreamingADE20K, StreamingCIFAR10, StreamingCOCO, StreamingImageNet
from smalti.writer import MDSWriter
from tests.format.columns import image_bytes

STUBS = Path(__file__).parents[2] / "golden" / "peer_stubs"


def write(out, columns, samples):
    with MDSWriter(out=out, columns=columns) as writer:
        for sample in samples:
            writer.write(sample)
    return str(out)


@pytest.fixture
def pictures(tmp_path):
    images = [Image.new("RGB", (3, 2), (number, 0, 255)) for number in range(4)]
    samples = [{"i": number, "x": image, "y": 10 + number} for number, image in enumerate(images)]
    return write(tmp_path / "pictures", {"i": "int", "x": "pil", "y": "int"}, samples)


def test_an_image_becomes_a_tensor_from_0_to_1_and_the_label_stays(pictures):
    dataset = StreamingCIFAR10(local=pictures, batch_size=2, num_canonical_nodes=1)
    x, y = dataset[3]
    assert x.shape == (3, 2, 3)
    assert torch.equal(x[:, 0, 0], torch.tensor([3, 0, 255]) / 255)
    assert y == 13
    assert [label for _, label in dataset] == [10, 11, 12, 13]


def test_transforms_are_applied_to_image_label_or_both(pictures):
    dataset = StreamingImageNet(
        local=pictures, batch_size=2, transform=lambda x: x.size, target_transform=lambda y: y + 1
    )
    assert dataset[0] == ((3, 2), 11)
    assert StreamingImageNet(local=pictures, batch_size=2, transforms=lambda x, y: (y, x.mode))[1] == (11, "RGB")


@pytest.mark.parametrize("other", ["transform", "target_transform"])
def test_joint_and_single_transforms_exclude_each_other(pictures, other):
    with pytest.raises(ValueError, match="Only transforms or transform/target_transform can be passed"):
        StreamingCIFAR10(local=pictures, batch_size=2, transforms=lambda *both: both, **{other: str})


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (2, 1), 51), torch.full((1, 1, 2), 0.2)),
        (Image.new("1", (2, 1), 1), torch.ones(1, 1, 2)),
        (Image.new("I", (1, 1), -70_000), torch.full((1, 1, 1), -70_000, dtype=torch.int32)),
        (Image.new("F", (1, 1), 0.5), torch.full((1, 1, 1), 0.5)),
        (np.full((1, 2, 1), 7, np.int64), torch.full((1, 1, 2), 7)),
        (np.full((1, 2), 255, np.uint8), torch.ones(1, 1, 2)),
    ],
)
def test_tensors_have_torchvisions_values(image, expected):
    found = vision.to_tensor(image)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_signatures_name_every_argument_with_mosaicmls_defaults():
    parameters = inspect.signature(StreamingCIFAR10).parameters
    assert {name: each.default for name, each in parameters.items() if each.default is not inspect.Parameter.empty} == {
        "remote": None, "local": None, "split": None, "download_retry": 2, "download_timeout": 60,
        "validate_hash": None, "keep_zip": False, "epoch_size": None, "predownload": None, "cache_limit": None,
        "partition_algo": "orig", "num_canonical_nodes": None, "shuffle": False, "shuffle_algo": "py1s",
        "shuffle_seed": 9176, "shuffle_block_size": 1 << 18, "transforms": None, "transform": None,
        "target_transform": None,
    }  # fmt: skip
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.signature(StreamingADE20K).parameters["batch_size"].default is None


def test_unknown_and_missing_arguments_are_type_errors(pictures):
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampling_method'"):
        StreamingADE20K(local=pictures, sampling_method="fixed")
    with pytest.raises(TypeError, match="batch_size"):
        StreamingCIFAR10(local=pictures)


def test_a_dataset_with_its_transforms_can_be_pickled(pictures):
    dataset = pickle.loads(pickle.dumps(StreamingCIFAR10(local=pictures, batch_size=2, target_transform=str)))
    assert dataset[2][1] == "12"


def test_an_image_is_a_pair_with_its_annotation(tmp_path):
    sample = {"uid": b"1", "x": image_bytes("JPEG", (16, 8), 3), "y": image_bytes("PNG", (16, 8), 5)}
    place = write(tmp_path / "set", {"uid": "bytes", "x": "jpeg", "y": "png"}, [sample])
    x, y = StreamingADE20K(local=place)[0]
    assert (x.format, y.format, x.size) == ("JPEG", "PNG", (16, 8))
    swapped = StreamingADE20K(
        local=place, joint_transform=lambda pair: pair[::-1], transform=lambda x: x.format, target_transform=type
    )[0]
    assert swapped == ("PNG", type(x))


def test_an_image_comes_with_its_boxes(tmp_path):
    boxes, labels = np.array([[0, 0.25, 1, 0.5]], np.float32), np.array([4])
    columns = {"img": "jpeg", "img_id": "int", "htot": "int", "wtot": "int", "bbox_sizes": "ndarray:float32",
               "bbox_labels": "ndarray:int64"}  # fmt: skip
    sample = {"img": image_bytes("JPEG", (16, 8), 3), "img_id": 7, "htot": 8, "wtot": 16, "bbox_sizes": boxes,
              "bbox_labels": labels}  # fmt: skip
    place = write(tmp_path / "set", columns, [sample])
    image, number, size, found_boxes, found_labels = StreamingCOCO(local=place)[0]
    assert (image.mode, number, size) == ("RGB", 7, (8, 16))
    np.testing.assert_array_equal(found_boxes, boxes)
    np.testing.assert_array_equal(found_labels, labels)
    halved = StreamingCOCO(local=place, transform=lambda image, size, b, c: (image, (size[0] // 2, 1), b, c))
    assert halved[0][2] == (4, 1)


def test_with_torchvision_the_dataset_is_one_of_its_own(monkeypatch):
    monkeypatch.syspath_prepend(STUBS)
    for name in ("torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.spec_from_file_location("vision_with_torchvision", vision.__file__)
    module = importlib.util.module_from_spec(spec)
    for name in ("", ".ade20k", ".base", ".cifar10", ".coco", ".imagenet"):
        monkeypatch.setitem(sys.modules, f"vision_with_torchvision{name}", module)
    spec.loader.exec_module(module)
    assert issubclass(module.StreamingVisionDataset, sys.modules["torchvision.datasets"].VisionDataset)
    assert not issubclass(vision.StreamingVisionDataset, sys.modules["torchvision.datasets"].VisionDataset)
