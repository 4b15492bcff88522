"""A folder of images as a source of `convert`: bytes as they are, labels and splits by folder."""

import pytest

from smalti import SmaltiError, convert, load_manifest
from smalti.catalog.verify import open_checked
from smalti.errors import BadImageError
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
