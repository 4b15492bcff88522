"""Transforms: functions of the user over batches of rows, which tasks run between Spark and the shards.

    form             argument                    result
    arrow            pyarrow.RecordBatch         pyarrow.RecordBatch or Table
    arrow_iterator   Iterator of RecordBatch     any iterable of them
    pandas           pandas.DataFrame            pandas.DataFrame
    pandas_iterator  Iterator of DataFrame       any iterable of them

The annotation of the function's first parameter decides the form; without an annotation it is `arrow`. A `Transform`
declares the form where there is no usable annotation.
"""

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, get_args, get_type_hints

import pyarrow as pa

from smalti.errors import ArgumentError, ArgumentTypeError, SchemaError, SmaltiError
from smalti.writer.tables.values import cast_array, plain_batch

Form = Literal["arrow", "arrow_iterator", "pandas", "pandas_iterator"]
TransformFunction = Callable[[Any], Any]

_ITERATORS = re.compile(r"(?:typing\.|collections\.abc\.)?(?:Iterator|Iterable|Generator)\[\s*(?P<item>[^\],]+)")


@dataclass(frozen=True)
class Transform:
    """A function over batches of rows, and its form; both travel to the executors.

    Examples:
        >>> def doubled(rows):
        ...     return rows.assign(id=rows["id"] * 2)
        >>> frame = spark.createDataFrame([(1, "one"), (2, "two")], "id int, text string")
        >>> version = dataframe_to_mds(frame, "s3://bucket/set", transform=Transform(doubled, form="pandas"))
        >>> [row["id"] for row in smalti.head("s3://bucket/set").rows]
        [2, 4]
    """

    function: TransformFunction
    """Called on executors, where everything that it imports must be installed."""
    form: Form = "arrow"
    """Kind of argument and result: `arrow`, `arrow_iterator`, `pandas` or `pandas_iterator`."""

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ArgumentError(f"`form`: expected one of {', '.join(get_args(Form))}, found {self.form!r}")
        if not callable(self.function):
            raise ArgumentTypeError(f"`transform`: expected a function over batches, found {self.function!r}")


def as_transform(function: "Transform | TransformFunction") -> Transform:
    """Return a function of the user as a transform, with the form of its annotation.

    Raises:
        TypeError: It is no function.
        ValueError: The annotation of its first parameter is no form of batches.
    """
    if isinstance(function, Transform):
        return function
    if not callable(function):
        raise ArgumentTypeError(f"`transform`: expected a function over batches, found {function!r}")
    text = _first_annotation(function)
    if text is None:
        return Transform(function)
    match = _ITERATORS.search(text)
    name = (match["item"] if match else text).strip("'\" ").rpartition(".")[2]
    if name == "RecordBatch":
        return Transform(function, "arrow_iterator" if match else "arrow")
    if name == "DataFrame":
        return Transform(function, "pandas_iterator" if match else "pandas")
    raise ArgumentError(
        f"`transform`: its first parameter is annotated as {text}; expected pyarrow.RecordBatch, pandas.DataFrame, or "
        f"an Iterator of either. Say the form in words: Transform(function, 'pandas')"
    )


def _first_annotation(function: TransformFunction) -> str | None:
    """Return the annotation of the first parameter as text; None if there is none."""
    called: Any = function
    if not inspect.isroutine(function) and not inspect.isclass(function):
        called = type(function).__call__.__get__(function)  # an object that can be called
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (ValueError, TypeError):  # builtins have no signature
        return None
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return None
    annotation = parameters[0].annotation
    with contextlib.suppress(NameError, TypeError, AttributeError):  # names that are imported for type checkers only
        annotation = get_type_hints(called).get(parameters[0].name, annotation)
    if annotation is Any or annotation is object:
        return None
    return annotation.__name__ if inspect.isclass(annotation) and not get_args(annotation) else str(annotation)


