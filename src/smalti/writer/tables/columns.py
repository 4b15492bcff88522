"""The plan of a table's columns: which are stored, as what, and how Arrow batches become stored values.

Each column has a policy for nulls: refuse them, mark them in a column of masks, or replace them by a default. Defaults
come from the caller; they are converted as the column's values are, and checked before a row is read.
"""

import base64
import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format import Schema, parse_encoding
from smalti.format.encodings.numbers import NdArray
from smalti.format.logical import MASK_SUFFIX
from smalti.format.writing.arrow import encode_column
from smalti.writer.tables.types import CASTS, Kind, Stored, arrow_type, stored_as
from smalti.writer.tables.values import ORIGIN_SUFFIX, Convert, image_origins

_SHOWN_COLUMNS = 8
_SHOWN_CHARACTERS = 40
_NAN = ("keep", "reject", "null")
_EXPECTED = (
    '"reject", "mask", or an object with at most one of "mask": true and "default": a value, and perhaps "nan": '
    '"keep", "reject" or "null"'
)
_PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")
"""An image of one grey pixel."""
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP////////////////////////////////////////////////////////////////////////////////"
    "//////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AN//Z"
)
"""The same as JPEG."""
_PLAIN = {"type": "plain"}


@dataclass(frozen=True)
class NullPolicy:
    """The treatment of nulls and NaN in one column."""

    mask: bool = False
    """True if nulls are marked in a second column; the value stored in place of a marked null has no meaning."""
    has_default: bool = False
    """True if nulls are replaced by `default`."""
    default: Any = None
    nan: str = "keep"
    """`keep` stores NaN and infinities as they are, `reject` refuses both, `null` turns NaN into null."""


@dataclass(frozen=True)
class _StoredColumn:
    """One stored column and how it is computed."""

    name: str
    source: str
    """Column of the table that it is computed from."""
    convert: Convert | None
    """Conversion of the source's Arrow values; None if they are stored as they are."""
    filler: pa.Array | None
    """One value that replaces nulls; None where a null is refused."""


