"""Converts a DataFrame on Spark, a row of documents into several samples, and merges the parts' indexes."""

import argparse
import json

import numpy as np
from pyspark.sql import SparkSession
from streaming.base.converters import dataframe_to_mds
from streaming.base.util import merge_index


def chunks(frame, length=3):
    """Yield the chunks of each document of a pandas DataFrame, as tokens."""
    for key, text in zip(frame["key"], frame["text"]):
        tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        for at in range(0, len(tokens), length):
            yield {"key": int(key), "at": at, "tokens": tokens[at : at + length]}


def main(args):
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    df = spark.range(40).selectExpr("id AS key", "concat('document ', id) AS text").repartitionByRange(3, "key")
    out, faults = dataframe_to_mds(
        df.sortWithinPartitions("key"),
        merge_index=False,
        mds_kwargs={
            "out": args.out,
            "columns": {"key": "int", "at": "int", "tokens": "ndarray:int32"},
            "compression": "zstd",
            "hashes": ["sha1"],
            "size_limit": "1kb",
        },
        udf_iterable=chunks,
        udf_kwargs={"length": 4},
    )
    merge_index(args.out, keep_local=True)
    print(json.dumps({"out": out, "faults": faults}))
    plain, _ = dataframe_to_mds(df, merge_index=True, mds_kwargs={"out": args.out + "-plain"})
    print(json.dumps({"out": plain}))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    main(parser.parse_args())
