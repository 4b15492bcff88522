"""Shard sets as a source: the samples as stored, with other sizes, compression and columns."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from smalti import MDSWriter
from smalti.catalog import load_manifest, verify
from smalti.conversion import convert
from smalti.errors import FormatError, SchemaError, VersionNotFound
from smalti.torch import LocalDataset
from tests.conversion.rows import table_source
from tests.conversion.source_rows import read
from tests.shard_sets import write_set
from tests.text_writers import JSONWriter
from tests.typed_sets import plain, wanted, write_typed_set


def test_encodings_logical_types_and_samples_are_kept_in_shards_of_another_size(tmp_path):
    write_typed_set(tmp_path / "set")
    made = convert(tmp_path / "set", tmp_path / "new", compression="gz", size_limit=None, processes=1)
    before = load_manifest(tmp_path / "set")
    assert (made.schema.columns(), made.logical) == (before.schema.columns(), before.logical)
    assert (len(before.shards), len(made.shards), made.shards[0].compression) == (5, 1, "gz")
    assert made.row_hash == verify(tmp_path / "set").row_hash
    assert [plain(sample) for sample in LocalDataset(tmp_path / "new")] == [wanted(number) for number in range(40)]


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"],
)
def test_arrays_of_one_shape_are_kept_whatever_their_type(tmp_path, dtype):
    with MDSWriter(out=tmp_path / "set", columns={"x": f"ndarray:{dtype}:2"}) as writer:
        for number in range(3):
            writer.write({"x": np.array([number, 7], dtype)})
    made = convert(tmp_path / "set", tmp_path / "new", processes=1)
    assert made.schema.columns() == {"x": f"ndarray:{dtype}:2"}
    assert [sample["x"].tolist() for sample in LocalDataset(tmp_path / "new")] == [[0, 7], [1, 7], [2, 7]]


def test_columns_can_be_chosen_with_the_masks_of_their_nulls(tmp_path):
    write_typed_set(tmp_path / "set", 10)
    rows = read(tmp_path / "set", "mds", columns=("age", "id"))
    assert rows[3] == {"id": 3, "age": 0, "age__is_null": 1}
    with pytest.raises(SchemaError, match="there is no column 'x'"):
        read(tmp_path / "set", "mds", columns=("x",))


def test_the_version_is_chosen_by_number_or_tag(tmp_path):
    write_set(tmp_path / "set", 10)
    write_set(tmp_path / "set", 5, exist_ok=True)
    assert len(read(tmp_path / "set")) == 5
    assert len(read(tmp_path / "set", version=1)) == 10
    with pytest.raises(VersionNotFound):
        read(tmp_path / "set", version=9)
    with pytest.raises(ValueError, match="version, tag, split"):
        read(tmp_path / "set", versoin=1)


def test_a_set_of_json_lines_is_read(tmp_path):
    with JSONWriter(out=str(tmp_path / "set"), columns={"n": "int", "t": "str", "f": "float"}) as writer:
        for number in range(3):
            writer.write({"n": number, "t": f"a{number}", "f": number / 2})
    convert(tmp_path / "set", tmp_path / "new", format="mds", processes=1)
    assert list(LocalDataset(tmp_path / "new"))[2] == {"n": 2, "t": "a2", "f": 1.0}


def test_names_of_classes_stay_with_the_labels(tmp_path):
    convert(
        table_source(pa.table({"label": [1, 0], "x": [3, 4]})), tmp_path / "a", metadata={"classes": ["cat", "dog"]}
    )
    assert convert(tmp_path / "a", tmp_path / "b", processes=1).metadata == {"classes": ["cat", "dog"]}
    assert convert(tmp_path / "a", tmp_path / "c", processes=1, columns={"x": None}).metadata == {}


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "br", "bz2", "snappy"])
def test_a_set_is_recognised_whatever_its_compression(tmp_path, compression):
    with MDSWriter(out=tmp_path / "in", columns={"a": "str"}, compression=compression) as writer:
        writer.write({"a": "x" * 100})
    assert read(tmp_path / "in") == [{"a": b"x" * 100}]


@pytest.mark.parametrize("change", [{"column_names": ["b", "a"]}, {"column_encodings": ["bytes", "str"]}])
def test_an_index_that_describes_other_columns_than_its_shards_have_is_refused(tmp_path, change):
    with MDSWriter(out=tmp_path / "in", columns={"a": "str", "b": "str"}) as writer:
        writer.write({"a": "1", "b": "2"})
    shutil.rmtree(tmp_path / "in" / "_versions")
    index = json.loads((tmp_path / "in" / "index.json").read_text())
    index["shards"][0] |= change
    (tmp_path / "in" / "index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match=r"its index entry says column_.*, and the shard itself"):
        convert(tmp_path / "in", tmp_path / "set", processes=1)
