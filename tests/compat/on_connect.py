"""make_spark_converter on Spark Connect, in a process of its own: `python -m tests.compat.on_connect <folder>`."""

import sys

from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession

from smalti.compat.petastorm import make_spark_converter


def main(parent):
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", f"file://{parent}")
    df = spark.range(30).selectExpr("id", "cast(id as double) x", "array(1D, 2D) a")
    df = df.select("id", "x", array_to_vector("a").alias("v"))
    converter = make_spark_converter(df)
    with converter.make_torch_dataloader(batch_size=20, num_epochs=1) as loader:
        batches = list(loader)
    rows = sorted(int(row) for batch in batches for row in batch["id"])
    print(len(converter), rows == list(range(30)), batches[0]["x"].dtype, batches[0]["v"][0].tolist())
    again = make_spark_converter(spark.range(30).selectExpr("id", "id + 1 y"))
    print(again.cache_dir_url == converter.cache_dir_url)
    same = make_spark_converter(spark.range(30).selectExpr("id", "id + 1 y"))
    print(same.cache_dir_url == again.cache_dir_url)
    for each in (converter, again):
        each.delete()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
