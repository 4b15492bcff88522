"""Statistics of rows and of prepared images for a person to look at: null shares, ranges, histograms, some rows.

Rows are profiled from the first few thousand, without long texts or binary values, so that the cost is bounded for any
source. The sides of images are those that were noted when they were prepared: no image is read.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smalti.inspection.distributions import Histogram
from smalti.spark.prepare import SOURCE_SIZE
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.tasks import decode_errors, require_frame, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

MAX_COLUMNS = 60
"""Columns that are profiled."""
PROFILED_ROWS = 10_000

_TEXT = 80  # characters of a value that are read for display
_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal", "boolean")


@dataclass(frozen=True)
class ColumnProfile:
    """Statistics of one column."""

    name: str
    type: str
    nulls: float
    """Share of the rows without a value."""
    low: str
    """Smallest value as text, shortened; of texts and nested values, that of the shortest. Empty if there is none."""
    high: str
    """Largest value as text; of texts and nested values, that of the longest."""
    measure: str
    """Quantity of the histogram: value, length, or empty if there is none."""
    histogram: Histogram | None


@dataclass(frozen=True)
class RowsProfile:
    """Statistics of the first rows of a DataFrame."""

    rows: int
    """Number of rows that were read."""
    is_complete: bool
    """True if these are all rows."""
    columns: tuple[ColumnProfile, ...]
    columns_left_out: int
    first: tuple[dict[str, str], ...]
    """The first few rows as texts."""


@decode_errors()
def profile_rows(df: "DataFrame", *, rows: int = PROFILED_ROWS, shown: int = 8) -> RowsProfile:
    """Return statistics of the first rows; one Spark job that reads no more of long values than their length.

    Args:
        df: The rows.
        rows: Number of rows to read.
        shown: Number of rows to return as texts.
    """
    require_frame(df, "`df`")
    fields = df.schema.fields[:MAX_COLUMNS]
    numbered = df.toDF(*(f"c{at}" for at in range(len(df.columns))))  # names may repeat or need quotes
    selected: list[Column] = []
    for at, field in enumerate(fields):
        text, number = _text_and_number(f"c{at}", field.dataType)
        selected += [text.alias(f"t{at}"), number.alias(f"n{at}")]
    table = to_arrow(numbered.select(*selected).limit(rows + 1))
    is_complete, table = table.num_rows <= rows, table.slice(0, rows)
    columns = []
    for at, field in enumerate(fields):
        texts, values = table[f"t{at}"], table[f"n{at}"].to_numpy(zero_copy_only=False).astype(np.float64)
        known, low, high = np.flatnonzero(np.isfinite(values)), "", ""
        if len(known):
            ends = (known[values[known].argmin()], known[values[known].argmax()])
            low, high = (str(texts[int(end)].as_py()) for end in ends)
        nulls, kind = texts.null_count / max(1, len(texts)), field.dataType
        columns.append(
            ColumnProfile(
                field.name, kind.simpleString(), nulls, low, high, _measure(kind), histogram=Histogram.of(values)
            )
        )
    heads = [table[f"t{at}"].slice(0, shown).to_pylist() for at in range(len(fields))]
    names = [field.name for field in fields]
    first = tuple(
        {name: "" if text is None else text for name, text in zip(names, row, strict=True)}
        for row in zip(*heads, strict=True)
    )
    return RowsProfile(table.num_rows, is_complete, tuple(columns), len(df.columns) - len(fields), first)


def _measure(kind: "DataType") -> str:
    name = kind.typeName()
    if name in _NUMBERS or name.startswith(("decimal", "date", "timestamp")):
        return "value"
    return "length" if name in ("string", "varchar", "char", "binary", "array", "map") else ""


def _text_and_number(name: str, kind: "DataType") -> "tuple[Column, Column]":
    """Return expressions for the value as a short text, and for the number that the histogram is of."""
    from pyspark.sql import functions

    column, type_name, measure = functions.col(name), kind.typeName(), _measure(kind)
    if type_name == "binary":
        length = functions.length(column)
        return functions.concat(length.cast("string"), functions.lit(" bytes")), length.cast("double")
    text = functions.substring(column.cast("string"), 1, _TEXT)
    if measure == "value":
        is_time = type_name.startswith(("date", "timestamp"))
        return text, (column.cast("timestamp") if is_time else column).cast("double")
    if measure == "length":
        size = functions.size(column) if type_name in ("array", "map") else functions.length(column)
        return text, functions.when(column.isNotNull(), size).cast("double")
    return text, functions.lit(None).cast("double")


@dataclass(frozen=True)
class ImageSizes:
    """Sides of the source images of a prepared version, as they were when they were read."""

    widths: npt.NDArray[np.int32]
    """Upright, in pixels; of the images whose size is known."""
    heights: npt.NDArray[np.int32]
    num_unknown: int
    """Images that were prepared by a release that did not note their sizes."""


def image_sizes(table: PreparedTable) -> ImageSizes:
    """Return the sides of the usable images of a version; reads no image."""
    known = table.good.select(list(SOURCE_SIZE)).drop_null()
    widths, heights = (known.column(name).to_numpy() for name in SOURCE_SIZE)
    return ImageSizes(widths, heights, table.rows - known.num_rows)
