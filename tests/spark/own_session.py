"""A Spark session of a test file's own: a process has one at a time, and another file's may be of another kind."""

import contextlib

from pyspark import SparkContext
from pyspark.sql import SparkSession

from smalti.spark.session import SparkOptions, build_session


@contextlib.contextmanager
def own_session(master="local[2,2]"):
    """Two cores, and a task that fails is tried once more; ends with the block."""
    left = SparkSession.getActiveSession()
    if left is not None:
        left.stop()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    session = build_session(SparkOptions(master=master, app_name="smalti-tests", driver_memory="1g"))
    try:
        yield session
    finally:
        session.stop()
