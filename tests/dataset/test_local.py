"""`LocalDataset` reads a complete local set by sample number."""

import pickle

import numpy as np
import pytest

from smalti.dataset.local import LocalDataset
from smalti.errors import ChecksumMismatch, IndexFileError, SchemaError, ShardNotFound, StoreError, StoreNotFound
from smalti.writer import MDSWriter
from tests.shard_sets import write_set


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """The user's cache folder is one of the test's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_samples_are_read_by_number_slice_list_and_array(tmp_path, compression):
    dataset = LocalDataset(write_set(tmp_path / "set", 35, compression=compression))
    assert len(dataset) == dataset.size == dataset.num_samples == 35
    assert dataset.num_shards == len(dataset.shards) > 2
    assert [dataset[i]["id"] for i in range(35)] == list(range(35))
    assert dataset[-1]["text"] == dataset.get_item(34)["text"] == "sample 34 xxxxxx"
    assert [sample["id"] for sample in dataset[30:]] == [30, 31, 32, 33, 34]
    assert [[sample["id"] for sample in row] for row in dataset[np.array([[5, 30], [0, -1]])]] == [[5, 30], [0, 34]]
    assert [sample["id"] for sample in dataset] == list(range(35)), "an IndexError ends a plain loop"
    with pytest.raises(IndexError):
        dataset[35]
    for wrong in (-1, 35):
        with pytest.raises(IndexError, match=f"sample {wrong} of"):
            dataset.get_item(wrong)


def test_raw_shards_are_read_in_place_and_compressed_ones_unpacked_once(tmp_path):
    LocalDataset(write_set(tmp_path / "raw", 20))[0]
    assert not (tmp_path / "home").exists()
    dataset = LocalDataset(write_set(tmp_path / "zip", 20, compression="zstd"))
    dataset[:]
    unpacked = [path for path in (tmp_path / "home").rglob("*.mds") if path.is_file()]
    assert len(unpacked) == dataset.num_shards
    before = {path: path.stat().st_mtime_ns for path in unpacked}
    LocalDataset(tmp_path / "zip")[:]
    assert {path: path.stat().st_mtime_ns for path in unpacked} == before


def test_shards_already_unpacked_in_the_folder_are_read_there_and_verified(tmp_path):
    """MosaicML's reader leaves such a folder: the index of a compressed set, and uncompressed files."""
    dataset = LocalDataset(write_set(tmp_path / "set", 20, compression="zstd"))
    dataset[:]
    for shard in dataset.shards:
        (unpacked,) = (tmp_path / "home").rglob(shard.raw.basename.rpartition("/")[2])
        unpacked.rename(tmp_path / "set" / shard.raw.basename)
        (tmp_path / "set" / shard.stored.basename).unlink()
    again = LocalDataset(tmp_path / "set")
    assert [sample["id"] for sample in again[:]] == list(range(20))
    assert not list((tmp_path / "home").rglob("*.mds"))
    path = tmp_path / "set" / dataset.shards[1].raw.basename
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    with pytest.raises(ChecksumMismatch, match="shard 1"):
        LocalDataset(tmp_path / "set")[:]
    path.unlink()
    with pytest.raises(ShardNotFound, match="shard 1"):
        LocalDataset(tmp_path / "set")[:]


def test_files_are_verified_and_missing_ones_are_named(tmp_path):
    dataset = LocalDataset(write_set(tmp_path, 35))
    path = tmp_path / dataset.shards[1].raw.basename
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    first = dataset.shards[0].samples
    assert dataset[first - 1]["id"] == first - 1
    with pytest.raises(ChecksumMismatch, match="shard 1"):
        dataset[first]
    path.unlink()
    with pytest.raises(ShardNotFound, match="shard 1"):
        dataset[first]


def test_a_split_is_a_folder_of_its_own(tmp_path):
    write_set(tmp_path / "train", 5)
    write_set(tmp_path / "val", 3)
    assert len(LocalDataset(tmp_path, "val")) == 3
    assert LocalDataset(str(tmp_path), split="train")[4]["id"] == 4


def test_pickles_are_refused_at_open_unless_allowed(tmp_path):
    with MDSWriter(out=tmp_path, columns={"a": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"a": {1, 2}})
    with pytest.raises(SchemaError, match="pkl"):
        LocalDataset(tmp_path)
    assert LocalDataset(tmp_path, allow_unsafe_types=True)[0] == {"a": {1, 2}}


def test_a_pickled_dataset_reads_the_same_version_in_another_process(tmp_path):
    dataset = LocalDataset(write_set(tmp_path, 12))
    sent = pickle.dumps(dataset)
    with MDSWriter(out=tmp_path, columns={"x": "int"}, exist_ok=True) as writer:
        writer.write({"x": 1})
    assert pickle.loads(sent)[11]["id"] == 11
    assert len(LocalDataset(tmp_path)) == 1


def test_anything_but_a_local_set_is_refused_at_open(tmp_path):
    with pytest.raises(StoreError, match="not a local folder"):
        LocalDataset("s3://bucket/set")
    with pytest.raises(StoreNotFound):
        LocalDataset(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(IndexFileError):
        LocalDataset(tmp_path)
