"""`info`: the facts of a version, and what is said of a place without one."""

import json

import pytest

from smalti import info
from smalti.catalog import tag
from smalti.errors import StoreNotFound
from smalti.writer import MDSWriter
from tests.shard_sets import write_set
from tests.typed_sets import write_typed_set


def test_facts_of_a_version_are_those_of_its_files(tmp_path):
    write_set(tmp_path, 100, compression="zstd", hashes=["sha1"])
    write_set(tmp_path, 50, mode="append")
    tag(tmp_path, "best", 1)
    found = info(tmp_path, version=1)
    shards = list(tmp_path.rglob("*.mds.zstd"))
    assert (found.written_by, found.format, found.version, found.newest) == ("Smalti", "mds", 1, 2)
    assert (found.rows, found.num_shards) == (100, len(shards))
    assert found.num_bytes == sum(path.stat().st_size for path in shards) < found.raw_bytes
    assert found.compression == ("zstd",)
    assert "sha1" in found.hashes
    assert found.tags == {"best": 1}
    assert found.open_with == f"StreamingDataset(remote={str(tmp_path)!r}, version=1)"
    assert [(column.name, column.encoding) for column in found.columns] == [
        ("id", "int"),
        ("text", "str"),
        ("vector", "ndarray:float32:3"),
    ]
    assert json.loads(json.dumps(found.to_dict()))["rows"] == 100


def test_columns_have_their_logical_types_and_masks_are_marks_of_nulls(tmp_path):
    write_typed_set(tmp_path)
    columns = {column.name: column for column in info(tmp_path).columns}
    assert "age__is_null" not in columns
    assert (columns["age"].is_nullable, columns["age"].logical) == (True, None)
    assert (columns["day"].is_nullable, columns["day"].logical) == (False, {"type": "date"})


def test_a_set_of_mosaicml_has_no_versions(tmp_path):
    write_set(tmp_path, 10)
    top = json.loads((tmp_path / "index.json").read_text())
    for number, shard in enumerate(top["shards"]):
        own = f"shard.{number:05}.mds"
        (tmp_path / shard["raw_data"]["basename"]).rename(tmp_path / own)
        shard["raw_data"]["basename"] = own
    (tmp_path / "index.json").write_text(json.dumps({"shards": top["shards"], "version": 2}))
    found = info(tmp_path)
    assert (found.written_by, found.version, found.rows, found.tags) == ("MosaicML Streaming", 0, 10, {})


def test_splits_in_folders_of_their_own_are_named_and_opened(tmp_path):
    for split in ("train", "val"):
        with MDSWriter(out=str(tmp_path / split), columns={"n": "int"}) as out:
            out.write({"n": 1})
    with pytest.raises(StoreNotFound, match="no shard set, but its folders 'train', 'val' do: name one as the split"):
        info(tmp_path)
    assert info(tmp_path, split="val").rows == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a/b.jpg", "but other files such as a/b.jpg: if they are data, `smalti convert`"),
        (None, ". The place is empty or does not exist"),
    ],
)
def test_a_place_without_a_set_is_an_error_that_says_what_is_there(tmp_path, name, said):
    if name is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(StoreNotFound) as error:
        info(tmp_path)
    assert said in str(error.value)
