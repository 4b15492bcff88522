"""Reading samples and batches from a mapped shard."""

import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti.errors import ChecksumMismatch, FormatError, SchemaError
from smalti.format import FileInfo, Schema, Shard, ShardBuilder, ShardInfo, ShardOptions
from tests.format.columns import COLUMNS, NAMES, image_bytes, same
from tests.format.shards import build, write

MIXED = {"id": "int", "text": "str", "small": "int8", "raw": "bytes", "vec": "ndarray:float32:2"}


def mixed_samples(count):
    return [
        {"id": i, "text": "x" * (i % 7), "small": -i % 100, "raw": bytes([i % 256]) * (i % 3), "vec": [i, i / 2]}
        for i in range(count)
    ]


@st.composite
def sample_lists(draw):
    encodings = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    columns = {f"c{i}": encoding for i, encoding in enumerate(encodings)}
    row = st.fixed_dictionaries({name: COLUMNS[encoding][0] for name, encoding in columns.items()})
    return columns, draw(st.lists(row, min_size=1, max_size=8))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sample_lists(), st.data())
def test_samples_and_batches_give_back_what_was_written(tmp_path, table, data):
    columns, samples = table
    _, shard = write(tmp_path, columns, samples, size_limit=None)
    assert len(shard) == len(samples)
    rows = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=10))
    batch = shard.batch(np.array(rows, np.int64))
    assert list(batch) == sorted(columns)
    for name, encoding in columns.items():
        assert len(batch[name]) == len(rows)
        for place, row in enumerate(rows):
            assert same(batch[name][place], samples[row][name])
            if encoding not in {"jpeg", "png"}:
                assert same(shard[row][name], samples[row][name])


def test_batch_has_arrays_for_numbers_and_fixed_arrays_and_lists_for_the_rest(tmp_path):
    _, shard = write(tmp_path, MIXED, mixed_samples(20))
    batch = shard.batch(np.array([3, 1, 3, 19]))
    assert batch["id"].dtype == np.int64
    assert batch["id"].tolist() == [3, 1, 3, 19]
    assert batch["small"].dtype == np.int8
    assert batch["vec"].dtype == np.float32
    assert batch["vec"].tolist() == [[3, 1.5], [1, 0.5], [3, 1.5], [19, 9.5]]
    assert batch["text"] == ["xxx", "x", "xxx", "xxxxx"]
    assert batch["raw"] == [b"", b"\x01", b"", b"\x13"]


def test_images_come_undecoded_in_batches_and_decoded_in_samples(tmp_path):
    data = image_bytes("JPEG", (6, 4))
    _, shard = write(tmp_path, {"image": "jpeg", "label": "int"}, [{"image": data, "label": 1}])
    assert shard.batch(np.array([0]))["image"] == [data]
    assert shard[0]["image"].size == (6, 4)


def test_empty_batch_has_every_column(tmp_path):
    _, shard = write(tmp_path, MIXED, mixed_samples(3))
    batch = shard.batch(np.array([], np.int64))
    assert batch["id"].shape == (0,)
    assert batch["vec"].shape == (0, 2)
    assert batch["text"] == []


def test_indices_out_of_range_are_refused(tmp_path):
    _, shard = write(tmp_path, MIXED, mixed_samples(3))
    assert shard[-1]["id"] == 2
    for index in (3, -4):
        with pytest.raises(IndexError):
            shard[index]
    for indices in ([3], [-1], [0, 2**62], [0.5], [[0]]):
        with pytest.raises(IndexError):
            shard.batch(np.array(indices))
    with pytest.raises(TypeError):
        shard["id"]


def test_values_outlive_the_file_and_the_shard(tmp_path):
    info, shard = write(tmp_path, MIXED, mixed_samples(50))
    batch, sample = shard.batch(np.arange(50)), shard[7]
    (tmp_path / info.raw.basename).unlink()
    assert shard[8]["id"] == 8
    shard.close()
    assert batch["vec"][49].tolist() == [49, 24.5]
    assert sample["vec"].tolist() == [7, 3.5]
    batch["vec"][:] = 0
    for use in (lambda: shard[0], lambda: shard.batch(np.array([0]))):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_many_threads_read_one_shard(tmp_path):
    _, shard = write(tmp_path, MIXED, mixed_samples(500))
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            rows = rng.integers(0, 500, 40)
            if shard.batch(rows)["id"].tolist() != rows.tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_empty_shard_of_other_writers_opens(tmp_path):
    config = b'{"version": 2}'
    data = bytes(4) + (8 + len(config)).to_bytes(4, "little") + config
    (tmp_path / "s").write_bytes(data)
    schema = Schema.from_columns({"x": "int", "y": "str"})
    shard = Shard.open(tmp_path / "s", ShardInfo(schema, 0, FileInfo("s", len(data))))
    assert len(shard) == 0
    assert shard.batch(np.array([], np.int64))["x"].shape == (0,)
    with pytest.raises(IndexError):
        shard[0]


