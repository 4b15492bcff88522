"""Parquet files as the Hub of Hugging Face has them: images, names of classes, splits, and files beside them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from smalti import convert, load_manifest
from smalti.errors import FormatError, SchemaError, StoreNotFound, VersionNotFound
from tests.conversion.rows import samples_of

FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "text": {"dtype": "string", "_type": "Value"},
}


def png(red):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (red, 0, 0)).save(file, "PNG")
    return file.getvalue()


def hub_table(images, labels, features=None):
    table = pa.table({
        "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "label": pa.array(labels, pa.int64()),
        "text": [f"text {label}" for label in labels],
    })  # fmt: skip
    notes = json.dumps({"info": {"features": features or FEATURES}})
    return table.replace_schema_metadata({"huggingface": notes})


def write(path, images, labels, features=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(hub_table(images, labels, features), path)


def image(red):
    return {"bytes": png(red), "path": f"{red}.png"}


def test_images_are_images_and_class_names_are_kept(tmp_path):
    write(tmp_path / "in" / "data" / "train-00000-of-00001.parquet", [image(10), image(20)], [1, 0])
    (tmp_path / "in" / "README.md").write_text("---\nlicense: mit\n---\n")
    manifest = convert(tmp_path / "in", tmp_path / "set", processes=1)
    assert manifest.schema.columns() == {"image": "png", "label": "int64", "text": "str"}
    assert manifest.metadata["classes"] == ["cat", "dog"]
    rows = samples_of(tmp_path / "set")
    assert [np.asarray(row["image"])[0, 0, 0] for row in rows] == [10, 20]
    assert [(row["label"], row["text"]) for row in rows] == [(1, "text 1"), (0, "text 0")]


def test_the_first_image_decides_what_images_are_stored_as_also_after_rows_without_one(tmp_path):
    write(tmp_path / "in" / "a.parquet", [None] * 20, [0] * 20)
    pq.write_table(hub_table([image(1)], [0]).drop(["image"]), tmp_path / "in" / "b.parquet")
    write(tmp_path / "in" / "c.parquet", [{"bytes": None, "path": None}, image(1)], [0, 0])
    manifest = convert(tmp_path / "in", tmp_path / "set", processes=1, nulls={"image": "mask"})
    assert manifest.schema.columns()["image"] == "png"


@pytest.mark.parametrize("name", ["README.md", "dataset_info.json", "LICENSE", "dataset.yaml"])
def test_a_file_about_the_files_does_not_hide_their_format(tmp_path, name):
    write(tmp_path / "in" / "a.parquet", [image(1)], [0])
    (tmp_path / "in" / name).write_text("{}")
    assert convert(tmp_path / "in", tmp_path / "set", processes=1).rows == 1


def test_splits_are_not_mixed_without_a_word(tmp_path):
    write(tmp_path / "in" / "data" / "train-00000-of-00001.parquet", [image(1)], [0])
    write(tmp_path / "in" / "data" / "test-00000-of-00001.parquet", [image(2)], [1])
    with pytest.raises(VersionNotFound, match="has the splits test, train: choose one by a pattern") as caught:
        convert(tmp_path / "in", tmp_path / "set", processes=1)
    pattern = str(caught.value).rpartition("such as ")[2]
    assert convert(pattern, tmp_path / "set", processes=1).rows == 1
    assert samples_of(tmp_path / "set")[0]["label"] == 1


def test_files_with_other_names_of_classes_are_refused(tmp_path):
    write(tmp_path / "in" / "a.parquet", [image(1)], [0])
    write(
        tmp_path / "in" / "b.parquet",
        [image(1)],
        [0],
        {**FEATURES, "label": {"names": ["dog", "cat"], "_type": "ClassLabel"}},
    )
    with pytest.raises(SchemaError, match=r"b\.parquet describes column 'label' in another way than a\.parquet"):
        convert(tmp_path / "in", tmp_path / "set", processes=1)


def test_a_path_without_content_is_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    write(tmp_path / "a.parquet", [{"bytes": None, "path": str(tmp_path / "secret")}], [0])
    with pytest.raises(StoreNotFound, match="column 'image' has no content but names the file"):
        convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)


@pytest.mark.parametrize(
    "notes", ["no json", "[]", '{"info": 1}', '{"info": {"features": [1]}}', '{"info": {"features": {"image": 3}}}']
)
def test_metadata_of_another_form_are_an_error_or_no_features(tmp_path, notes):
    table = hub_table([image(1)], [0]).replace_schema_metadata({"huggingface": notes})
    pq.write_table(table, tmp_path / "a.parquet")
    if notes == "no json":
        with pytest.raises(FormatError, match=r"a\.parquet, metadata of the schema: not readable JSON"):
            convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)
    else:
        assert convert(tmp_path / "a.parquet", tmp_path / "set", processes=1).schema.columns()["image"] == "json"


def relabelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"label": pa.array([7] * batch.num_rows)})


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        ({}, ["cat", "dog"]),
        ({"columns": {"label": None}}, ["cat", "dog"]),
        ({"columns": {"text": None}}, None),
        ({"transform": relabelled}, None),
        ({"transform": relabelled, "metadata": {"classes": ["fish"] * 8}}, ["fish"] * 8),
    ],
)
def test_names_of_classes_are_recorded_only_for_the_labels_that_are_stored(tmp_path, options, classes):
    write(tmp_path / "a.parquet", [image(1)], [0])
    assert convert(tmp_path / "a.parquet", tmp_path / "set", processes=1, **options).metadata.get("classes") == classes


def test_labels_of_other_classes_cannot_be_appended(tmp_path):
    names = lambda *classes: {**FEATURES, "label": {"names": list(classes), "_type": "ClassLabel"}}  # noqa: E731
    write(tmp_path / "a.parquet", [image(1)], [0], names("cat", "dog"))
    write(tmp_path / "b.parquet", [image(1)], [0], names("ant", "cat", "dog"))
    write(tmp_path / "c.parquet", [image(1)], [2], names("cat", "dog", "emu"))
    convert(tmp_path / "a.parquet", tmp_path / "set", processes=1)
    with pytest.raises(SchemaError, match=r"its classes are cat, dog, and those of .*b\.parquet are ant, cat, dog"):
        convert(tmp_path / "b.parquet", tmp_path / "set", processes=1, mode="append")
    convert(tmp_path / "c.parquet", tmp_path / "set", processes=1, mode="append")
    assert load_manifest(tmp_path / "set").metadata["classes"] == ["cat", "dog", "emu"]
