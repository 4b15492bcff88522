"""The plan of a table's columns: which are stored, as what, and how Arrow batches of Spark become stored values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format import Schema
from smalti.format.logical import MASK_SUFFIX
from smalti.spark.types.nulls import NullPolicy, check_nan, fill, parse_policies, plan_filler
from smalti.spark.types.types import Stored, casts, is_image, stored_as
from smalti.spark.types.values import ORIGIN_SUFFIX, Convert, image_origins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_PLAIN = {"type": "plain"}


@dataclass(frozen=True)
class _Column:
    """One stored column and how it is computed."""

    name: str
    source: str
    """Column of the DataFrame that it is computed from."""
    convert: Convert | None
    """Conversion of the source's Arrow values; None if they are stored as they are."""
    filler: pa.Array | None
    """One value that replaces nulls; None where a null is refused."""

    def stored(self, array: pa.Array) -> pa.Array:
        """Return the values that the encoding takes, without nulls.

        Raises:
            SchemaError: A value cannot be stored; the fact `row` is its place in the array.
        """
        array = array if self.convert is None else self.convert(array)
        if not array.null_count:
            return array
        if self.filler is not None:
            return fill(array, self.filler)
        row = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        raise SchemaError(
            "a null cannot be stored; fill it or drop the row before writing, or say what to do with "
            f'`nulls={{{self.source!r}: "mask"}}` or `{{"default": ...}}`.',
            row=row,
        )


@dataclass(frozen=True)
class TablePlan:
    """The stored columns of a DataFrame, decided before a row is read.

    Picklable; tasks that use it need no Spark.
    """

    names: tuple[str, ...]
    """Columns of the DataFrame that are read, in the order of the caller's `columns`."""
    encodings: dict[str, str]
    """Encoding of each stored column: those of `names`, and additional ones such as masks of nulls."""
    logical: dict[str, Any]
    """Logical type (JSON, for the manifest) of each stored column whose encoding does not determine it."""
    casts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Casts that Spark does on a column, one after the other, because Arrow cannot carry its type."""
    policies: Mapping[str, NullPolicy] = field(default_factory=dict)
    """Null policy of each of `names`."""
    _columns: tuple[_Column, ...] = ()

    def select(self, df: "DataFrame") -> "DataFrame":
        """Return the DataFrame with the casts done; its other columns stay as they are."""
        from pyspark.sql import functions

        for name, kinds in self.casts.items():
            column = functions.col("`" + name.replace("`", "``") + "`")
            for kind in kinds:
                column = column.cast(kind)
            df = df.withColumn(name, column)
        return df

    def prepare(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """Return the stored columns, without nulls, in values that their encodings take.

        Args:
            batch: Has the columns `names`, under these names; others are left out.
            first_row: Number of the batch's first row, for messages.

        Raises:
            SchemaError: A value cannot be stored; the facts `column` and `row` locate it.
        """
        cleaned: dict[str, pa.Array] = {}
        stored: list[pa.Array] = []
        name = ""
        try:
            for name, policy in self.policies.items():
                cleaned[name] = check_nan(policy, batch.column(name))
            for column in self._columns:
                name = column.source
                stored.append(column.stored(cleaned[name]))
        except SchemaError as error:
            row = first_row + int(error.facts.get("row", 0))
            raise SchemaError(
                f"column {name!r}, sample {row}: {error.message}", **{**error.facts, "column": name, "row": row}
            ) from error
        return pa.RecordBatch.from_arrays(stored, [column.name for column in self._columns])


def plan_table(
    schema: "StructType", columns: Mapping[str, str | None] | None = None, nulls: str | Mapping[str, Any] = "reject"
) -> TablePlan:
    """Return how each column of a DataFrame is stored.

    Args:
        schema: Schema of the DataFrame.
        columns: The columns to store, each with its encoding or None for its default; None stores all.
        nulls: What is done with nulls, for all columns or by name; see `docs/types.md`.

    Raises:
        SchemaError: A column is missing or there twice, or its type cannot be stored so; the message has advice.
    """
    chosen = _chosen(schema.fieldNames(), columns)
    stored = {name: stored_as(name, schema[name].dataType, encoding) for name, encoding in chosen.items()}
    policies = parse_policies(nulls, chosen)
    fillers = {name: plan_filler(name, schema[name].dataType, stored[name], policies[name]) for name in chosen}
    builder = _PlanBuilder()
    for name in chosen:
        builder.add(name, schema[name].dataType, stored[name], fillers[name], is_masked=policies[name].mask)
    Schema.from_columns(builder.encodings)
    return TablePlan(tuple(chosen), builder.encodings, builder.logical, builder.casts, policies, tuple(builder.columns))


def _chosen(names: list[str], columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"the DataFrame has column {twice[0]!r} more than once; rename or drop one", column=twice[0])
    for name in columns or {}:
        if name not in names:
            raise SchemaError(f"`columns` names {name!r}, the DataFrame has {', '.join(names)}", column=name)
    return dict(columns) if columns is not None else dict.fromkeys(names)


class _PlanBuilder:
    """The stored columns of a plan, added one column of the DataFrame at a time."""

    def __init__(self) -> None:
        self.encodings: dict[str, str] = {}
        self.logical: dict[str, Any] = {}
        self.casts: dict[str, tuple[str, ...]] = {}
        self.columns: list[_Column] = []

    def add(self, name: str, kind: Any, stored: Stored, filler: pa.Array | None, *, is_masked: bool) -> None:
        """Add a column of the DataFrame, with its mask and the origins of its images where it has these."""
        if steps := casts(kind):
            self.casts[name] = steps
        self._add(_Column(name, name, stored.convert, filler), stored.encoding)
        if stored.logical is not None:
            self.logical[name] = dict(stored.logical)
        if is_masked:
            self._add(_Column(name + MASK_SUFFIX, name, _is_null, None), "uint8")
            self.logical[name] = {**self.logical.get(name, _PLAIN), "mask": True}
        if is_image(kind):
            self._add(_Column(name + ORIGIN_SUFFIX, name, image_origins, None), "str")

    def _add(self, column: _Column, encoding: str) -> None:
        if column.name in self.encodings:
            raise SchemaError(
                f"column {column.name!r} is the DataFrame's, and what belongs to {column.source!r} would be stored "
                "under that name too; rename it",
                column=column.name,
            )
        self.encodings[column.name] = encoding
        self.columns.append(column)


def _is_null(array: pa.Array) -> pa.Array:
    return array.is_null().cast(pa.uint8())
