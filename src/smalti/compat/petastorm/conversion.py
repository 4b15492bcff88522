"""What a DataFrame becomes before it is written: vectors as arrays, floating-point columns in one precision."""

import logging
from typing import Any

_log = logging.getLogger(__name__)

PRECISIONS = ("float32", "float64")
CODECS = ("uncompressed", "gzip", "lz4", "snappy", "zstd")
_NEVER_PARQUET = ("bzip2", "deflate")


def checked_codec(codec: str | None) -> str:
    """The name of a compression as Spark's Parquet writer has it.

    Raises:
        RuntimeError: it has none of this name.
    """
    chosen = (codec or "uncompressed").lower()
    if chosen in CODECS:
        return chosen
    never = " Petastorm's list has it, and no Parquet file can." if chosen in _NEVER_PARQUET else ""
    raise RuntimeError(f"`compression_codec` must be None or one of {', '.join(CODECS)}, found {codec!r}.{never}")


def checked_precision(dtype: str | None) -> str | None:
    """The precision, if it is one.

    Raises:
        ValueError: it is none.
    """
    if dtype is None or dtype in PRECISIONS:
        return dtype
    raise ValueError(f"`dtype` must be 'float32', 'float64' or None, found {dtype!r}.")


def converted(df: Any, dtype: str | None) -> Any:
    """The DataFrame with ML and MLlib vectors as arrays, and with its floating-point columns cast to `dtype`."""
    from pyspark.sql.types import ArrayType, DoubleType, FloatType

    source, target = (FloatType, DoubleType()) if dtype == "float64" else (DoubleType, FloatType())
    columns: list[Any] = []
    changed: list[str] = []
    for field in df.schema.fields:
        column = df[f"`{field.name.replace('`', '``')}`"]
        if _is_vector(field.dataType):
            from pyspark.ml.functions import vector_to_array

            column = vector_to_array(column, dtype or "float64")
        elif dtype is not None and isinstance(field.dataType, source):
            column, changed = column.cast(target), [*changed, field.name]
        elif dtype is not None and _is_array_of(field.dataType, source):
            column, changed = column.cast(ArrayType(target, field.dataType.containsNull)), [*changed, field.name]
        columns.append(column.alias(field.name))
    if changed:
        _log.warning("floating-point columns become %s: %s", dtype, ", ".join(changed))
    return df.select(*columns)


def _is_vector(kind: Any) -> bool:
    """Whether a type is a vector of ML or MLlib, without importing either."""
    return type(kind).__name__ == "VectorUDT" and type(kind).__module__.startswith("pyspark.ml")


def _is_array_of(kind: Any, element: type) -> bool:
    from pyspark.sql.types import ArrayType

    return isinstance(kind, ArrayType) and isinstance(kind.elementType, element)
