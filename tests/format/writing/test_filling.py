"""Memory in which shards grow: reused only after the last view of the shard is gone."""

import gc
import weakref

import numpy as np
import pytest

from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.format.writing.sealing import FillingShard, SpareMemory


def address(view):
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


def test_head_stands_right_before_the_samples():
    shard = FillingShard(10, 100, SpareMemory())
    shard.append(b"abc")
    shard.append(b"")
    shard.append(memoryview(b"de"))
    view = shard.close(b"head")
    assert bytes(view) == b"headabcde"
    assert view.readonly


def test_head_that_is_longer_than_expected_and_samples_beyond_the_limit_still_fit():
    shard = FillingShard(2, 4, SpareMemory())
    samples = bytes(range(256)) * 10
    for begin in range(0, len(samples), 100):
        shard.append(samples[begin : begin + 100])
    assert bytes(shard.close(b"a long head")) == b"a long head" + samples


@pytest.mark.slow
def test_memory_is_reused_only_after_the_last_view_is_gone():
    spare = SpareMemory()
    first = FillingShard(10, 100, spare)
    first.append(b"first")
    view = first.close(b"")
    place, part = address(view), view[1:3]
    array = np.frombuffer(view, np.uint8)
    del view, first
    gc.collect()
    second = FillingShard(10, 100, spare)
    second.append(b"SECOND")
    assert bytes(part) == b"ir"
    assert array.tobytes() == b"first"
    del part, array
    gc.collect()
    third = FillingShard(10, 100, spare)
    third.append(b"third")
    view = third.close(b"")
    assert address(view) == place
    assert bytes(second.close(b"")) == b"SECOND"


def test_memory_of_one_builder_is_reused_by_later_ones_if_large_enough():
    spare = SpareMemory()
    places = []
    for limit in (100, 100, 50):
        shard = FillingShard(10, limit, spare)
        shard.append(b"sample")
        view = shard.close(b"head ")
        assert bytes(view) == b"head sample"
        places.append(address(view))
        del shard, view
    assert places[0] == places[1] == places[2]
    assert len(spare.take(1000)) == 1000


def test_shard_is_sealed_once():
    builder = ShardBuilder(Schema.from_columns({"x": "int"}), ShardOptions())
    builder.add({"x": 1})
    (shard,) = builder.finish()
    shard.seal()
    with pytest.raises(ValueError, match="sealed once"):
        shard.seal()


def test_shards_still_referenced_do_not_change_while_the_builder_continues():
    builder = ShardBuilder(Schema.from_columns({"x": "bytes"}), ShardOptions(hashes=(), size_limit=300))
    views, copies = [], []
    for i in range(60):
        for shard in builder.add({"x": bytes([i]) * 100}):
            views.append(shard.seal().payloads[0])
            copies.append(bytes(views[-1]))
    assert len(views) == 59
    assert [bytes(view) for view in views] == copies
    assert len(set(copies)) == 59


def test_unreferenced_builder_is_freed_at_once_with_its_memory():
    builder = ShardBuilder(Schema.from_columns({"x": "int"}), ShardOptions())
    builder.add({"x": 1})
    builder.add({"x": np.float64(1)})
    builder.finish()[0].seal()
    gone = []
    weakref.finalize(builder, gone.append, 1)
    gc.disable()
    try:
        del builder
    finally:
        gc.enable()
    assert gone == [1]
