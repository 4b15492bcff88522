"""What MosaicML's writer wrote is read value for value, and written again byte for byte."""

from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smalti.errors import IndexFileError
from smalti.format import Schema, ShardBuilder, ShardOptions, emit_index, parse_compression, parse_index, verify_file
from tests.golden.values import SETS, assert_same, expected, index, open_shard


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
    """The samples to write again: images as the bytes that lie there, since a JPEG encoder may differ."""
    names = [name for name, encoding in spec["columns"].items() if encoding in {"jpeg", "png"}]
    samples = []
    for info in index(folder):
        shard = open_shard(folder, info)
        batch = shard.batch(np.arange(info.samples))
        samples += [{**shard[row], **{name: batch[name][row] for name in names}} for row in range(info.samples)]
    return samples


def test_samples_written_again_give_the_same_files(folder):
    spec = expected(folder)
    builder, built = ShardBuilder(Schema.from_columns(spec["columns"]), options(spec)), []
    for sample in rewritable(folder, spec):
        built += builder.add(sample)
    built += builder.finish()
    infos = [info for info in index(folder) if info.samples]  # MosaicML's writer may begin with an empty shard
    assert [shard.info.samples for shard in built] == [info.samples for info in infos]
    for shard, info in zip(built, infos, strict=True):
        assert bytes(shard.payload) == (folder / info.stored.basename).read_bytes()
        assert shard.info.raw.hashes == info.raw.hashes
        assert shard.info.stored.hashes == info.stored.hashes


@pytest.mark.parametrize("name", ["scalars", "comp_zstd_3", "one_per_shard"])
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
    built = builder.add_batch(pa.record_batch(columns)) + builder.finish()
    infos = [info for info in index(folder) if info.samples]
    for shard, info in zip(built, infos, strict=True):
        assert bytes(shard.payload) == (folder / info.stored.basename).read_bytes()


@pytest.mark.parametrize(
    "name", ["jsonl", "csv", "tsv", "image_lists", "comp_br_5", "comp_bz2_9", "comp_gz_6", "comp_snappy"]
)
def test_what_this_version_cannot_read_is_refused_at_open(name, shared):
    path = shared / "golden" / name / "index.json"
    with pytest.raises(IndexFileError):
        parse_index(path.read_bytes(), where=str(path))
