"""Versions of text shards: written, appended to, and read."""

import numpy as np
import pyarrow as pa
import pytest

from smalti import LocalDataset, MDSWriter, load_manifest, open_dataset, verify
from smalti.cache import CacheOptions
from smalti.errors import DatasetExists, SchemaError
from tests.text_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter

COLUMNS = {"id": "int", "name": "str", "x": "float"}
KINDS = [(JSONWriter, {}), (CSVWriter, {}), (TSVWriter, {}), (XSVWriter, {"separator": "||"})]


def rows(count):
    return [{"id": i, "name": f"n{i}", "x": i / 4} for i in range(count)]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_rows_and_batches_become_one_version(kind, options, tmp_path):
    with kind(columns=COLUMNS, out=tmp_path, size_limit="300b", hashes=["sha1", "xxh64"], **options) as writer:
        for row in rows(10):
            writer.write(row)
        writer.write_batch(pa.Table.from_pylist(rows(30)[10:]))
    assert load_manifest(tmp_path) == writer.manifest
    assert writer.manifest.version == 1
    assert (
        writer.manifest.shards[0].raw.hashes.keys() == writer.manifest.shards[0].meta.hashes.keys() == {"sha1", "xxh64"}
    )
    assert verify(tmp_path).ok
    assert LocalDataset(tmp_path)[:] == rows(30)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_published_set_is_read_in_batches_from_a_store(kind, options, tmp_path):
    with kind(columns=COLUMNS, out=tmp_path / "set", size_limit=200, compression="zstd", **options) as writer:
        for row in rows(40):
            writer.write(row)
    dataset = open_dataset(
        str(tmp_path / "set"), cache=CacheOptions(local=str(tmp_path / "cache")), batch_size=8, shuffle=True
    )
    assert sorted(sample["id"] for sample in dataset) == list(range(40))
    stream = dataset.stream
    ids = np.random.default_rng(0).permutation(40)
    columns = stream.batch(ids)
    assert columns["id"].tolist() == ids.tolist()
    assert columns["name"] == [f"n{i}" for i in ids]
    assert columns["x"].tolist() == (ids / 4).tolist()


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_text_set_is_appended_to_and_overwritten(kind, options, tmp_path):
    for mode, samples in (("append", rows(2)), ("append", rows(4)[2:]), ("overwrite", rows(1)), ("append", rows(1))):
        with kind(columns=COLUMNS, out=tmp_path, mode=mode, **options) as writer:
            for row in samples:
                writer.write(row)
        if mode == "append" and len(samples) == 2:
            appended = LocalDataset(tmp_path)[:]
    assert appended == rows(4)
    assert LocalDataset(tmp_path)[:] == rows(1) * 2
    with pytest.raises(SchemaError, match="cannot append to version 4"):
        kind(columns={"id": "int"}, out=tmp_path, mode="append", **options)
    with pytest.raises(DatasetExists, match='mode="append"'):
        kind(columns=COLUMNS, out=tmp_path, **options)


def test_numbers_as_text_are_not_appended_to_numbers_in_mds(tmp_path):
    with MDSWriter(columns=COLUMNS | {"x": "float64"}, out=tmp_path) as writer:
        writer.write(rows(1)[0])
    with pytest.raises(SchemaError, match=r"'x': 'float64'"):
        CSVWriter(columns=COLUMNS, out=tmp_path, mode="append")
    with MDSWriter(columns={"id": "int", "name": "str"}, out=tmp_path, mode="overwrite") as writer:
        writer.write({"id": 1, "name": "a"})
    with pytest.raises(SchemaError, match="one of them in MDS and the other as text; use a writer of the set's format"):
        CSVWriter(columns={"id": "int", "name": "str"}, out=tmp_path, mode="append")
