"""The Spark converter under its two import paths: this package, and `spark_dataset_converter`, which has the code.

Not here: reading of the written files (`reader`), the folders that hold them (`converted_folders`). Read
`spark_dataset_converter.py` first.
"""

from smalti.compat.petastorm.spark.spark_dataset_converter import (
    SparkDatasetConverter,
    make_spark_converter,
    register_delete_dir_handler,
)

__all__ = ["SparkDatasetConverter", "make_spark_converter", "register_delete_dir_handler"]
