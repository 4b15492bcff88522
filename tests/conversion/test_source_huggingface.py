"""Datasets of Hugging Face as a source: a folder that their library wrote, without it, and a dataset in memory."""

import json
import shutil

import pyarrow as pa
import pytest

from smalti.catalog import load_manifest
from smalti.conversion import convert
from smalti.conversion.source import CLASS_NAMES
from smalti.errors import FormatError, SchemaError, SmaltiError, StoreNotFound, VersionNotFound
from smalti.torch import LocalDataset
from tests.conversion.source_rows import DATA, read, source_of

FOLDER = DATA / "huggingface"
END = b"\xff\xff\xff\xff\0\0\0\0"


def test_a_saved_folder_is_read_without_their_library(tmp_path):
    source = source_of(FOLDER, split="train")
    assert json.loads(source.schema().field("label").metadata[CLASS_NAMES]) == ["cat", "dog"]
    convert(FOLDER, tmp_path / "set", settings={"split": "train"}, nulls={"text": "mask"}, processes=1)
    assert load_manifest(tmp_path / "set").metadata["classes"] == ["cat", "dog"]
    dataset = LocalDataset(tmp_path / "set")
    assert dict(dataset.shards[0].schema.columns()) == {
        "grid": "ndarray:int16", "image": "jpeg", "label": "int64", "nest": "json", "seq": "ndarray:int32",
        "text": "str", "text__is_null": "uint8",
    }  # fmt: skip
    assert [sample["label"] for sample in dataset] == [0, 1, 1]
    assert [sample["text"] for sample in dataset] == ["x", "y", None]
    assert [sample["seq"].tolist() for sample in dataset] == [[1], [], [2, 3]]
    assert [sample["nest"] for sample in dataset] == [
        {"a": 0.5, "b": ["p"]}, {"a": 1.5, "b": []}, {"a": 2.5, "b": ["q", "r"]},
    ]  # fmt: skip
    assert dataset[2]["grid"].tolist() == [[2, 1], [2, 3]]
    assert dataset[2]["image"].size == (8, 8)


def test_the_splits_are_chosen_one_at_a_time():
    assert [row["text"] for row in read(FOLDER, split="test", columns=("text",))] == [None, "x"]
    with pytest.raises(VersionNotFound, match="has the splits train, test: choose one with `split`"):
        read(FOLDER)
    with pytest.raises(VersionNotFound, match="there is no split 'dev'"):
        read(FOLDER, split="dev")
    assert len(read(FOLDER / "test", "huggingface")) == 2
    with pytest.raises(VersionNotFound, match="without splits"):
        read(FOLDER / "test", split="test")
    with pytest.raises(SchemaError, match="there is no column 'x'"):
        read(FOLDER, split="test", columns=("x",))


def test_a_damaged_folder_is_an_error(tmp_path):
    shutil.copytree(FOLDER / "train", tmp_path / "set")
    rows = tmp_path / "set" / "data-00000-of-00001.arrow"
    whole = rows.read_bytes()
    rows.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"data-00000-of-00001\.arrow"):
        read(tmp_path / "set")
    rows.unlink()
    with pytest.raises(StoreNotFound, match=r"data-00000-of-00001\.arrow"):
        read(tmp_path / "set")
    state = tmp_path / "set" / "state.json"
    state.write_text(state.read_text().replace("data-00000-of-00001.arrow", "../secret"))
    with pytest.raises(FormatError, match="no name of a file"):
        read(tmp_path / "set")
    state.write_text("{")
    with pytest.raises(FormatError, match=r"state\.json"):
        read(tmp_path / "set")


def test_a_file_whose_rows_end_before_it_or_that_is_named_twice_is_an_error(tmp_path):
    shutil.copytree(FOLDER / "train", tmp_path / "set")
    rows, state = tmp_path / "set" / "data-00000-of-00001.arrow", tmp_path / "set" / "state.json"
    whole = rows.read_bytes()
    assert whole.endswith(END)
    for data in (whole[:-8], whole + b"x", whole + whole):
        rows.write_bytes(data)
        with pytest.raises(FormatError, match=r"arrow: the file is damaged: its rows do not end where the file ends"):
            read(tmp_path / "set")
    rows.write_bytes(whole)
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "_data_files": content["_data_files"] * 2}))
    with pytest.raises(FormatError, match=r"state\.json names data-00000-of-00001\.arrow twice"):
        read(tmp_path / "set")


def test_names_that_are_no_text_are_an_error(tmp_path):
    shutil.copytree(FOLDER / "train", tmp_path / "set")
    rows = tmp_path / "set" / "data-00000-of-00001.arrow"
    for table, name in ((pa.table({"column": [1]}), b"column"), (pa.table({"x": [{"nested": 1}]}), b"nested")):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        rows.write_bytes(sink.getvalue().to_pybytes().replace(name, b"\xff" * len(name)))
        with pytest.raises(SmaltiError, match=r"data-00000-of-00001\.arrow: expected an Arrow stream|is no UTF-8 text"):
            read(tmp_path / "set")


FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def save(folder, column, feature="Image"):
    """Write a column `x` as `save_to_disk` does."""
    folder.mkdir()
    table = pa.table({"x": column})
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"x": {"_type": feature}}}))
    return folder


def with_paths(*paths):
    return pa.array([{"bytes": None, "path": path} for path in paths], FILE)


