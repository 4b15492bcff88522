"""A folder of images as a source of `convert`: bytes as they are, labels and splits by folder."""

import json
import os
import warnings

import pyarrow as pa
import pytest

from smalti import SmaltiError, convert, load_manifest
from smalti.catalog.verify import open_checked
from smalti.cli import main
from smalti.errors import BadImageError, SchemaError, SourceWarning
from smalti.storage import open_store
from tests.format.columns import image_bytes


def put(root, *paths, form="JPEG"):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image_bytes(form) + path.encode())  # bytes after the end of an image are kept
    return root


def rows_of(place):
    store, found = open_store(place), {}
    for info in load_manifest(store).shards:
        with open_checked(store, info) as shard:
            encoded = (
                shard.stored_samples().content.tobytes() if hasattr(shard.stored_samples().content, "tobytes") else b""
            )
            for number in range(len(shard)):
                row = shard[number]
                found[row["path"]] = (int(row["label"]), row["class_name"], row["split"], encoded)
    return found


def test_files_pass_through_with_the_labels_of_their_folders(tmp_path):
    root = put(tmp_path / "in", "rose/1.jpg", "daisy/2.jpg", "daisy/deep/3.jpg")
    (root / "daisy" / ".hidden.jpg").write_bytes(b"")
    convert(root, tmp_path / "out", processes=1, compression=None)
    found = rows_of(tmp_path / "out")
    assert {path: row[:3] for path, row in found.items()} == {
        "rose/1.jpg": (1, "rose", "train"),
        "daisy/2.jpg": (0, "daisy", "train"),
        "daisy/deep/3.jpg": (0, "daisy", "train"),
    }
    for path, row in found.items():
        assert (root / path).read_bytes() in row[3]
    manifest = load_manifest(tmp_path / "out")
    assert manifest.schema.columns()["image"] == "jpeg"
    assert manifest.metadata["classes"] == ["daisy", "rose"]


def test_the_names_of_classes_are_kept_with_their_column_unless_the_caller_gives_others(tmp_path):
    root = put(tmp_path / "in", "rose/1.jpg", "daisy/2.jpg")
    given = convert(root, tmp_path / "given", processes=1, metadata={"classes": ["Daisies", "Roses"], "by": "me"})
    assert dict(load_manifest(tmp_path / "given", version=given.version).metadata) | {"lineage": None} == {
        "classes": ["Daisies", "Roses"], "by": "me", "lineage": None,
    }  # fmt: skip
    convert(root, tmp_path / "images", processes=1, columns={"image": "jpeg", "class_name": "str"})
    assert "classes" not in load_manifest(tmp_path / "images").metadata


def test_folders_of_splits_are_splits(tmp_path):
    root = put(tmp_path / "in", "train/rose/1.jpg", "train/daisy/2.jpg", "val/rose/3.jpg", "test/rose/4.jpg")
    convert(root, tmp_path / "out", processes=1, partition_by="split")
    manifest = load_manifest(tmp_path / "out")
    assert {info.partition: info.samples for info in manifest.shards} == {"train": 2, "validation": 1, "test": 1}
    assert manifest.metadata["classes"] == ["daisy", "rose"]
    assert {path: row[:3] for path, row in rows_of(tmp_path / "out").items()} == {
        "train/rose/1.jpg": (1, "rose", "train"),
        "train/daisy/2.jpg": (0, "daisy", "train"),
        "val/rose/3.jpg": (1, "rose", "validation"),
        "test/rose/4.jpg": (1, "rose", "test"),
    }


def test_a_share_is_held_out_of_each_class_as_prepare_images_does(tmp_path):
    names = [f"{name}/{number}.jpg" for name in ("a", "b") for number in range(10)]
    root = put(tmp_path / "in", *names)
    convert(root, tmp_path / "out", processes=1, settings={"validation_fraction": 0.2})
    held_out = [path for path, row in rows_of(tmp_path / "out").items() if row[2] == "validation"]
    assert sorted(path[0] for path in held_out) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(("names", "encoding"), [(["a.png"], "png"), (["a.png", "b.jpg"], "bytes")])
def test_the_encoding_is_that_of_all_files(tmp_path, names, encoding):
    for name in names:
        put(tmp_path / "in", f"x/{name}", form="PNG" if name.endswith("png") else "JPEG")
    convert(tmp_path / "in", tmp_path / "out", processes=1)
    assert load_manifest(tmp_path / "out").schema.columns()["image"] == encoding