@dataclass
class TransformRun:
    """One run of a transform over the batches of one partition."""

    transform: Transform
    where: str
    """The partition, for messages."""
    schema: pa.Schema | None = None
    """Schema to which every batch of the output is cast; None takes that of the first batch with rows."""
    _begin: int = 0
    _end: int = 0
    """End of the rows of the partition that the function got last, for messages; `_begin` is their start."""
    _input_error: Exception | None = None

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the output of the function over these batches; all batches have the same columns and types.

        Raises:
            SmaltiError: The function failed; the message names partition, rows, and the line of the failure. A
                `SmaltiError` keeps its type.
            SchemaError: It returned something else than batches, or other columns than before.
        """
        results = self._results(source)
        while True:
            try:
                result = next(results)
            except StopIteration:
                return
            except Exception as error:
                if error is self._input_error:  # the function did not cause it
                    raise
                frames = traceback.extract_tb(error.__traceback__)
                place = f" ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
                kind, text, facts = SmaltiError, f"{type(error).__name__}: {error}", {}
                if isinstance(error, SmaltiError):
                    kind, text, facts = type(error), error.message, error.facts
                raise kind(
                    f"{self._rows}: `transform` failed: {text}{place}; nothing was published", **facts
                ) from error
            for batch in self._as_batches(result):
                if batch.num_rows:
                    yield self._conformed(batch)

    def _results(self, source: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        function, form = self.transform.function, self.transform.form
        counted = self._counted(source)
        inputs = (batch.to_pandas(date_as_object=True) for batch in counted) if form.startswith("pandas") else counted
        if form.endswith("iterator"):
            yield from function(inputs)
        else:
            for batch in inputs:
                yield function(batch)

    def _counted(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in source:
                self._begin, self._end = self._end, self._end + batch.num_rows
                yield batch
        except Exception as error:
            self._input_error = error
            raise

    def _as_batches(self, result: Any) -> list[pa.RecordBatch]:
        if isinstance(result, pa.RecordBatch):
            return [result]
        if isinstance(result, pa.Table):
            return list(result.to_batches())
        if self.transform.form.startswith("pandas") and type(result).__name__ == "DataFrame":
            if not len(result):
                return []
            try:
                return [pa.RecordBatch.from_pandas(result, schema=self.schema, preserve_index=False)]
            except (pa.ArrowException, KeyError) as error:
                raise SchemaError(
                    f"{self._rows}: the DataFrame that `transform` gave cannot become Arrow columns"
                    f"{self._expected}: {error}"
                ) from error
        raise SchemaError(
            f"{self._rows}: `transform` gave {type(result).__name__}, expected "
            f"{'a pandas DataFrame' if self.transform.form.startswith('pandas') else 'a pyarrow RecordBatch or Table'}"
        )

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            batch = plain_batch(batch)
        except SchemaError as error:
            raise SchemaError(f"{self._rows}: `transform` gave {error.message}", **error.facts) from error
        if self.schema is None:
            self.schema = batch.schema.remove_metadata()
        if batch.schema.equals(self.schema):
            return batch
        if sorted(batch.schema.names) != sorted(self.schema.names):
            raise SchemaError(
                f"{self._rows}: `transform` gave the columns {', '.join(batch.schema.names)}{self._expected}"
            )
        columns = []
        for field in self.schema:
            column = batch.column(field.name)
            try:
                columns.append(cast_array(column, field.type))
            except pa.ArrowException as error:
                raise SchemaError(
                    f"{self._rows}: `transform` gave column {field.name!r} as {column.type}, before it was "
                    f"{field.type}; make it the same for every batch ({error})",
                    column=field.name,
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def _rows(self) -> str:
        return f"{self.where}, rows {self._begin} to {max(self._end - 1, 0)}"

    @property
    def _expected(self) -> str:
        return f"; expected {', '.join(f'{f.name} ({f.type})' for f in self.schema)}" if self.schema else ""
