"""A set that is read on Spark Connect; run as a program by test_connect.

reading_on_connect <folder>
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from smalti.spark import dataframe_to_mds, register


def main(folder: Path) -> None:
    session = SparkSession.builder.remote("local[1]").getOrCreate()
    place = str(folder / "set")
    dataframe_to_mds(session.range(10), place)
    load = session.read.format("mds").option("sample_ids", "true").load
    print("found", load(place).count())
    register(session)
    frame = load(place)
    print("registered", frame.where("id > 7").select("id").collect())
    session.range(10, 12).write.format("mds").mode("append").save(place)
    print("appended", frame.count(), load(place).count())
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
