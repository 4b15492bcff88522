"""PySpark's daemon with all imports of its workers done, which saves 0.7 s for every failed task."""

import pandas
import pyarrow
import pyspark.worker
from pyspark.daemon import manager

import smalti.spark.prepare
import smalti.spark.writing.dataframe
import smalti.spark.writing.plan

assert all(
    [pandas, pyarrow, pyspark.worker, smalti.spark.writing.dataframe, smalti.spark.prepare, smalti.spark.writing.plan]
)

if __name__ == "__main__":
    manager()
