"""Index entries that contradict the shards they describe."""

import json
import shutil
from dataclasses import replace

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.dataset import StreamingDataset
from smalti.errors import FormatError, IndexFileError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.writer import MDSWriter
from tests.stores import MemoryStore
from tests.text_writers import CSVWriter

COLUMNS = {"height": "int32", "width": "int32"}
SAMPLES = [{"height": number, "width": 100 + number} for number in range(10)]


def write(root, writer=MDSWriter, columns=COLUMNS, **options):
    with writer(out=str(root), columns=columns, **options) as out:
        for sample in SAMPLES:
            out.write(sample)
    return root


def tamper(root, change, *, foreign=False):
    """Remove the versions, so that only the index is left, and change its only entry."""
    shutil.rmtree(root / "_versions")
    index = json.loads((root / "index.json").read_text())
    del index["smalti"]
    (entry,) = index["shards"]
    change(entry)
    if foreign:  # rename the files, as another writer names them
        names = [entry[file] for file in ("raw_data", "zip_data") if entry[file] is not None]
        for file in names:
            if (root / file["basename"]).exists():
                (root / file["basename"]).rename(root / "shard.00000.mds")
            file["basename"] = "shard.00000.mds"
    (root / "index.json").write_text(json.dumps(index))
    return root


def swap_names(entry):
    entry["column_names"].reverse()


def other_encodings(entry):
    entry["column_encodings"] = ["float32", "int32"]


def other_sizes(entry):
    entry.update(column_encodings=["int64", "int32"], column_sizes=[8, 4])


def read(root, scratch):
    dataset = StreamingDataset(remote=str(root), cache=CacheOptions(local=str(scratch)))
    return [dataset[number] for number in range(dataset.size)]


@pytest.fixture
def make_source(tmp_path):
    def make(store, *, is_own):
        builder = ShardBuilder(Schema.from_columns({"a": "int", "b": "int"}), ShardOptions())
        builder.add({"a": 1, "b": 2})
        (filled,) = builder.finish()
        shard = filled.seal()
        store.put(shard.info.stored.basename, bytes(shard.payloads[0]))
        info = replace(shard.info, schema=Schema.from_columns({"c": "int", "d": "int"}))
        options = CacheOptions(local=str(tmp_path / "cache"), download_retry=1)
        return ShardCache(ShardSource(store, "d" * 64, [info], options, is_own=is_own))

    return make


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("change", [swap_names, other_encodings, other_sizes])
def test_an_index_entry_with_other_columns_than_the_shard_is_refused(tmp_path, change, compression):
    root = tamper(write(tmp_path / "set", compression=compression), change)
    with pytest.raises(
        FormatError, match=r"shard\.00000.* index entry says column_\w+ .* the shard itself .*Restore it"
    ):
        read(root, tmp_path / "cache")


def test_an_index_entry_with_other_columns_than_the_text_shard_is_refused(tmp_path):
    def change(entry):
        entry["column_encodings"] = ["str", "int"]

    root = tamper(write(tmp_path / "set", CSVWriter, {"height": "int", "width": "int"}), change)
    with pytest.raises(FormatError, match="index entry says column_encodings"):
        read(root, tmp_path / "cache")


@pytest.mark.parametrize("samples", [0, 9, 11])
def test_an_index_entry_with_another_number_of_samples_is_refused(tmp_path, samples):
    root = tamper(write(tmp_path / "set"), lambda entry: entry.update(samples=samples))
    with pytest.raises(IndexFileError if samples == 0 else FormatError, match="index says"):
        read(root, tmp_path / "cache")


def test_columns_in_a_shard_of_another_writer_are_not_compared(tmp_path):
    root = tamper(write(tmp_path / "set"), swap_names, foreign=True)
    assert read(root, tmp_path / "cache")[3] == {"width": 3, "height": 103}


def test_an_index_entry_that_agrees_with_its_shard_is_read(tmp_path):
    assert read(tamper(write(tmp_path / "set"), lambda _: None), tmp_path / "cache") == SAMPLES


def test_shards_of_a_version_are_compared_with_their_entries_in_any_store(tmp_path, make_source):
    """By the manifest, whatever the shards are called."""
    cache = make_source(MemoryStore(), is_own=True)
    with pytest.raises(FormatError, match="index entry says column_names"):
        cache.shard(0)
    assert len(make_source(MemoryStore(), is_own=False).shard(0)) == 1
