"""Transforms: their forms, their output, and their errors."""

import collections.abc
import typing
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pytest

from smalti.errors import BadImageError, SchemaError, SmaltiError
from smalti.writer.tables.transform import Transform, TransformRun, as_transform


def batches(*sizes, start=0):
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"x": pa.array(range(start, start + size), pa.int64())})
        start += size


def ran(transform, given, schema=None):
    return list(TransformRun(as_transform(transform), "Spark partition 3", schema).batches(given))


def rows(found):
    return [row for batch in found for row in batch.to_pylist()]


# ---------------------------------------------------------------- forms


def plain(batch):
    return batch


def arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def arrow_iterator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def pandas_iterator(frames: typing.Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def named_in_text(frame: "pd.DataFrame"):
    return frame


def named_for_checkers(frames: "collections.abc.Iterator[polars_or.DataFrame]"):  # noqa: F821  no such name here
    yield from frames


class Callable:
    def __call__(self, frame: pd.DataFrame):
        return frame


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (plain, "arrow"),
        (arrow, "arrow"),
        (arrow_iterator, "arrow_iterator"),
        (pandas, "pandas"),
        (pandas_iterator, "pandas_iterator"),
        (named_in_text, "pandas"),
        (named_for_checkers, "pandas_iterator"),
        (Callable(), "pandas"),
        (lambda batch: batch, "arrow"),
        (Transform(plain, "pandas"), "pandas"),
    ],
)
def test_the_annotation_of_the_first_parameter_decides_the_form(function, form):
    transform = as_transform(function)
    assert transform.form == form
    (batch,) = ran(transform, batches(2))
    assert batch.to_pydict() == {"x": [0, 1]}


def test_other_objects_than_functions_over_batches_are_refused():
    def over_rows(row: dict):
        return row

    with pytest.raises(ValueError, match=r"annotated as dict; expected pyarrow\.RecordBatch"):
        as_transform(over_rows)
    with pytest.raises(TypeError, match="expected a function"):
        as_transform("x * 2")
    with pytest.raises(ValueError, match=r"`form`: expected one of arrow, .*found 'rows'"):
        Transform(plain, "rows")


# ---------------------------------------------------------------- what it gives


def test_a_function_may_return_fewer_rows_more_rows_and_tables():
    def odd_twice(batch):
        odd = batch.filter(pa.compute.equal(pa.compute.bit_wise_and(batch["x"], 1), 1))
        return pa.Table.from_batches([odd, odd])

    assert rows(ran(odd_twice, batches(2, 1, 3))) == [{"x": 1}, {"x": 1}, {"x": 3}, {"x": 5}, {"x": 3}, {"x": 5}]


def test_an_iterator_function_may_join_batches():
    def all_at_once(given: Iterator[pa.RecordBatch]):
        yield pa.Table.from_batches(list(given)).combine_chunks()

    (batch,) = ran(all_at_once, batches(2, 3))
    assert batch.num_rows == 5


def test_later_batches_are_cast_to_the_type_of_the_first():
    def narrow_at_first(batch):
        kind = pa.int64() if batch["x"][0].as_py() == 0 else pa.int32()
        return pa.RecordBatch.from_arrays([batch["x"].cast(kind)], ["x"])

    first, second = ran(narrow_at_first, batches(2, 2))
    assert first.schema == second.schema == pa.schema([("x", pa.int64())])


def test_pandas_columns_become_the_types_that_are_known_beforehand():
    """A column of numbers with a gap is float in pandas; the gap comes back as a null."""

    def with_gap(frame: pd.DataFrame):
        return pd.DataFrame({"x": [1.0, None]})

    (batch,) = ran(with_gap, batches(2), pa.schema([("x", pa.int64())]))
    assert batch.to_pydict() == {"x": [1, None]}


def test_columns_that_change_are_refused_with_rows_and_partition():
    def renames(batch):
        return batch if batch["x"][0].as_py() == 0 else batch.rename_columns(["y"])

    with pytest.raises(
        SchemaError, match=r"Spark partition 3, rows 2 to 4: .*gave the columns y; expected x \(int64\)"
    ):
        ran(renames, batches(2, 3))

    def texts(batch):
        return batch if batch["x"][0].as_py() == 0 else pa.RecordBatch.from_pydict({"x": ["a"]})

    with pytest.raises(SchemaError, match=r"rows 2 to 4: .*column 'x' as string, before it was int64") as caught:
        ran(texts, batches(2, 3))
    assert caught.value.column == "x"


@pytest.mark.parametrize("given", [None, 7, {"x": [1]}, pd.DataFrame({"x": [1]})])
def test_a_result_that_is_no_batch_is_refused(given):
    with pytest.raises(SchemaError, match="expected a pyarrow RecordBatch or Table"):
        ran(lambda batch: given, batches(1))


# ---------------------------------------------------------------- errors


def test_an_error_names_partition_rows_and_line():
    def divides(batch):
        return batch if batch["x"][0].as_py() == 0 else 1 / 0

    with pytest.raises(
        SmaltiError,
        match=r"(?m)^Spark partition 3, rows 2 to 4: `transform` failed: ZeroDivisionError: division by zero "
        r"\(test_transform\.py, line \d+\); nothing was published$",
    ) as caught:
        ran(divides, batches(2, 3))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_an_iterator_names_the_rows_that_it_got_last():
    def fails(given: Iterator[pa.RecordBatch]):
        for number, batch in enumerate(given):
            if number == 1:
                raise KeyError("label")
            yield batch

    with pytest.raises(SmaltiError, match=r"partition 3, rows 2 to 4: .*KeyError: 'label'"):
        ran(fails, batches(2, 3, 4))


def test_an_error_of_smaltis_own_keeps_its_type():
    def fails(batch):
        raise BadImageError("a.jpg is cut short", path="a.jpg")

    with pytest.raises(BadImageError, match=r"rows 0 to 1: `transform` failed: a\.jpg is cut short") as caught:
        ran(fails, batches(2))
    assert caught.value.path == "a.jpg"


@pytest.mark.parametrize("function", [arrow, arrow_iterator, pandas, pandas_iterator])
def test_an_error_of_the_input_is_not_blamed_on_the_transform(function):
    def breaks():
        yield from batches(2)
        raise OSError("the source broke")

    with pytest.raises(OSError, match=r"^the source broke$"):
        ran(function, breaks())
