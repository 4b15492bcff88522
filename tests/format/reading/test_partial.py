"""Shards of which some blocks are in memory: the same samples as the whole shard, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import ChecksumMismatch, FormatError
from smalti.format import BlockHashes, Schema, ShardBuilder, ShardOptions, place_lists
from smalti.format.hashing import hash_blocks
from smalti.format.reading.batch import OpenOptions
from smalti.format.reading.shard import PartialFile, PartialShard, header_bytes

BLOCK = 4096
SCHEMA = Schema.from_columns({"id": "int", "data": "bytes"})


def built(sizes):
    """Return the entry and the bytes of a shard with samples of these sizes."""
    builder = ShardBuilder(SCHEMA, ShardOptions())
    for number, size in enumerate(sizes):
        builder.add({"id": number, "data": bytes([number % 251]) * size})
    (filled,) = builder.finish()
    shard = filled.seal()
    data = bytes(shard.payloads[0])
    (blocks,) = place_lists([hash_blocks(data, BLOCK)], "blocks", BLOCK)
    return replace(shard.info, blocks=blocks), data


def opened(info, data):
    """Return the shard with its header alone."""
    hashes = BlockHashes(hash_blocks(data, BLOCK), info.blocks, len(data), what="shard")
    parts = PartialFile(hashes, info.raw.basename)
    end = min(len(data), -(-header_bytes(info) // BLOCK) * BLOCK)
    parts.add(data[:end], 0)
    return PartialShard.open_parts(parts, info, OpenOptions(check_config=True))


SIZES = st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data())
def test_the_chosen_samples_are_right_whatever_blocks_they_lie_in(sizes, choices):
    info, data = built(sizes)
    shard = opened(info, data)
    rows = np.array(choices.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=8)))
    most = choices.draw(st.sampled_from([1, BLOCK, 3 * BLOCK, 1 << 20]))
    for begin, end in shard.missing(rows, most):
        assert end - begin <= max(most, BLOCK)
        shard.parts.add(data[begin:end], begin)
    assert shard.missing(rows, most) == []
    found = shard.batch(rows)
    assert found["id"].tolist() == rows.tolist()
    assert found["data"] == [bytes([row % 251]) * sizes[row] for row in rows.tolist()]
    assert shard.parts.num_loaded_bytes <= len(data)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data())
def test_a_block_with_any_flipped_bit_is_not_added(sizes, choices):
    info, data = built(sizes)
    shard = opened(info, data)
    ranges = shard.missing(None, 1 << 20)
    for begin, end in ranges:
        place = choices.draw(st.integers(begin, end - 1))
        damaged = bytearray(data[begin:end])
        damaged[place - begin] ^= 1 << choices.draw(st.integers(0, 7))
        with pytest.raises(ChecksumMismatch):
            shard.parts.add(damaged, begin)
    assert shard.missing(None, 1 << 20) == ranges


def test_samples_in_blocks_that_were_not_added_are_refused():
    info, data = built([BLOCK] * 10)
    shard = opened(info, data)
    for begin, end in shard.missing(np.array([4]), 1 << 20):
        shard.parts.add(data[begin:end], begin)
    assert shard[4]["id"] == 4
    assert shard[-6]["id"] == 4
    for use in (lambda: shard[9], lambda: shard.gather(np.array([4, 9])), shard.stored_samples):
        with pytest.raises(FormatError, match="not fetched"):
            use()


def test_a_header_that_contradicts_the_index_is_refused():
    info, data = built([10, 20])
    with pytest.raises(FormatError, match="expected 3 samples"):
        opened(replace(info, samples=3), data)