def test_a_path_is_read_only_if_it_leads_to_a_file_in_the_folder(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    folder = save(tmp_path / "set", with_paths("a/1.mp3", str(tmp_path / "set" / "2.mp3")), "Audio")
    (folder / "a").mkdir()
    (folder / "a" / "1.mp3").write_bytes(b"one")
    (folder / "2.mp3").write_bytes(b"two")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert read(folder) == [{"x": b"one"}, {"x": b"two"}]
    paths = [str(tmp_path / "secret"), "../secret", "a/../../secret", "link", "/etc/hostname", f"{folder}x/secret"]
    for number, path in enumerate(paths):
        other = save(tmp_path / f"other {number}", with_paths(path), "Audio")
        (other / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(StoreNotFound, match=r"is not read.*it is not in the folder of the data set"):
            read(other)
        plain = save(tmp_path / f"plain {number}", pa.array([path]), "Image")
        (plain / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(StoreNotFound, match=r"is not read.*it is not in the folder of the data set"):
            read(plain)
    missing = save(tmp_path / "missing", with_paths("3.mp3"), "Audio")
    with pytest.raises(StoreNotFound, match=r"names the file '3\.mp3', which is not read \(.*No such file"):
        read(missing)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (pa.table({"x": ["a"]}), "column 'x' is string there, and int64 in the first file, and a value does not fit"),
        (pa.table({"x": [1.5]}), "column 'x' is double there, and int64 in the first file, and a value does not fit"),
        (pa.table({"y": [1]}), "has the columns y, and the first file x; load the dataset"),
        (pa.table({"x": [1], "y": [2]}), "has the columns x, y, and the first file x; load the dataset"),
        (pa.table({"x": pa.array([2], pa.int8())}), None),
    ],
)
def test_a_further_file_has_the_columns_of_the_first_one(tmp_path, other, says):
    folder = save(tmp_path / "set", pa.array([1]), "Value")
    with pa.OSFile(str(folder / "b.arrow"), "wb") as file, pa.ipc.new_stream(file, other.schema) as writer:
        writer.write_table(other)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}, {"filename": "b.arrow"}]}')
    if says is None:
        assert read(folder) == [{"x": 1}, {"x": 2}]
    else:
        with pytest.raises(SchemaError, match=rf"b\.arrow:? {says}"):
            read(folder)


@pytest.mark.parametrize("column", [pa.array([{"bytes": "x", "path": 1}]), pa.array([1]), pa.array([{"path": "a"}])])
def test_a_column_that_cannot_have_images_stays_as_it_is(tmp_path, column):
    assert read(save(tmp_path / "set", column)) == [{"x": column[0].as_py()}]


def test_the_first_image_decides_what_images_are_stored_as_also_after_nulls(tmp_path):
    png = b"\x89PNG\r\n\x1a\n"
    column = pa.array([None, {"bytes": None, "path": None}, None, {"bytes": png, "path": None}], FILE)
    source = source_of(save(tmp_path / "set", column))
    assert source.schema().field("x").metadata == {b"smalti.stored_as": b"png"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"garbage of any kind", "found other bytes"), (b"ARROW1\0\0" + bytes(50), "found an Arrow file"),
        (b"\xff\xff\xff\xff\0\0\0\x7f" + bytes(50), "found other bytes"), (b"", "null or length 0"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_arrow_stream_is_an_error_that_takes_no_memory(tmp_path, data, says):
    folder = save(tmp_path / "set", pa.array([1]))
    (folder / "data.arrow").write_bytes(data)
    with pytest.raises(FormatError, match=rf"data\.arrow: expected an Arrow stream, as `save_to_disk`.*: .*{says}"):
        read(folder)


def test_two_columns_of_one_name_are_refused(tmp_path):
    folder = save(tmp_path / "set", pa.array([1]))
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(SchemaError, match="has column 'x' more than once"):
        read(folder)


def test_a_dataset_is_read_with_its_selection_and_without_its_transforms(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    saved = datasets.load_from_disk(str(FOLDER))
    assert [row["text"] for row in read(saved["train"].select([2, 0]))] == [None, "x"]
    assert [row["label"] for row in read(saved, split="test")] == [1, 0]
    shouting = saved["train"].with_transform(lambda rows: {"text": ["NO"]})
    assert [row["text"] for row in read(shouting)] == ["x", "y", None]
    memory = datasets.Dataset.from_dict({"n": [1, 2, 3]})
    assert read(memory.filter(lambda row: row["n"] != 2)) == [{"n": 1}, {"n": 3}]


def test_a_dataset_that_can_only_be_iterated_is_refused_with_what_to_do():
    class IterableDataset:
        """Has of theirs what `convert` looks at."""

        __module__ = "datasets.iterable_dataset"

        def with_format(self, _):
            return self

    with pytest.raises(SchemaError, match=r"found a IterableDataset.*without `streaming=True`"):
        read(IterableDataset())


def test_a_value_of_a_dict_of_datasets_is_read_as_a_dataset_whatever_module_its_class_is_of():
    class DatasetDict(dict):
        """Has of theirs what `convert` looks at."""

        __module__ = "datasets.dataset_dict"
        with_format = None

    class Derived:
        """A class of the caller's, derived of theirs."""

    with pytest.raises(SchemaError, match="found a Derived"):
        read(DatasetDict(train=Derived()))
