"""Spark DataFrames written as MDS, over `smalti.spark`; needs pyspark. Everything is in `dataframe_to_mds`."""

from smalti.compat.streaming.base.converters.dataframe_to_mds import (
    SPARK_TO_MDS,
    dataframe_to_mds,
    infer_dataframe_schema,
    is_json_compatible,
)

__all__ = ["SPARK_TO_MDS", "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible"]
