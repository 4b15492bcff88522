"""PySpark's daemon with all imports of its workers done, which saves 0.7 s for every failed task."""

import contextlib

import pandas
import pyarrow
import pyspark.worker
from pyspark.daemon import manager

import smalti.spark.prepare
import smalti.spark.writing.dataframe

with contextlib.suppress(ImportError):  # PySpark 3.5 has no data sources in Python
    import smalti.spark.mds.source

assert all([pandas, pyarrow, pyspark.worker, smalti.spark.writing.dataframe, smalti.spark.prepare])

if __name__ == "__main__":
    manager()
