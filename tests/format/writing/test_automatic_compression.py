"""Compression `auto`: a shard is compressed if that makes it a tenth smaller, by its content alone."""

import random

import pytest

from smalti import MDSWriter, load_manifest, open_dataset
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.format.layout import encode_config
from smalti.format.text import layout_of, text_schema
from tests.text_writers import TextBuilder

TEXT = b"the same words again and again, "
SIZES = [0, 1, 1000, 100_000, 1_000_000]


def noise(num_bytes):
    return random.Random(num_bytes).randbytes(num_bytes)


def text(num_bytes):
    return (TEXT * (num_bytes // len(TEXT) + 1))[:num_bytes]


def build(values, compression="auto", size_limit=None):
    """Return the shards of these values."""
    builder = ShardBuilder(
        Schema.from_columns({"x": "bytes"}), ShardOptions(compression, size_limit=size_limit or 1 << 26)
    )
    filled = [shard for value in values for shard in builder.add({"x": value})]
    return [shard.seal() for shard in [*filled, *builder.finish()]]


@pytest.mark.parametrize("size", SIZES)
def test_noise_is_stored_as_without_compression(size):
    [found], [expected] = build([noise(size)]), build([noise(size)], None)
    assert found == expected


@pytest.mark.parametrize("size", SIZES[2:])
def test_text_is_stored_as_with_zstd(size):
    [found], [expected] = build([text(size)]), build([text(size)], "zstd")
    assert found == expected
    assert len(found.payloads[0]) < size / 5


def test_a_column_counts_as_much_as_it_has_bytes():
    [mostly_noise] = build([noise(950_000) + text(50_000)])
    [some_text] = build([noise(500_000) + text(500_000)])
    assert mostly_noise.info.compression is None
    assert some_text.info.compression == "zstd"


def test_each_shard_decides_for_itself_and_the_set_is_read_as_one(tmp_path):
    values = [text(60_000), noise(60_000), text(60_000)]
    with MDSWriter(out=str(tmp_path), columns={"x": "bytes"}, compression="auto", size_limit=65_000) as writer:
        for value in values:
            writer.write({"x": value})
    assert [info.compression for info in load_manifest(tmp_path).shards] == ["zstd", None, "zstd"]
    dataset = open_dataset(tmp_path)
    assert [dataset[number]["x"] for number in range(3)] == values


def test_no_shard_exceeds_the_limit_with_either_outcome():
    head = 8 + len(
        encode_config(
            Schema.from_columns({"x": "bytes"}).config(compression="zstd", hashes=("xxh3_64",), size_limit=5000)
        )
    )
    value_bytes = (5000 - head - 3 * 12) // 3
    for make in (noise, text):
        shards = build([make(value_bytes)] * 9, size_limit=5000)
        assert all(shard.info.raw.num_bytes <= 5000 for shard in shards)
        assert sum(shard.info.samples for shard in shards) == 9


def test_shards_of_text_lines_decide_too():
    layout = layout_of("json", text_schema({"x": "str"}), "\n", None)
    for value, expected in ((text(5000), "zstd"), (noise(5000).hex().encode(), "zstd"), (b"short", None)):
        builder = TextBuilder(layout, ShardOptions("auto"))
        builder.add({"x": value.decode()})
        [shard] = builder.finish()
        assert shard.seal().info.compression == expected
