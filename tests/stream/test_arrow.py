"""ArrowReader: samples that a condition chooses, and groups of spans."""

import pyarrow as pa
import pytest

from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, group_spans, spans_of
from smalti.stream.shard_set import load_shard_set
from smalti.writer.predicate import as_filters
from tests.typed_sets import write_typed_set


@pytest.fixture
def found(tmp_path):
    return load_shard_set(StreamOptions(write_typed_set(tmp_path, 40)))


class Seeing:
    """A condition on `id` that notes which columns it is given."""

    names = ("id",)

    def __init__(self):
        self.seen = []

    def mask_of(self, columns):
        self.seen.append({name: array.to_pylist() for name, array in columns.items()})
        return columns["id"].to_numpy() % 7 == 3


def test_a_condition_gets_its_columns_alone_and_chooses_samples_with_their_numbers(found):
    reader, condition = ArrowReader.of(found, ["name", "id", "box"]), Seeing()
    numbers, batches = zip(
        *(pair for span in spans_of(found) for pair in reader.chosen(span, condition, 200)), strict=True
    )
    assert [number for some in numbers for number in some.tolist()] == [3, 10, 17, 24, 31, 38]
    assert pa.Table.from_batches(batches).to_pylist() == [
        {"name": None if n % 3 == 0 else f"n{n}", "id": n, "box": None if n % 3 == 0 else [n, 0.5]}
        for n in (3, 10, 17, 24, 31, 38)
    ]
    assert {name for columns in condition.seen for name in columns} == {"id"}
    assert [n for columns in condition.seen for n in columns["id"]] == list(range(40))


def test_comparisons_are_a_condition_and_never_choose_nulls(found):
    reader = ArrowReader.of(found, ["name", "age"])
    condition = as_filters([("age", "<", 9)])
    batches = [batch for span in spans_of(found) for _, batch in reader.chosen(span, condition)]
    assert pa.Table.from_batches(batches)["age"].to_pylist() == [1, 2, 4, 5, 7, 8]


def test_spans_larger_than_a_group_are_divided_and_keep_their_numbers(found):
    spans = spans_of(found)
    groups = group_spans(spans, spans[0].num_bytes // 3 + 1)
    assert len(groups) > 2 * len(spans)
    reader = ArrowReader.of(found, ["id"])
    numbers = [
        (int(some[0]), batch["id"][0].as_py())
        for group in groups
        for span in group
        for some, batch in reader.chosen(span, None)
    ]
    assert all(number == first for number, first in numbers)
    assert len(group_spans(spans, 1 << 30)) == 1
