"""The Python interpreter of Spark's workers on this machine; imports no PySpark."""

import os
import sys
from typing import Any

_DEFAULT_PYTHON = "python3"  # of PySpark's workers, 3.5 to 4.3, if PYSPARK_PYTHON is not set


def use_driver_python(spark: Any) -> None:
    """Make Python workers that a local master starts from now on run the interpreter of this process.

    PySpark uses PYSPARK_PYTHON, else the first `python3` on PATH: in a virtual environment that is not activated, that
    is another Python, of another version or without the packages. A no-op if PYSPARK_PYTHON is set, if the session has
    another interpreter already, and on a cluster or Spark Connect, whose workers are on other machines.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect") or not sys.executable:
        return
    context = spark.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None)
    if context.master.startswith("local") and not chosen and context.pythonExec == _DEFAULT_PYTHON:
        context.pythonExec = sys.executable