@dataclass(frozen=True)
class TablePlan:
    """The stored columns of a table, decided before a row is read; picklable."""

    names: tuple[str, ...]
    """Columns of the table that are read, in the order of the caller's `columns`."""
    encodings: dict[str, str]
    """Encoding of each stored column: those of `names`, and additional ones such as masks of nulls."""
    logical: dict[str, Any]
    """Logical type (JSON, for the manifest) of each stored column whose encoding does not determine it."""
    casts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Casts that Spark does on a column, one after the other, because Arrow cannot carry its type."""
    policies: Mapping[str, NullPolicy] = field(default_factory=dict)
    """Null policy of each of `names`."""
    _columns: tuple[_StoredColumn, ...] = ()

    def prepare(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """Return the columns `names`, without nulls, in values that their encodings take; other columns are left out.

        Raises:
            SchemaError: A value cannot be stored; the facts `column` and `row`, counted from `first_row`, locate it.
        """
        cleaned: dict[str, pa.Array] = {}
        stored: list[pa.Array] = []
        name = ""
        try:
            for name, policy in self.policies.items():
                cleaned[name] = _check_nan(policy, batch.column(name))
            for column in self._columns:
                name = column.source
                array = cleaned[name] if column.convert is None else column.convert(cleaned[name])
                if array.null_count and column.filler is None:
                    raise SchemaError(
                        "a null cannot be stored; fill it or drop the row before writing, or say what to do with "
                        f'`nulls={{{name!r}: "mask"}}` or `{{"default": ...}}`.',
                        row=int(array.is_null().to_numpy(zero_copy_only=False).argmax()),
                    )
                stored.append(fill(array, column.filler) if array.null_count else array)
        except SchemaError as error:
            row = first_row + int(error.facts.get("row", 0))
            example = f" The row is {_row_in_words(batch, error.facts['row'])}." if "row" in error.facts else ""
            raise SchemaError(
                f"column {name!r}, sample {row}: {error.message}{example}",
                **{**error.facts, "column": name, "row": row},
            ) from error
        return pa.RecordBatch.from_arrays(stored, [column.name for column in self._columns])


def plan_columns(
    kinds: Sequence[tuple[str, Kind]],
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    *,
    table: str = "the DataFrame",
) -> TablePlan:
    """Return how each column of a table is stored.

    `columns` are those to store, each with its encoding or None for its default; None stores all. Messages call the
    table `table`.

    Raises:
        SchemaError: A column is missing or there twice, or its type cannot be stored so; the message has advice.
    """
    kind_of = dict(kinds)
    if twice := repeated([name for name, _ in kinds]):
        raise SchemaError(f"{table} has column {twice[0]!r} more than once; rename or drop one", column=twice[0])
    for name in columns or {}:
        if name not in kind_of:
            raise SchemaError(f"`columns` names {name!r}, {table} has {', '.join(kind_of)}", column=name)
    chosen: dict[str, str | None] = dict.fromkeys(kind_of) if columns is None else dict(columns)
    stored = {name: stored_as(name, kind_of[name], encoding) for name, encoding in chosen.items()}
    policies = _parse_policies(nulls, chosen)
    fillers = {name: _plan_filler(name, kind_of[name], stored[name], policies[name]) for name in chosen}
    logical: dict[str, Any] = {}
    planned: list[tuple[_StoredColumn, str]] = []  # with the encoding of each
    for name in chosen:
        planned.append((_StoredColumn(name, name, stored[name].convert, fillers[name]), stored[name].encoding))
        described = stored[name].logical
        if described is not None:
            logical[name] = dict(described)
        if policies[name].mask:
            planned.append((_StoredColumn(name + MASK_SUFFIX, name, _is_null, None), "uint8"))
            logical[name] = {**logical.get(name, _PLAIN), "mask": True}
        if kind_of[name].is_image:
            planned.append((_StoredColumn(name + ORIGIN_SUFFIX, name, image_origins, None), "str"))
    encodings: dict[str, str] = {}
    for column, encoding in planned:
        if column.name in encodings:
            sources = [other.source for other, _ in planned if other.name == column.name]
            owner = next((source for source in sources if source != column.name), column.source)
            raise SchemaError(
                f"column {column.name!r} is in {table}, and what belongs to {owner!r} would be stored under that name "
                "too; rename it",
                column=column.name,
            )
        encodings[column.name] = encoding
    Schema.from_columns(encodings)
    casts = {name: CASTS[kind_of[name].family] for name in chosen if kind_of[name].family in CASTS}
    return TablePlan(tuple(chosen), encodings, logical, casts, policies, tuple(column for column, _ in planned))


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, in order."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _row_in_words(batch: pa.RecordBatch, row: int) -> str:
    """Return the plain values of a row, shortened, to find it by; bytes and nested values are left out."""
    words: list[str] = []
    for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
        if len(words) == _SHOWN_COLUMNS or pt.is_nested(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
            continue
        value = batch.column(name)[row]
        try:
            text = str(value.as_py())
        except (OverflowError, ValueError):  # a time that Python cannot hold
            text = f"{value.value} as {value.type}"
        words.append(f"{name}={text[:_SHOWN_CHARACTERS]}")
    return ", ".join(words) or "one without plain values"


def _is_null(array: pa.Array) -> pa.Array:
    return array.is_null().cast(pa.uint8())


def _parse_policies(nulls: str | Mapping[str, Any], names: Iterable[str]) -> dict[str, NullPolicy]:
    """Return the policy of each column: one for all, or by name, where columns that are not named refuse nulls."""
    if isinstance(nulls, str):
        return dict.fromkeys(names, _parse_policy(None, nulls))
    known = dict.fromkeys(names)
    for name in nulls:
        if name not in known:
            raise SchemaError(f"`nulls` names {name!r}, the columns are {', '.join(known)}", column=name)
    return {name: _parse_policy(name, nulls[name]) if name in nulls else NullPolicy() for name in known}


def _parse_policy(name: str | None, choice: Any) -> NullPolicy:
    if choice in ("reject", "mask"):
        return NullPolicy(mask=choice == "mask")
    if isinstance(choice, Mapping):
        mask, nan = choice.get("mask", False), choice.get("nan", "keep")
        if choice.keys() <= {"mask", "default", "nan"} and isinstance(mask, bool) and nan in _NAN:
            has_default = "default" in choice
            if not (mask and has_default) and (not has_default or choice["default"] is not None):
                return NullPolicy(mask, has_default, choice.get("default"), nan)
    where = "" if name is None else f" for column {name!r}"
    raise SchemaError(f"`nulls`{where} is {choice!r:.200}; expected {_EXPECTED}", column=name)


def _plan_filler(name: str, kind: Kind, stored: Stored, policy: NullPolicy) -> pa.Array | None:
    """Return the one value that is stored in place of a column's nulls; None where nulls are refused."""
    if policy.nan != "keep" and kind.family not in ("half", "float", "double"):
        raise SchemaError(
            f"`nulls` for column {name!r} says what to do with NaN, and {kind.text} has none", column=name
        )
    if policy.has_default:
        return _default_value(name, kind, stored, policy.default)
    if not policy.mask:
        return None
    null = pa.array([None], arrow_type(kind))
    return _placeholder(stored.encoding, null.type if stored.convert is None else stored.convert(null).type)


