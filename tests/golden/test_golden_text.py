"""The text shards that MosaicML's writer wrote are read value for value, and written again byte for byte."""

import json
import shutil

import numpy as np
import pytest

from smalti import LocalDataset
from smalti.format import ShardOptions, emit_index, open_shard, parse_index, verify_file
from tests.text_writers import CSVWriter, JSONWriter, TextBuilder, TSVWriter

WRITERS = {"jsonl": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter}
COLUMNS = {"id": "int", "name": "str", "x": "float"}


@pytest.fixture(params=WRITERS)
def folder(request, shared):
    return shared / "golden" / request.param


def expected(folder):
    return json.loads((folder / "expected.json").read_text())["samples"]


def index(folder):
    return parse_index((folder / "index.json").read_bytes(), where=str(folder / "index.json"))[0]


def test_every_sample_and_batch_has_the_expected_values(folder):
    wanted, row = expected(folder), 0
    for info in index(folder):
        shard = open_shard([folder / file.basename for file in info.raw_files], info)
        batch = shard.batch(np.arange(len(shard)))
        for place in range(len(shard)):
            assert shard[place] == wanted[row]
            assert {name: type(value) for name, value in shard[place].items()} == {"id": int, "name": str, "x": float}
            assert {name: column[place] for name, column in batch.items()} == wanted[row]
            row += 1
    assert row == len(wanted) == 40


def test_all_files_verify(folder):
    for info in index(folder):
        assert len(info.stored_files) == len(info.raw_files) == 2
        for file in (*info.stored_files, *info.raw_files):
            verify_file(folder / file.basename, file, what=file.basename)


def test_the_index_is_written_again_byte_for_byte(folder):
    assert emit_index(index(folder)) == (folder / "index.json").read_bytes()


def test_samples_written_again_give_the_same_files(folder):
    infos = index(folder)
    options = ShardOptions("zstd", ("sha1",), 600)  # what the folder was written with, by its index
    builder = TextBuilder(infos[0].layout, options)
    filled = [shard for sample in expected(folder) for shard in builder.add(sample)] + builder.finish()
    built = [shard.seal() for shard in filled]
    assert [shard.info for shard in built] == infos
    for shard in built:
        for file, data in zip(shard.info.stored_files, shard.payloads, strict=True):
            assert data == (folder / file.basename).read_bytes()


def test_raw_files_are_written_again_byte_for_byte_by_the_writers(folder, tmp_path):
    kind = WRITERS[folder.name]
    with kind(out=tmp_path, columns=COLUMNS, size_limit=600, hashes=["sha1"]) as writer:
        for sample in expected(folder):
            writer.write(sample)
    for found, info in zip(writer.manifest.shards, index(folder), strict=True):
        assert (tmp_path / found.raw.basename).read_bytes() == (folder / info.raw.basename).read_bytes()
        assert found.raw.hashes == info.raw.hashes


@pytest.mark.parametrize("raw", [True, False])
def test_a_local_dataset_reads_the_folder_raw_and_compressed(folder, raw, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for path in folder.iterdir():
        if not raw or not path.name.endswith("zstd"):
            shutil.copy(path, tmp_path)
    if raw:
        entries = json.loads((tmp_path / "index.json").read_text())
        for entry in entries["shards"]:
            entry.update(compression=None, zip_data=None, zip_meta=None)
        (tmp_path / "index.json").write_text(json.dumps(entries))
    assert LocalDataset(tmp_path)[:] == expected(folder)
