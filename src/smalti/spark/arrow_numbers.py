"""Arrow's truth values, dates, times and spans of time as the numbers that are stored for them; lists of them too."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.errors import SchemaError

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""Spark's values to values that an encoding takes; nulls stay nulls. Picklable; SchemaError says the `row`."""

_NO_TIME = -(1 << 63)
"""What numpy keeps for "not a time": 292,277 years before 1970, which Spark's longest spans of time reach."""


def as_numbers(array: pa.Array) -> pa.Array:
    """The same rows as numbers, in the units of Spark: days, microseconds, and nanoseconds of the day.

    Raises:
        SchemaError: a time with a finer unit than its column's, or one that numpy cannot tell from none.
    """
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = _with_units(array.type)
    try:
        numbers = array.cast(kind).cast(_numbers_of(kind))
    except pa.ArrowInvalid as error:
        row = next(row for row in range(len(array)) if not _fits(array.slice(row, 1), kind))
        raise SchemaError("a time of a finer unit than microseconds; round it before writing.", row=row) from error
    _check_times(numbers, kind)
    return numbers


def _fits(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        array.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _with_units(kind: pa.DataType) -> pa.DataType:
    """The type in Spark's units; a function that made the column may have chosen others."""
    if _is_list(kind):
        return pa.large_list(_with_units(kind.value_type))
    if pt.is_date(kind):
        return pa.date32()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pt.is_duration(kind):
        return pa.duration("us")
    return pa.time64("ns") if pt.is_time(kind) else kind


def _numbers_of(kind: pa.DataType) -> pa.DataType:
    if _is_list(kind):
        return pa.large_list(_numbers_of(kind.value_type))
    if pt.is_boolean(kind):
        return pa.uint8()
    if pt.is_date32(kind):
        return pa.int32()
    return pa.int64() if pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time64(kind) else kind


def _check_times(numbers: pa.Array, kind: pa.DataType) -> None:
    lists = []
    while _is_list(kind):
        lists.append(numbers)
        numbers, kind = numbers.flatten(), kind.value_type
    if not pt.is_int64(numbers.type) or pc.min(numbers).as_py() != _NO_TIME:
        return
    row = pc.index(numbers, _NO_TIME).as_py()
    for each in reversed(lists):
        ends = np.cumsum(pc.fill_null(each.value_lengths(), 0).to_numpy())
        row = int(np.searchsorted(ends, row, side="right"))
    raise SchemaError("a time of -2^63, which numpy takes for no time.", row=row)
