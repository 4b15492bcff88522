"""Shards byte for byte, names, and samples that are refused."""

import json

import numpy as np
import pytest

from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions

# The example of the format's description, worked out by MosaicML's writer.
COLUMNS = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
SAMPLES = [{"id": i, "text": f"héllo{i}", "tokens": np.arange(i + 1, dtype=np.int32)} for i in range(3)]


def build(columns, samples, options=None):
    builder, built = ShardBuilder(Schema.from_columns(columns), options or ShardOptions()), []
    for sample in samples:
        built += builder.add(sample)
    return [filled.seal() for filled in built + builder.finish()]


def test_shard_of_the_description_byte_for_byte():
    (shard,) = build(COLUMNS, SAMPLES, ShardOptions(hashes=("xxh64", "sha1")))
    data = bytes(shard.payloads[0])
    assert data[:24].hex() == "03000000fd0000001a0100003b010000600100007b22636f"[:48]
    first = "0700000006000000000000000000000068c3a96c6c6f30040100000000"
    assert data[0xFD : 0xFD + 29].hex() == first
    assert shard.info.to_json() == {
        "column_encodings": ["int", "str", "ndarray:int32"],
        "column_names": ["id", "text", "tokens"],
        "column_sizes": [8, None, None],
        "compression": None,
        "format": "mds",
        "hashes": ["sha1", "xxh64"],
        "raw_data": {
            "basename": "shard.00000.mds",
            "bytes": 352,
            "hashes": {"sha1": "2e88c379b13f9be81b819f1032a777a44d8dd414", "xxh64": "b8e48c8e5bc44b7d"},
        },
        "samples": 3,
        "size_limit": 67108864,
        "version": 2,
        "zip_data": None,
    }


def test_config_inside_the_shard_equals_its_index_entry():
    (shard,) = build({"x": "int"}, [{"x": 1}], ShardOptions("zstd:7", ("sha1",), "1kb"))
    assert shard.info.stored.basename == "shard.00000.mds.zstd"
    (raw,) = build({"x": "int"}, [{"x": 1}], ShardOptions(None, ("sha1",), "1kb"))
    config = json.loads(bytes(raw.payloads[0])[12 : raw.info.raw.num_bytes - 8])
    assert config == {
        "column_encodings": ["int"],
        "column_names": ["x"],
        "column_sizes": [8],
        "compression": None,
        "format": "mds",
        "hashes": ["sha1"],
        "size_limit": 1024,
        "version": 2,
    }


def test_shards_are_numbered_and_stay_within_the_limit():
    built = build({"x": "bytes"}, [{"x": bytes(10)}] * 30, ShardOptions(hashes=(), size_limit=300))
    assert [shard.info.raw.basename for shard in built][:3] == ["shard.00000.mds", "shard.00001.mds", "shard.00002.mds"]
    assert sum(shard.info.samples for shard in built) == 30
    assert all(len(shard.payloads[0]) <= 300 for shard in built)


def test_oversize_samples_get_shards_of_their_own_and_no_shard_is_empty():
    built = build({"x": "bytes"}, [{"x": bytes(10_000)}] * 3, ShardOptions(size_limit=64))
    assert [shard.info.samples for shard in built] == [1, 1, 1]


def test_no_samples_give_no_shard():
    assert build(COLUMNS, []) == []


def test_builder_continues_after_finish_with_the_next_number():
    builder = ShardBuilder(Schema.from_columns({"x": "int"}), ShardOptions())
    names = []
    for i in range(2):
        builder.add({"x": i})
        names += [filled.seal().info.raw.basename for filled in builder.finish()]
    assert names == ["shard.00000.mds", "shard.00001.mds"]
    assert builder.finish() == []


@pytest.mark.parametrize("sample", [{}, {"x": 1}, {"x": 1, "y": 2, "z": 3}, {"x": 1, "Y": 2}, {"x": 1, "y": 2, 3: 4}])
def test_missing_and_unknown_columns_are_refused(sample):
    with pytest.raises(SchemaError, match="exactly the columns"):
        build({"x": "int", "y": "int"}, [sample])


def test_refused_sample_is_named_and_leaves_no_trace():
    builder = ShardBuilder(Schema.from_columns({"x": "int", "y": "int8"}), ShardOptions())
    builder.add({"x": 1, "y": 1})
    with pytest.raises(SchemaError, match=r"column 'y' \(int8\), sample 1") as caught:
        builder.add({"x": 1, "y": 1000})
    assert (caught.value.column, caught.value.row) == ("y", 1)
    assert builder.finish()[0].seal().info.samples == 1


@pytest.mark.parametrize(
    "options",
    [
        ShardOptions(compression="lz4"),
        ShardOptions(hashes=("nope",)),
        ShardOptions(size_limit="4gb"),
        ShardOptions(size_limit=-1),
    ],
)
def test_bad_options_are_refused_before_any_sample(options):
    with pytest.raises(SchemaError):
        ShardBuilder(Schema.from_columns({"x": "int"}), options)


def test_hashes_are_recorded_sorted_for_raw_and_stored_file():
    (shard,) = build({"x": "int"}, [{"x": 1}], ShardOptions("zstd", ("xxh64", "sha1")))
    assert shard.info.hash_names == ("sha1", "xxh64")
    assert shard.info.zip is not None
    assert set(shard.info.raw.hashes) == set(shard.info.zip.hashes) == {"sha1", "xxh64"}
    assert shard.info.zip.num_bytes == len(shard.payloads[0])