def test_padding_after_samples_and_any_config_are_allowed(tmp_path):
    # Samples of 8 + 3 bytes, aligned to 16; the config is not JSON.
    config, pad = b"anything", bytes(5)
    rows = [(7).to_bytes(8, "little") + b"abc" + pad, (8).to_bytes(8, "little") + b"def" + pad]
    begin = 16 + len(config)
    data = b"".join(n.to_bytes(4, "little") for n in (2, begin, begin + 16, begin + 32)) + config + b"".join(rows)
    (tmp_path / "s").write_bytes(data)
    schema = Schema(("n", "t"), ("int", "ndarray:uint8:3"), (8, 3))
    shard = Shard.open(tmp_path / "s", ShardInfo(schema, 2, FileInfo("s", len(data))))
    assert shard.batch(np.array([1, 0]))["n"].tolist() == [8, 7]
    assert bytes(shard[1]["t"]) == b"def"


def test_columns_are_read_in_the_order_of_the_index(tmp_path):
    info, _ = write(tmp_path, {"a": "int8", "b": "int8"}, [{"a": 1, "b": 2}])
    swapped = replace(info, schema=Schema(("b", "a"), ("int8", "int8"), (1, 1)))
    assert Shard.open(tmp_path / info.raw.basename, swapped)[0] == {"b": 1, "a": 2}


def test_opening_checks_size_count_and_encodings(tmp_path):
    info, _ = write(tmp_path, MIXED, mixed_samples(3))
    path = tmp_path / info.raw.basename
    with pytest.raises(ChecksumMismatch):
        Shard.open(path, replace(info, raw=replace(info.raw, num_bytes=info.raw.num_bytes + 1)))
    for samples in (2, 4, 10**6):
        with pytest.raises(FormatError):
            Shard.open(path, replace(info, samples=samples))
    with pytest.raises(SchemaError, match="pkl"):
        Shard.open(path, replace(info, schema=Schema(("x",), ("pkl",), (None,))))
    with pytest.raises(FileNotFoundError):
        Shard.open(tmp_path / "other", info)
    path.write_bytes(b"")
    with pytest.raises(ChecksumMismatch):
        Shard.open(path, replace(info, raw=replace(info.raw, num_bytes=0)))


def test_damaged_value_is_named_with_sample_and_column(tmp_path):
    info, shard = write(tmp_path, {"t": "str", "n": "int"}, [{"t": "aé", "n": 1}, {"t": "bé", "n": 2}])
    path = tmp_path / info.raw.basename
    data = path.read_bytes()
    shard.close()
    path.write_bytes(data[:-1] + b"\xff")
    shard = Shard.open(path, info)
    assert shard[0]["t"] == "aé"
    for read in (lambda: shard[1], lambda: shard.batch(np.array([0, 1]))):
        with pytest.raises(FormatError) as caught:
            read()
        assert (caught.value.sample, caught.value.column) == (1, "t")
    assert shard.batch(np.array([0]))["n"].tolist() == [1]


def test_wide_batch_from_arrow_comes_back(tmp_path):
    tokens = np.arange(64 * 2048, dtype=np.int32).reshape(64, 2048)
    builder = ShardBuilder(Schema.from_columns({"tokens": "ndarray:int32:2048"}), ShardOptions())
    lists = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), 2048)
    builder.add_batch(pa.record_batch([lists], ["tokens"]))
    built = builder.finish()[0].seal()
    (tmp_path / "s").write_bytes(built.payloads[0])
    rows = np.array([63, 0, 5])
    assert np.array_equal(Shard.open(tmp_path / "s", built.info).batch(rows)["tokens"], tokens[rows])


def test_one_shard_for_everything_without_limit():
    assert len(build({"x": "bytes"}, [{"x": bytes(1000)}] * 100, size_limit=None)) == 1
