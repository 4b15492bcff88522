"""Which arguments are DataFrames of Spark, and what to write for those that are not."""

from typing import Any

_ADVICE = {
    "pandas": ("spark.createDataFrame(frame)", "pyarrow.Table.from_pandas(frame)"),
    "polars": ("spark.createDataFrame(frame.to_pandas())", "frame.to_arrow()"),
    "pyarrow": ("spark.createDataFrame(frame.to_pandas())", "frame"),
    "pyspark.pandas": ("frame.to_spark()", ""),
    "pyspark.rdd": ("frame.toDF()", ""),
    "pyspark.core.rdd": ("frame.toDF()", ""),
}
"""By the module of what is no Spark DataFrame: what makes one of it, and of it what `MDSWriter.write_batch` takes."""


def require_frame(frame: Any, what: str, *, is_set: bool = False) -> None:
    """Return only if `frame` is a DataFrame of classic Spark or Spark Connect.

    Args:
        frame: What was given.
        what: What it is, for the message.
        is_set: Whether it becomes a shard set, which `MDSWriter` could write without Spark.

    Raises:
        TypeError: It is none; the message has the line that makes one of it.
    """
    kind = type(frame)
    if all(hasattr(kind, name) for name in ("mapInArrow", "sparkSession", "schema")):
        return
    if frame is None:
        raise TypeError(f"{what} must be a Spark DataFrame, none was given")
    known = [prefix for prefix in _ADVICE if f"{kind.__module__}.".startswith(f"{prefix}.")]
    rows, batch = _ADVICE[known[-1]] if known else ("spark.createDataFrame(rows)", "")
    without = f"; without Spark, `MDSWriter(out=..., columns=...)` and its `write_batch({batch})`"
    raise TypeError(
        f"{what} must be a Spark DataFrame, found {kind.__module__}.{kind.__qualname__}: give {rows}"
        f"{without if is_set and batch else ''}"
    )
