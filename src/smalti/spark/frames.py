"""The check that an argument is a DataFrame of Spark, with advice on how to make one of something else."""

from typing import Any

_ADVICE = {
    "pandas": ("spark.createDataFrame(frame)", "pyarrow.Table.from_pandas(frame)"),
    "polars": ("spark.createDataFrame(frame.to_pandas())", "frame.to_arrow()"),
    "pyarrow": ("spark.createDataFrame(frame.to_pandas())", "frame"),
    "pyspark.pandas": ("frame.to_spark()", ""),
    "pyspark.rdd": ("frame.toDF()", ""),
    "pyspark.core.rdd": ("frame.toDF()", ""),
}
"""By module of the argument: the call that makes a Spark DataFrame of it, and what `MDSWriter.write_batch` takes."""


def require_frame(frame: Any, what: str, *, is_set: bool = False) -> None:
    """Return only if `frame` is a DataFrame of classic Spark or Spark Connect.

    Args:
        frame: The argument.
        what: Its name, for the message.
        is_set: Whether it becomes a shard set, which `MDSWriter` could write without Spark.

    Raises:
        TypeError: It is not; the message has the call that makes one of it.
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
