"""The conversion scripts, each over a few files of its kind."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smalti.catalog import load_manifest
from smalti.catalog.verify import open_checked
from smalti.compat.streaming.text.convert import enwiki_text, pile
from smalti.compat.streaming.vision.convert import ade20k, cifar10, coco, fake_cifar10, imagenet
from smalti.compat.streaming.vision.convert.base import convert_image_class_dataset
from smalti.errors import MissingDependency
from smalti.storage import open_store
from tests.format.columns import image_bytes
from tests.peer_program import minimal_env, run_alone

TORCHVISION = """
class CIFAR10:
    def __init__(self, root, train, download):
        assert download
        self.samples = [(f"{root} {train} {i}", i) for i in range(3)]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, number):
        from PIL import Image
        name, label = self.samples[number]
        return Image.new("L", (len(name), 1), label), label
"""


def read(out):
    store, samples = open_store(out), []
    for info in load_manifest(store).shards:
        with open_checked(store, info) as shard:
            samples += [shard[i] for i in range(len(shard))]
    return samples


def test_images_are_written_in_the_order_that_numpy_draws(tmp_path):
    dataset = [(Image.new("L", (2, 1), number), np.int64(number % 2)) for number in range(6)]
    np.random.seed(5)  # noqa: NPY002
    convert_image_class_dataset(dataset, str(tmp_path), "train", hashes=["sha1"], progress_bar=False)
    samples = read(tmp_path / "train")
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.permutation(6).tolist()  # noqa: NPY002
    assert [sample["i"] for sample in samples] == expected
    assert [(sample["x"].getpixel((0, 0)), sample["y"]) for sample in samples] == [(i, i % 2) for i in expected]
    convert_image_class_dataset(dataset, str(tmp_path / "alone"), progress_bar=False)
    assert len(read(tmp_path / "alone")) == 6, "without a split, the root itself"


def test_random_images_have_cifar10s_form(tmp_path):
    fake_cifar10.main(Namespace(out=str(tmp_path), num_train=4, num_val=2))
    assert [len(read(tmp_path / split)) for split in ("train", "val")] == [4, 2]
    assert read(tmp_path / "val")[0]["x"].size == (32, 32)


def test_cifar10_is_read_by_torchvision(tmp_path, monkeypatch):
    args = ["cifar10", "--in_root", "here", "--out_root", str(tmp_path / "out"), "--progress_bar", "0"]
    monkeypatch.setattr(sys, "argv", args)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(MissingDependency, match="pip install torchvision"):
        cifar10.main(cifar10.parse_args())
    for name in ("torchvision", "torchvision.datasets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").touch()
    (tmp_path / "torchvision" / "datasets.py").write_text(TORCHVISION)
    monkeypatch.syspath_prepend(tmp_path)
    cifar10.main(cifar10.parse_args())
    for split, width in (("train", len("here True 0")), ("val", len("here False 0"))):
        samples = read(tmp_path / "out" / split)
        assert sorted(sample["y"] for sample in samples) == [0, 1, 2]
        assert samples[0]["x"].size == (width, 1)


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(("train/cat/1", "train/cat/2", "train/dog/1", "val/cat/1", "val/dog/1")):
        file = tmp_path / "photos" / f"{name}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image_bytes("JPEG", (8, 8), 10 * number))
    return tmp_path / "photos"


def convert_photos(monkeypatch, photos, out, *more):
    monkeypatch.setattr(sys, "argv", ["imagenet", "--in_root", str(photos), "--out_root", str(out), *more])
    imagenet.main(imagenet.parse_args())


def test_folders_of_photos_become_numbered_classes(tmp_path, monkeypatch, photos):
    (photos / "train" / "cat" / ".hidden").touch()
    convert_photos(monkeypatch, photos, tmp_path / "out", "--progress_bar", "0", "--compression", "zstd")
    samples = {sample["i"]: sample for sample in read(tmp_path / "out" / "train")}
    assert [samples[number]["y"] for number in range(3)] == [0, 0, 1]
    with Image.open(photos / "train" / "cat" / "2.JPEG") as photo:
        assert samples[1]["x"].tobytes() == photo.tobytes()
    entry = json.loads((tmp_path / "out" / "val" / "index.json").read_bytes())["shards"][0]
    assert (entry["samples"], entry["hashes"], entry["compression"]) == (2, ["sha1", "xxh64"], "zstd")


def test_classes_are_numbered_as_they_appear_and_named_sorted():
    files = [f"in/{name}/1.jpeg" for name in ("cat-like", "cat", "dog", "cat")]
    assert imagenet.get_classes(files) == ([0, 1, 2, 1], ["cat", "cat-like", "dog"])


def test_photos_of_other_kinds_or_classes_are_refused(tmp_path, monkeypatch, photos):
    with pytest.raises(AssertionError, match=r"1\.JPEG: expected a file whose name ends in jpg, png"):
        convert_photos(monkeypatch, photos, tmp_path / "a", "--extensions", "png,jpg")
    (photos / "val" / "dog").rename(photos / "val" / "fish")
    with pytest.raises(ValueError, match="in some of them only: dog, fish"):
        convert_photos(monkeypatch, photos, tmp_path / "b")


def test_lines_of_wikipedia_become_texts(tmp_path, monkeypatch):
    for number in range(500):
        (tmp_path / f"part-{number:05}-of-00500").write_text(f" line {number}  \n\n" * (number < 2), encoding="utf-8")
    (tmp_path / "eval.txt").write_text("é\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["enwiki", "--in_root", str(tmp_path), "--out_root", str(tmp_path / "out")])
    enwiki_text.main(enwiki_text.parse_args())
    assert [sample["text"] for sample in read(tmp_path / "out" / "train")] == ["line 0", "line 1"]
    assert read(tmp_path / "out" / "val") == [{"text": "é"}]


def jsonl(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": text, "meta": {"pile_set_name": text[0]}}) for text in texts]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def texts(tmp_path):
    for name, lines in {"train/00": ["a1", "b1"], "train/01": ["a2"], "val": ["c"], "test": ["d"]}.items():
        jsonl(tmp_path / "in" / f"{name}.jsonl", lines)
    return ["--in_root", str(tmp_path / "in"), "--out_root", str(tmp_path / "out"), "--compression", "zstd"]


def check_pile(out, told):
    counts = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [(Path(each["file"]).name, each["counts"]) for each in counts] == [
        ("00.jsonl", {"a": 1, "b": 1}), ("01.jsonl", {"a": 1}), ("val.jsonl", {"c": 1}), ("test.jsonl", {"d": 1}),
    ]  # fmt: skip
    assert [sample["text"] for sample in read(out / "train")] == ["a1", "b1", "a2"]
    assert read(out / "test") == [{"text": "d", "pile_set_name": "d"}]


class InThisProcess:
    """A pool of processes that starts none."""

    imap = map

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def test_the_files_of_the_pile_become_one_set(tmp_path, texts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pile", *texts])
    monkeypatch.setattr(pile, "Pool", InThisProcess)
    pile.main(pile.parse_args())
    check_pile(tmp_path / "out", capsys.readouterr().out)


@pytest.mark.process
@pytest.mark.nightly
def test_the_files_of_the_pile_are_converted_by_processes(tmp_path, texts):
    program = [sys.executable, "-m", "smalti.compat.streaming.text.convert.pile"]
    check_pile(tmp_path / "out", run_alone([*program, *texts], minimal_env([])))


@pytest.mark.parametrize("line", ['{"text": "a"}', '{"text": "a", "meta": {"name": "b"}}'])
def test_a_line_with_other_fields_is_named(tmp_path, line):
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(ValueError, match=r"Invalid sample .*fields in .*x\.jsonl, line 1"):
        pile.file_to_dir((str(tmp_path / "x.jsonl"), str(tmp_path / "out"), "zstd", [], 1 << 20))


def test_photos_come_with_the_classes_of_their_pixels(tmp_path, monkeypatch, caplog):
    uids = {"train": ["00000007", "00003020", "00000009"], "val": ["00000001"]}
    for split, folder in (("train", "training"), ("val", "validation")):
        for kind, suffix, file_format in (("images", "jpg", "JPEG"), ("annotations", "png", "PNG")):
            place = tmp_path / "in" / kind / folder
            place.mkdir(parents=True)
            for uid in uids[split]:
                (place / f"ADE_{split}_{uid}.{suffix}").write_bytes(image_bytes(file_format, (8, 8), int(uid) % 100))
    args = ["ade20k", "--in_root", str(tmp_path / "in"), "--out_root", str(tmp_path / "out"), "--progress_bar", "0"]
    monkeypatch.setattr(sys, "argv", args)
    ade20k.main(ade20k.parse_args())
    assert "Number of samples in a dataset doesn't match. Expected 20206, but got 2; " in caplog.text
    assert sorted(sample["uid"] for sample in read(tmp_path / "out" / "train")) == [b"00000007", b"00000009"]
    sample = read(tmp_path / "out" / "val")[0]
    assert (sample["uid"], sample["x"].format, sample["y"].format) == (b"00000001", "JPEG", "PNG")
    with pytest.raises(ValueError, match="Split must be one of 'train', 'val', not test"):
        ade20k.get(str(tmp_path / "in"), "test", shuffle=False)
    (tmp_path / "in" / "annotations" / "validation").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="Annotations path does not exist"):
        ade20k.get(str(tmp_path / "in"), "val", shuffle=False)


def test_photos_come_with_the_corners_of_their_objects(tmp_path, monkeypatch, caplog):
    photos = [{"id": 40 + n, "file_name": f"{n}.jpg", "height": 8, "width": 16} for n in range(2)]
    objects = [{"image_id": 41, "category_id": 90, "bbox": [4, 2, 8, 4]}]
    data = {"images": photos, "annotations": objects, "categories": [{"id": 3, "name": "a"}, {"id": 90, "name": "b"}]}
    for split in ("train", "val"):
        (tmp_path / f"{split}2017").mkdir()
        (tmp_path / f"{split}2017" / "1.jpg").write_bytes(image_bytes("JPEG", (16, 8), 1))
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(data))
    monkeypatch.setattr(sys, "argv", ["coco", "--in_root", str(tmp_path), "--out_root", str(tmp_path / "out")])
    coco.main(coco.parse_args())
    assert "Number of samples in a dataset doesn't match. Expected 4952, but got 1; " in caplog.text
    for split in ("train", "val"):
        (sample,) = read(tmp_path / "out" / split)
        assert (sample["img_id"], sample["htot"], sample["wtot"], sample["img"].size) == (41, 8, 16, (16, 8))
        np.testing.assert_array_equal(sample["bbox_sizes"], np.array([[0.25, 0.25, 0.75, 0.75]], np.float32))
        assert sample["bbox_labels"].tolist() == [2]
    (tmp_path / "train2017").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="Images path does not exist"):
        coco.main(coco.parse_args())