def test_a_file_that_is_no_image_is_named(tmp_path):
    root = put(tmp_path / "in", "x/1.jpg")
    (root / "x" / "2.jpg").write_bytes(b"no image at all")
    with pytest.raises(BadImageError, match=r"x/2\.jpg is not a usable image") as caught:
        convert(root, tmp_path / "out", processes=1)
    assert caught.value.path == "x/2.jpg"
    assert list((tmp_path / "out").rglob("*.mds*")) == []


def test_images_without_class_folders_are_refused(tmp_path):
    put(tmp_path / "in", "1.jpg")
    with pytest.raises(SmaltiError, match="expected one sub-folder per class"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(ValueError, match="images have no setting 'size'"):
        convert(tmp_path / "in", tmp_path / "out", settings={"size": 96})


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("Training", "Testing"), {"train", "test"}),
        (("TRAIN", "Val", "test"), {"train", "validation", "test"}),
        (("train_set", "valid", "test-images"), {"train", "validation", "test"}),
    ],
)
def test_names_of_splits_are_recognised_in_any_case_and_with_usual_endings(tmp_path, folders, splits):
    root = put(tmp_path / "in", *(f"{folder}/{name}/1.jpg" for folder in folders for name in ("a", "b")))
    convert(root, tmp_path / "out", processes=1)
    found = rows_of(tmp_path / "out").values()
    assert ({row[1] for row in found}, {row[2] for row in found}) == ({"a", "b"}, splits)


@pytest.mark.parametrize(
    ("paths", "classes", "splits"),
    [
        (["train/1.jpg", "test/2.jpg"], ["test", "train"], None),  # no class folders in them
        (["train/a/1.jpg", "test/a/2.jpg", "extra/a/3.jpg"], ["extra", "test", "train"], ["extra", "test", "train"]),
        (["train/a/1.jpg", "bus/b/2.jpg"], ["bus", "train"], ["bus", "train"]),
    ],
    ids=["flat", "three", "two"],
)
def test_folders_that_may_be_splits_or_classes_are_refused_and_the_advice_works(tmp_path, paths, classes, splits):
    root = put(tmp_path / "in", *paths)
    with pytest.raises(SmaltiError, match=r"may be splits or classes.*folders=classes .*; if .*folders=splits"):
        convert(root, tmp_path / "out", processes=1)
    convert(root, tmp_path / "out", processes=1, settings={"folders": "classes"})
    assert load_manifest(tmp_path / "out").metadata["classes"] == classes
    if splits is None:
        with pytest.raises(SmaltiError, match="folders=splits needs class folders in each of them, found images"):
            convert(root, tmp_path / "splits", processes=1, settings={"folders": "splits"})
    else:
        convert(root, tmp_path / "splits", processes=1, settings={"folders": "splits"})
        assert sorted({row[2] for row in rows_of(tmp_path / "splits").values()}) == splits


def test_a_class_may_have_the_name_of_a_split_beside_others(tmp_path):
    root = put(tmp_path / "in", "bus/1.jpg", "car/2.jpg", "train/3.jpg")
    convert(root, tmp_path / "out", processes=1)
    assert load_manifest(tmp_path / "out").metadata["classes"] == ["bus", "car", "train"]
    with pytest.raises(ValueError, match="`folders` of images: expected one of auto, classes, splits, found 'x'"):
        convert(root, tmp_path / "other", settings={"folders": "x"})


@pytest.mark.parametrize("split_by", [None, "split"])
def test_a_file_of_another_format_than_its_name_says_is_named_and_the_advice_works(tmp_path, split_by):
    root = put(tmp_path / "in", *(f"train/cat/{number}.jpg" for number in range(4)), "val/cat/9.jpg")
    put(root, "train/dog/odd.jpg", form="PNG")
    with pytest.raises(
        SchemaError, match=r"train/dog/odd.jpg: .*it is a PNG file; .*with the encoding `bytes`"
    ) as caught:
        convert(root, tmp_path / "out", processes=1, partition_by=split_by)
    assert caught.value.path == "train/dog/odd.jpg"
    convert(root, tmp_path / "out", processes=1, columns={"image": "bytes", "label": None, "path": None, "split": None,
                                                          "class_name": None})  # fmt: skip
    assert (root / "train/dog/odd.jpg").read_bytes() in rows_of(tmp_path / "out")["train/dog/odd.jpg"][3]


