"""Sets with splits that are read without choosing one: they are read, with a warning. Also empty sets."""

import json
import warnings
from dataclasses import replace

import pytest

from smalti.catalog import Draft, merge_index, new_write_id, publish
from smalti.dataset import StreamingDataset
from smalti.errors import CatalogError, IndexFileError, MixedSplitsWarning, StoreNotFound
from smalti.format import Schema, ShardBuilder, ShardOptions, emit_index
from smalti.storage import LocalStore
from smalti.stream import Stream
from tests.shard_sets import write_set

SCHEMA = Schema.from_columns({"id": "int"})


def put_part(store, folder, first):
    """Write ten samples to a folder, as MosaicML's writer does, and return the index entry."""
    builder = ShardBuilder(SCHEMA, ShardOptions())
    for number in range(first, first + 10):
        builder.add({"id": number})
    (filled,) = builder.finish()
    shard = filled.seal()
    store.put(f"{folder}/{shard.info.raw.basename}", bytes(shard.payloads[0]))
    store.put(f"{folder}/index.json", emit_index([shard.info]))
    return shard.info


def with_folders(root, *folders):
    """Write a plain set with its parts in these folders, merged at the root."""
    store = LocalStore(root)
    for number, folder in enumerate(folders):
        put_part(store, folder, 10 * number)
    merge_index(store)
    return str(root)


def published(root, *splits):
    """Publish a set with these splits."""
    store, write_id = LocalStore(root), new_write_id()
    shards = []
    for number, split in enumerate(splits):
        folder = f"{split}/{write_id}/0"
        shards.append(replace(put_part(store, folder, 10 * number).with_prefix(folder), partition=split))
        store.delete(f"{folder}/index.json")
    publish(store, Draft(write_id, SCHEMA, shards))
    return str(root)


def ids(dataset):
    return sorted(dataset[number]["id"] for number in range(dataset.size))


@pytest.mark.parametrize(("make", "splits"), [(published, ("de", "en", "fr")), (with_folders, ("train", "val"))])
def test_reading_a_set_with_splits_whole_warns_once_and_names_the_splits(tmp_path, make, splits):
    root = make(tmp_path / "set", *splits)
    with pytest.warns(
        MixedSplitsWarning, match=rf"the splits '{splits[0]}', .*without `split`.*split='{splits[0]}'"
    ) as w:
        assert ids(StreamingDataset(remote=root)) == list(range(10 * len(splits)))
    assert len(w) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert StreamingDataset(remote=root).size == 10 * len(splits)


@pytest.mark.parametrize("make", [published, with_folders])
def test_a_choice_of_splits_does_not_warn(tmp_path, make):
    root = make(tmp_path / "set", "train", "val")
    assert ids(StreamingDataset(remote=root, split="val")) == list(range(10, 20))
    both = StreamingDataset(streams=[Stream(remote=root, split="train"), Stream(remote=root, split="val")])
    assert ids(both) == list(range(20))


@pytest.mark.parametrize("folders", [("00000", "00001"), ("train",), ("train", "extra"), ("a/train", "a/val")])
def test_merged_parts_without_names_of_splits_do_not_warn(tmp_path, folders):
    assert ids(StreamingDataset(remote=with_folders(tmp_path / "set", *folders))) == list(range(10 * len(folders)))


def test_a_split_of_a_set_without_splits_is_refused_because_its_folder_has_no_set(tmp_path):
    write_set(tmp_path / "set", 10)
    with pytest.raises(StoreNotFound, match="has no splits, and no folder 'train'") as caught:
        len(StreamingDataset(remote=str(tmp_path / "set"), split="train", batch_size=1))
    assert isinstance(caught.value.__cause__, StoreNotFound)
    assert "set/train" in str(caught.value.__cause__)


def test_a_misspelt_split_is_refused_with_the_name_that_is_meant(tmp_path):
    dataset = StreamingDataset(remote=published(tmp_path / "set", "train", "validation"), split="trian")
    with pytest.raises(CatalogError, match="its splits are: 'train', 'validation'; did you mean 'train'"):
        len(dataset)


def test_an_index_file_without_shards_is_refused(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"shards": [], "version": 2}))
    with pytest.raises(IndexFileError, match=r"index\.json lists no shards; the address is wrong, or the writer"):
        _ = StreamingDataset(remote=tmp_path, batch_size=4).stream


def test_an_empty_version_is_read_as_empty_with_a_warning(tmp_path):
    dataset = StreamingDataset(remote=write_set(tmp_path / "set", 0), batch_size=4)
    assert dataset.size == 0
    with pytest.warns(UserWarning, match="has no samples: an epoch of it ends at once"):
        assert list(dataset.batches()) == []
    assert list(dataset.batches()) == [], "said once"
