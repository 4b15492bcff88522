"""Single samples collected in blocks: the same shards as by other ways, at the same calls, and no loss unnoticed."""

import contextlib
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions

COLUMNS = {"x": "bytes", "n": "uint8"}
# Config and counts take 156 bytes of a shard of these columns, a sample 9 and its value.
OPTIONS = ShardOptions(hashes=(), size_limit=700)


def builder_of(columns=COLUMNS, options=OPTIONS):
    return ShardBuilder(Schema.from_columns(columns), options)


def files(shards):
    return [bytes(shard.seal().payloads[0]) for shard in shards]


def refuse(*_):
    raise ValueError("finished")


@given(st.lists(st.tuples(st.sampled_from(["row", "declined", "batch"]), st.integers(0, 600)), max_size=30))
def test_shards_are_the_same_whatever_way_each_sample_takes(steps):
    mixed, plain = builder_of(), builder_of()
    delivered, expected = [], []
    write = mixed.row_writer(delivered.append, refuse).write
    for number, (way, size) in enumerate(steps):
        value = bytes([number]) * size
        expected += plain.add({"x": value, "n": number})
        if way == "batch":
            columns = [pa.array([value], pa.binary()), pa.array([number], pa.uint8())]
            delivered += mixed.add_batch(pa.record_batch(columns, ["x", "n"]))
        else:
            write({"x": value if way == "row" else bytearray(value), "n": number})
        assert len(delivered) == len(expected)
    assert files(delivered + mixed.finish()) == files(expected + plain.finish())


def test_refused_samples_reach_the_hook_and_are_not_added():
    builder, errors, shards = builder_of(), [], []
    write = builder.row_writer(shards.append, errors.append).write
    write({"x": b"good", "n": 1})
    with pytest.raises(SchemaError) as caught:
        write({"x": b"bad", "n": 256})
    assert errors == [caught.value]
    assert (caught.value.column, caught.value.row) == ("n", 1)
    write({"x": b"good", "n": 1})
    assert [shard.seal().info.samples for shard in builder.finish()] == [2]


class FullMemory(list):
    """A list that cannot grow."""

    def append(self, _):
        raise MemoryError


def test_sample_of_which_only_a_part_was_added_makes_the_builder_unusable():
    builder = builder_of()
    builder._packer.variable_lengths = FullMemory()
    with pytest.raises(MemoryError):
        builder.add({"x": b"value", "n": 1})
    for _ in range(2):
        with pytest.raises(ValueError, match="has lost some"):
            builder.finish()


def test_closed_row_writer_calls_the_refusal_and_holds_no_memory():
    builder, shards = builder_of(), []
    write, _, close = builder.row_writer(shards.append, lambda _: None)
    write({"x": bytes(600), "n": 1})
    gone = []
    weakref.finalize(builder._packer, gone.append, 1)
    close(refuse)
    with pytest.raises(ValueError, match="finished"):
        write({"x": b"", "n": 1})
    gc.disable()
    try:
        del builder, close
    finally:
        gc.enable()
    assert gone == [1]
    assert shards == []


def test_errors_of_a_sample_have_no_error_of_the_fast_path_as_context():
    builder = builder_of()
    for sample in ({"y": b"", "n": 1}, {"x": b"", "n": "one"}):
        with pytest.raises(SchemaError) as caught:
            builder.add(sample)
        first = caught.value.__cause__ or caught.value
        assert first.__context__ is None


class Interrupter:
    """Raises KeyboardInterrupt before one of the bytecodes that move samples to a shard, or counts them."""

    FUNCTIONS = ("write", "take", "_push_block", "push", "_check_complete")

    def __init__(self, at):
        self.at, self.count = at, 0

    def __call__(self, frame, event, _):
        if frame.f_code.co_name not in self.FUNCTIONS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self

    def call(self, function, *arguments):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return function(*arguments)
        finally:
            sys.settrace(before)


def values_after_interrupt(at, size, *, is_declined):
    """Add a sample that stays in the block, one of `size` that is interrupted, and two more; return those in shards."""
    builder, interrupter = builder_of(), Interrupter(at)
    shards = builder.add({"x": bytes([0]) * 200, "n": 0})
    value = bytes([1]) * size
    with contextlib.suppress(KeyboardInterrupt):
        shards += interrupter.call(builder.add, {"x": bytearray(value) if is_declined else value, "n": 1})
    for number in (2, 3):
        shards += builder.add({"x": bytes([number]) * 200, "n": number})
    data = b"".join(files(shards + builder.finish()))
    return interrupter.count, [number for number in range(4) if bytes([number]) * 200 in data]


@pytest.mark.parametrize(("size", "is_declined"), [(200, False), (600, True)])
def test_an_interrupt_before_any_bytecode_loses_no_other_sample_unnoticed(size, is_declined):
    # In a thread that ends: an interrupt between two bytecodes of a handler leaves its exception as the context of all
    # later ones of the thread (Python 3.11).
    with ThreadPoolExecutor(1) as thread:
        thread.submit(check_interrupts, size, is_declined=is_declined).result(timeout=500)


def check_interrupts(size, *, is_declined):
    total, found = values_after_interrupt(0, size, is_declined=is_declined)
    assert (found, total > 60) == ([0, 1, 2, 3], True)
    for at in range(1, total + 1):
        found = message = None
        try:
            _, found = values_after_interrupt(at, size, is_declined=is_declined)
        except ValueError as error:
            message = str(error)
        assert found in ([0, 2, 3], [0, 1, 2, 3]) or "has lost some" in message, at