def test_an_image_that_is_cut_short_is_named_whatever_its_format(tmp_path):
    for number, form in enumerate(("JPEG", "PNG", "GIF", "BMP", "WEBP")):
        root = put(tmp_path / form, "a/1.jpg", "a/2.png")
        whole = image_bytes(form)
        (root / "a" / f"cut{number}").write_bytes(whole[: len(whole) * 2 // 3])
        with pytest.raises(
            BadImageError, match=rf"a/cut{number} is not a usable image.*(cut short|ends before|truncated)"
        ):
            convert(root, tmp_path / f"{form}.set", processes=1)


def test_empty_images_are_counted_and_named_before_anything_is_read(tmp_path):
    root = put(tmp_path / "in", "a/1.jpg")
    for name in ("a/2.jpg", "a/3.jpg"):
        (root / name).write_bytes(b"")
    with pytest.raises(BadImageError, match=r"2 of 3 images are empty files \(a/2.jpg, a/3.jpg\)"):
        convert(root, tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists()


def test_what_is_left_out_is_counted_and_named_in_the_result(tmp_path, capsys):
    root = put(
        tmp_path / "in",
        "a/1.jpg",
        "a/2.jpg",
        "a/3.jpg",
        "a/._1.jpg",
        "__MACOSX/a/1.jpg",
        "a/Thumbs.db",
        "labels.csv",
        "a/notes.txt",
    )
    put(root, "outside.jpg")
    (root / "b").symlink_to(tmp_path / "nowhere")
    with pytest.warns(
        SourceWarning, match=r"left out: 1 links that lead nowhere \(b\); 1 outside of the class folders"
    ):
        manifest = convert(root, tmp_path / "out", processes=1)
    expected = {
        "hidden or of the system": {"files": 3, "names": ["__MACOSX", "a/._1.jpg", "a/Thumbs.db"]},
        "links that lead nowhere": {"files": 1, "names": ["b"]},
        "of another kind": {"files": 2, "names": ["a/notes.txt", "labels.csv"]},
        "outside of the class folders": {"files": 1, "names": ["outside.jpg"]},
    }
    assert manifest.lineage["sources"][0]["left_out"] == expected
    assert manifest.rows == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["convert", str(root), str(tmp_path / "cli")]) == 0
        assert main(["convert", str(root), str(tmp_path / "json"), "--json"]) == 0
    text, found = capsys.readouterr().out.split("{", 1)
    assert (
        "left out: 3 hidden or of the system (__MACOSX, a/._1.jpg, a/Thumbs.db); 1 links that lead nowhere (b)" in text
    )
    assert json.loads("{" + found)["left_out"] == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda root: put(root, "a/new.jpg"),
        lambda root: (root / "a" / "1.jpg").unlink(),
        lambda root: os.utime(root / "a" / "1.jpg", ns=(1, 1)),
        lambda root: put(root, "c/new.jpg"),
    ],
    ids=["added", "removed", "changed", "class added"],
)
def test_a_folder_that_changes_while_it_is_converted_is_not_published(tmp_path, change):
    root = put(tmp_path / "in", "a/1.jpg", "a/2.jpg", "b/3.jpg")
    with pytest.raises(SmaltiError, match="changed while it was read; nothing was published"):
        convert(
            root, tmp_path / "out", processes=1, on_progress=lambda state: change(root) if state.parts_done else None
        )
    assert list((tmp_path / "out").rglob("*.mds*")) == []


def test_names_of_classes_are_not_taken_from_a_source_whose_labels_a_transform_may_change(tmp_path):
    root = put(tmp_path / "in", "a/1.jpg", "b/2.jpg")

    def merged(batch):
        return pa.RecordBatch.from_pydict({"label": [0] * batch.num_rows})

    def convert_to(name, **options):
        return convert(root, tmp_path / name, processes=1, transform=merged, **options).metadata

    assert "classes" not in convert_to("out")
    assert convert_to("named", metadata={"classes": ["both"]})["classes"] == ["both"]


def test_a_file_too_large_for_an_image_is_named_before_it_is_read(tmp_path):
    root = put(tmp_path / "in", "a/1.jpg")
    with (root / "a" / "2.jpg").open("wb") as file:
        file.truncate((1 << 28) + 1)
    with pytest.raises(BadImageError, match=r"a/2.jpg has 268,435,457 bytes; an image has at most 268,435,456"):
        convert(root, tmp_path / "out", processes=1)