def _check_nan(policy: NullPolicy, array: pa.Array) -> pa.Array:
    """Return the column after its policy for NaN and infinities."""
    if policy.nan == "keep":
        return array
    if policy.nan == "null":
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    good = pc.fill_null(pc.is_finite(array), True)  # noqa: FBT003 - Arrow's signature
    if not pc.all(good).as_py():
        row = int(np.argmin(good.to_numpy(zero_copy_only=False)))
        raise SchemaError("NaN and infinities are refused by `nulls`: clean the column, or keep them.", row=row)
    return array


def fill(array: pa.Array, filler: pa.Array) -> pa.Array:
    """Return the column with its nulls replaced by the only value of `filler`."""
    value = filler.cast(array.type)
    if pt.is_nested(array.type):
        places = np.where(np.asarray(array.is_null()), len(array), np.arange(len(array)))
        return pa.concat_arrays([array, value]).take(pa.array(places))
    return pc.fill_null(array, value[0])


def _placeholder(encoding: str, kind: pa.DataType) -> pa.Array:
    """Return one value that the encoding accepts, to be stored in place of a marked null."""
    if encoding in ("png", "jpeg"):
        return pa.array([_PNG if encoding == "png" else _JPEG], kind)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        codec = parse_encoding(encoding)
        if isinstance(codec, NdArray):
            return pa.array([codec.encode(np.zeros(codec.shape or (1, 1, 1), codec.dtype or np.uint8))], kind)
        return pa.array([b"null" if encoding == "json" else b""], kind)
    if pt.is_decimal(kind):  # pyarrow makes no 0 of a type with more places than digits
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(kind.bit_width // 8))])
    return pa.array([_zero(encoding, kind)], kind)


def _zero(encoding: str, kind: pa.DataType) -> Any:
    if pt.is_list(kind) or pt.is_large_list(kind):
        codec = parse_encoding(encoding)
        if isinstance(codec, NdArray) and codec.shape is not None:
            return np.zeros(codec.shape).tolist()
        return [_zero(encoding, kind.value_type)]
    return "" if pt.is_string(kind) or pt.is_large_string(kind) else 0


def _default_value(name: str, kind: Kind, stored: Stored, value: Any) -> pa.Array:
    """Return the caller's default as the encoding of the column takes it, after checking that it fits."""
    try:
        if kind.family == "vector":
            array = pa.array([list(value)], pa.large_list(pa.float64()))
        elif kind.is_image:
            raise SchemaError("images have no default; mark nulls with `mask`")
        else:
            array = pa.array([value], arrow_type(kind))
            if not _is_unchanged(value, array[0].as_py()):
                raise SchemaError("Arrow would change it")
            array = array if stored.convert is None else stored.convert(array)
        encode_column(parse_encoding(stored.encoding), array)
    except (SchemaError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"the default in `nulls` for column {name!r} is no {kind.text} that {stored.encoding} can hold: {error}",
            column=name,
        ) from error
    return array


def _is_unchanged(value: Any, converted: Any) -> bool:
    """Return whether Arrow kept a value: it truncates floats for integer columns, and times for columns of dates."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict) and isinstance(converted, list):  # a map
        value = list(value.items())
    if isinstance(converted, list | tuple):
        return len(value) == len(converted) and all(map(_is_unchanged, value, converted))
    if isinstance(converted, dict):
        return bool(value.keys() <= converted.keys()) and all(
            _is_unchanged(value.get(name), converted[name]) for name in converted
        )
    if isinstance(converted, float):  # a default is rounded to the column's precision as a literal would be
        return isinstance(value, int | float)
    if isinstance(converted, dt.datetime) and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value == converted.replace(tzinfo=None)
    return bool(value == converted)
