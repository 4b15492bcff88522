"""The row hash depends on the samples alone, not on their order or shards."""

import numpy as np
import pytest
from xxhash import xxh3_128_intdigest

from smalti.errors import SchemaError
from smalti.format import Schema, Shard, ShardBuilder, ShardOptions, open_shard, text_schema
from smalti.format.hashing import MODULUS, hash_rows
from smalti.format.reading.files import StoredSamples
from smalti.format.text import TextLayout
from tests.text_writers import TextBuilder

SCHEMA = Schema.from_columns({"id": "int32", "text": "str"})


def built(rows, size_limit=None, schema=SCHEMA):
    builder = ShardBuilder(schema, ShardOptions(size_limit=size_limit))
    return [filled for row in rows for filled in builder.add(row)] + builder.finish()


def rows(count, first=0):
    return [{"id": number, "text": "x" * (number % 5)} for number in range(first, first + count)]


def test_row_hash_is_the_sum_of_xxh3_128_of_every_stored_sample():
    # A stored sample: uint32 length of the text | int32 id | text.
    stored = [b"\x00\x00\x00\x00\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01\x00\x00\x00x"]
    expected = (xxh3_128_intdigest(stored[0]) + xxh3_128_intdigest(stored[1])) % (1 << 128)
    assert hash_rows(memoryview(b"".join(stored)), [0, 8, 17]) == expected
    assert built(rows(2))[0].row_hash() == expected


def test_known_values():
    """Values of the reference implementation of XXH3; published headers contain them."""
    assert f"{hash_rows(memoryview(b''), [0, 0]):032x}" == "99aa06d3014798d86001c324468d497f"
    assert hash_rows(memoryview(b""), [0]) == 0


def test_order_and_cuts_do_not_matter_and_every_sample_does():
    total = sum(filled.row_hash() for filled in built(rows(50)))
    assert sum(filled.row_hash() for filled in built(rows(50)[::-1], size_limit=300)) % MODULUS == total
    assert sum(filled.row_hash() for filled in built(rows(49))) % MODULUS != total
    assert sum(filled.row_hash() for filled in built([*rows(49), {"id": 49, "text": "xxxy"}])) % MODULUS != total
    twice = sum(filled.row_hash() for filled in built([*rows(50), *rows(1)])) % MODULUS
    assert twice != total, "a sample that stands twice counts twice"


def test_many_rows_give_the_same_as_few_at_a_time():
    data = bytes(range(256)) * 600
    ends = list(range(len(data) + 1))  # 153,600 samples of a byte: more than are taken at once
    expected = sum(xxh3_128_intdigest(bytes([value])) for value in range(256)) * 600 % MODULUS
    assert hash_rows(memoryview(data), ends) == expected
    assert hash_rows(memoryview(data), np.array(ends)) == expected


def test_a_shard_that_was_stored_has_the_hash_of_what_was_written(tmp_path):
    (filled,) = built(rows(20))
    expected = filled.row_hash()
    shard = filled.seal()
    (tmp_path / "s").write_bytes(shard.payloads[0])
    opened = Shard.open(tmp_path / "s", shard.info)
    stored = opened.stored_samples()
    assert (len(stored), stored.row_hash()) == (20, expected)
    assert (stored[:7].row_hash() + stored[7:].row_hash()) % MODULUS == expected
    assert len(stored[20:]) == len(stored[30:]) == 0
    with pytest.raises(ValueError, match="consecutive samples"):
        stored[::2]


def test_text_shards_have_a_row_hash(tmp_path):
    builder = TextBuilder(TextLayout("json", text_schema({"id": "int"})), ShardOptions())
    (filled,) = [*builder.add({"id": 1}), *builder.add({"id": 2}), *builder.finish()]
    expected = filled.row_hash()
    shard = filled.seal()
    for name, data in zip(("data", "meta"), shard.payloads, strict=True):
        (tmp_path / name).write_bytes(data)
    opened = open_shard([tmp_path / "data", tmp_path / "meta"], shard.info)
    lines = memoryview(b'{"id": 1}\n{"id": 2}\n')
    assert opened.stored_samples().row_hash() == expected == hash_rows(lines, [0, 10, 20])


def test_a_sealed_shard_cannot_be_hashed():
    (filled,) = built(rows(3))
    filled.seal()
    with pytest.raises(ValueError, match="sealed once"):
        filled.row_hash()


# ---------------------------------------------------------------------- samples copied as they are


def test_samples_that_are_copied_give_the_shards_that_writing_them_gives(tmp_path):
    (source,) = [filled.seal() for filled in built(rows(60))]
    (tmp_path / "s").write_bytes(source.payloads[0])
    stored = Shard.open(tmp_path / "s", source.info).stored_samples()
    builder = ShardBuilder(SCHEMA, ShardOptions(size_limit=400))
    filled = builder.add(rows(1, first=100)[0])
    filled += builder.add_encoded(stored[:25].lengths, stored[:25].content)
    filled += builder.add_encoded(stored[25:].lengths, stored[25:].content)
    filled += builder.finish()
    expected = built([*rows(1, first=100), *rows(60)], size_limit=400)
    assert [bytes(each.seal().payloads[0]) for each in filled] == [bytes(each.seal().payloads[0]) for each in expected]


def test_lengths_that_are_not_those_of_the_data_are_refused():
    builder = ShardBuilder(SCHEMA, ShardOptions())
    with pytest.raises(SchemaError, match="lengths add up to 7 bytes, found 8"):
        builder.add_encoded(np.array([3, 4]), memoryview(b"12345678"))
    assert builder.add_encoded(np.zeros(0, np.int64), memoryview(b"")) == []
    assert builder.finish() == []


def test_stored_samples_are_cut_without_copying():
    samples = StoredSamples(memoryview(b"..aabbb."), np.array([2, 4, 7]))
    assert (bytes(samples.content), samples.lengths.tolist()) == (b"aabbb", [2, 3])
    assert bytes(samples[1:].content) == b"bbb"
