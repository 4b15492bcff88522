"""PySpark's daemon with everything imported that each of its workers would import anew: 0.7 s for every failed task."""

import pandas
import pyarrow
import pyspark.worker
from pyspark.daemon import manager

import smalti.spark.convert
import smalti.spark.prepare
import smalti.spark.writing

assert all([pandas, pyarrow, pyspark.worker, smalti.spark.convert, smalti.spark.prepare, smalti.spark.writing])

if __name__ == "__main__":
    manager()
