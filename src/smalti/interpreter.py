"""Which Python interpreter Spark's workers on this machine run; imports no PySpark."""

import os
import sys
from typing import Any

_DEFAULT_PYTHON = "python3"  # what PySpark, 3.5 to 4.3, takes for its workers where PYSPARK_PYTHON is not set


def use_driver_python(spark: Any) -> None:
    """Have Python workers that a local master starts from now on run the interpreter of this process.

    PySpark takes PYSPARK_PYTHON, else the `python3` that PATH finds first: where a virtual environment is used without
    being activated, that is another Python, of another version or without the packages. No-op if PYSPARK_PYTHON is
    set, if the session has another interpreter already, on a cluster and on Spark Connect, whose workers are elsewhere.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect") or not sys.executable:
        return
    context = spark.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None)
    if context.master.startswith("local") and not chosen and context.pythonExec == _DEFAULT_PYTHON:
        context.pythonExec = sys.executable
