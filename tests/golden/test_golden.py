"""What MosaicML's writer wrote is read value for value, and written again byte for byte."""

import struct
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smalti.format import (
    Schema,
    ShardBuilder,
    ShardOptions,
    emit_index,
    parse_compression,
    parse_encoding,
    verify_file,
)
from tests.golden.values import COMPRESSED, SETS, assert_same, expected, index, open_shard


@pytest.fixture(params=SETS)
def folder(request, shared):
    return shared / "golden" / request.param


def options(spec):
    given = spec["options"]
    return ShardOptions(given.get("compression"), tuple(given.get("hashes", ())), given.get("size_limit", 1 << 26))


def test_every_sample_has_the_expected_values(folder):
    spec = expected(folder)
    found = [sample for info in index(folder) for sample in _samples(open_shard(folder, info))]
    assert len(found) == len(spec["samples"])
    for sample, wanted in zip(found, spec["samples"], strict=True):
        assert list(sample) == sorted(spec["columns"])
        for name, value in wanted.items():
            assert_same(sample[name], value)


def _samples(shard):
    return [shard[i] for i in range(len(shard))]


def test_every_batch_has_the_expected_values(folder):
    spec = expected(folder)
    samples = iter(spec["samples"])
    for info in index(folder):
        batch = open_shard(folder, info).batch(np.arange(info.samples))
        for row in range(info.samples):
            for name, value in next(samples).items():
                found = batch[name][row]
                if spec["columns"][name] in {"jpeg", "png"}:
                    found = Image.open(BytesIO(found))
                assert_same(found.item() if spec["columns"][name] == "int" else found, value)
    assert next(samples, None) is None


def test_files_verify_and_decompress_to_the_raw_ones(folder):
    for info in index(folder):
        verify_file(folder / info.stored.basename, info.stored, what=info.stored.basename)
        verify_file(folder / info.raw.basename, info.raw, what=info.raw.basename)
        compression = parse_compression(info.compression)
        if compression is not None:
            out = BytesIO()
            compression.decompress_file(folder / info.stored.basename, out, info.raw.num_bytes)
            assert out.getvalue() == (folder / info.raw.basename).read_bytes()


def test_index_is_written_again_byte_for_byte(folder):
    assert emit_index(index(folder)) == (folder / "index.json").read_bytes()


def rewritable(folder, spec):
    """The samples to write again: image files as the bytes that lie there, since an encoder may differ."""
    samples = []
    for info in index(folder):
        shard = open_shard(folder, info)
        stored = shard.gather(np.arange(info.samples))
        for row in range(info.samples):
            sample = shard[row]
            for name, encoding in spec["columns"].items():
                if encoding in {"jpeg", "png"}:
                    sample[name] = bytes(stored[name][row])
                elif encoding in {"list[jpeg]", "list[png]", "jpeg_array"}:
                    sample[name] = files_of(bytes(stored[name][row]), reserved=0 if encoding == "jpeg_array" else 4)
            samples.append(sample)
    return samples


def files_of(data, reserved):
    """The image files of a list, cut by the format's description and not by the reader under test."""
    (count,) = struct.unpack_from("<I", data, reserved)
    sizes = struct.unpack_from(f"<{count}I", data, reserved + 4)
    files, at = [], reserved + 4 + 4 * count
    for size in sizes:
        files.append(data[at : at + size])
        at += size
    assert at == len(data)
    return files


def without_time(data, info):
    """A gzip file without the four bytes in which MosaicML's writer says when it was written."""
    return data[:4] + data[8:] if info.compression == "gz:6" else data


def assert_written_again(built, folder):
    infos = [info for info in index(folder) if info.samples]  # MosaicML's writer may begin with an empty shard
    assert [shard.info.samples for shard in built] == [info.samples for info in infos]
    for shard, info in zip(built, infos, strict=True):
        assert shard.info.raw.hashes == info.raw.hashes
        wanted = (folder / info.stored.basename).read_bytes()
        assert without_time(bytes(shard.payloads[0]), info) == without_time(wanted, info)
        raw = (folder / info.raw.basename).read_bytes()
        assert shard.info.raw.num_bytes == len(raw)
        if info.zip is None:
            assert bytes(shard.payloads[0]) == raw
        elif info.compression != "gz:6":
            assert shard.info.stored.hashes == info.stored.hashes


def test_samples_written_again_give_the_same_files(folder):
    spec = expected(folder)
    builder, filled = ShardBuilder(Schema.from_columns(spec["columns"]), options(spec)), []
    for sample in rewritable(folder, spec):
        filled += builder.add(sample)
    assert_written_again([shard.seal() for shard in [*filled, *builder.finish()]], folder)


@pytest.mark.parametrize("name", ["scalars", "one_per_shard", *COMPRESSED])
def test_samples_written_again_by_column_give_the_same_files(name, shared):
    folder = shared / "golden" / name
    spec = expected(folder)
    columns = {
        column: pa.array(np.array([sample[column] for sample in spec["samples"]]))
        if name == "scalars"
        else pa.array([sample[column] for sample in spec["samples"]])
        for column in spec["columns"]
    }
    builder = ShardBuilder(Schema.from_columns(spec["columns"]), options(spec))
    filled = [*builder.add_batch(pa.record_batch(columns)), *builder.finish()]
    assert_written_again([shard.seal() for shard in filled], folder)


def test_empty_first_shard_of_mosaicmls_writer_is_read_and_not_written(shared):
    """Where the first sample is larger than the limit, MosaicML writes a shard without samples before it."""
    folder = shared / "golden" / "one_per_shard"
    infos = index(folder)
    assert [info.samples for info in infos] == [0, 1, 1, 1, 1, 1]
    empty = open_shard(folder, infos[0])
    assert len(empty) == 0
    assert empty.batch(np.arange(0)) == {"b": []}
    with pytest.raises(IndexError):
        empty[0]


def test_bytes_that_are_stored_values_are_stored_unchanged(shared):
    """MosaicML's writer takes bytes for any encoding; ours does where they can be checked."""
    for name in ("image_lists", "images", "text", "arrays"):
        folder = shared / "golden" / name
        spec = expected(folder)
        for info in index(folder):
            stored = open_shard(folder, info).gather(np.arange(info.samples))
            for column, encoding in spec["columns"].items():
                if encoding == "int" or encoding.count(":") == 2:
                    continue  # of fixed size: any bytes would do
                for row in range(info.samples):
                    data = bytes(stored[column][row])
                    assert parse_encoding(encoding).encode(data) == data
