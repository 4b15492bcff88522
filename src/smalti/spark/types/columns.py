"""ColumnPlan: which columns of a DataFrame are stored, as what, and how its Arrow batches become stored values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format import Schema
from smalti.format.logical import MASK_SUFFIX
from smalti.spark.types.nulls import NullPolicy, arrow_type, check_nan, default_value, fill, filler_of, parse_policies
from smalti.spark.types.types import Stored, casts, is_image, stored_as
from smalti.spark.types.values import ORIGIN_SUFFIX, Convert, image_origins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FLOATS = ("float", "double")
_PLAIN = {"type": "plain"}


@dataclass(frozen=True)
class _Column:
    """One stored column: what it is made of, and how."""

    name: str
    source: str
    convert: Convert | None
    filler: pa.Array | None
    """One value that replaces nulls; None where a null is refused."""

    def stored(self, array: pa.Array) -> pa.Array:
        """The values that the encoding takes, without nulls; SchemaError says the `row`."""
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
class ColumnPlan:
    """What becomes of each column, decided before a row is read; picklable, and needs no Spark inside a task."""

    names: tuple[str, ...]
    """The DataFrame's columns that are read, in the order in which they were asked for."""
    encodings: dict[str, str]
    """Column of the shard set to encoding: those of `names`, and the ones added beside them, such as masks of nulls."""
    logical: dict[str, Any]
    """Column to its logical type, as JSON, where the encoding does not say it: for the manifest."""
    casts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What Spark casts a column to, one after the other, because Arrow cannot carry it as it is."""
    policies: Mapping[str, NullPolicy] = field(default_factory=dict)
    """What is done with the nulls of each of `names`."""
    _columns: tuple[_Column, ...] = ()

    def select(self, df: "DataFrame") -> "DataFrame":
        """The DataFrame with those columns cast that Arrow cannot carry; its other columns as they are."""
        from pyspark.sql import functions

        for name, kinds in self.casts.items():
            column = functions.col("`" + name.replace("`", "``") + "`")
            for kind in kinds:
                column = column.cast(kind)
            df = df.withColumn(name, column)
        return df

    def prepare(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """The columns of `encodings`, in values that these take, without nulls.

        Args:
            batch: has the columns `names`, under these names; others are left out.
            first_row: number of the batch's first row, for messages.

        Raises:
            SchemaError: a value that cannot be stored; `column` and `row` say which.
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
) -> ColumnPlan:
    """What becomes of each column of a DataFrame.

    Args:
        schema: of the DataFrame.
        columns: the columns to store, each with its encoding or None for its default; None stores all.
        nulls: what is done with nulls: `reject`, `mask`, or by column; see `docs/types.md`.

    Raises:
        SchemaError: a column is not there, twice there, or of a type that cannot be stored so; the message says what
            to do about it.
    """
    asked = _asked(schema.fieldNames(), columns)
    policies = parse_policies(nulls, asked)
    plan = _Building()
    for name, encoding in asked.items():
        plan.add(name, schema[name].dataType, stored_as(name, schema[name].dataType, encoding), policies[name])
    Schema.from_columns(plan.encodings)
    return ColumnPlan(tuple(asked), plan.encodings, plan.logical, plan.casts, policies, tuple(plan.columns))


def _asked(names: list[str], columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"the DataFrame has column {twice[0]!r} more than once; rename or drop one", column=twice[0])
    for name in columns or {}:
        if name not in names:
            raise SchemaError(f"`columns` names {name!r}, the DataFrame has {', '.join(names)}", column=name)
    return dict(columns) if columns is not None else dict.fromkeys(names)


class _Building:
    """A plan that grows column by column."""

    def __init__(self) -> None:
        self.encodings: dict[str, str] = {}
        self.logical: dict[str, Any] = {}
        self.casts: dict[str, tuple[str, ...]] = {}
        self.columns: list[_Column] = []

    def add(self, name: str, kind: Any, stored: Stored, policy: NullPolicy) -> None:
        """What becomes of one column of the DataFrame."""
        if policy.nan != "keep" and kind.typeName() not in _FLOATS:
            raise SchemaError(
                f"`nulls` for column {name!r} says what to do with NaN, and {kind.simpleString()} has none", column=name
            )
        if steps := casts(kind):
            self.casts[name] = steps
        self._add(_Column(name, name, stored.convert, self._filler(name, kind, stored, policy)), stored.encoding)
        if stored.logical is not None:
            self.logical[name] = dict(stored.logical)
        if policy.mask:
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

    def _filler(self, name: str, kind: Any, stored: Stored, policy: NullPolicy) -> pa.Array | None:
        if policy.has_default:
            return default_value(name, kind, stored, policy.default)
        if not policy.mask:
            return None
        nothing = pa.array([None], arrow_type(kind))
        return filler_of(stored.encoding, nothing.type if stored.convert is None else stored.convert(nothing).type)


def _is_null(array: pa.Array) -> pa.Array:
    return array.is_null().cast(pa.uint8())
