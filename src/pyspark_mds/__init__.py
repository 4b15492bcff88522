"""The name by which Spark finds `format("mds")` without a call: PySpark 4 looks at modules named `pyspark_*`.

`DefaultSource` is imported when it is asked for, so that the look-up costs other programs nothing before; below
PySpark 4.0, which has no such sources, there is none.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from smalti.spark.mds.source import MDSDataSource
    except ImportError as error:
        raise AttributeError(f'{name}: format("mds") needs PySpark 4.0 or later ({error})') from error
    return MDSDataSource
