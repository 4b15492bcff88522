"""`spark.read.format("mds")` beside `spark.read.parquet`: the same rows with pictures as bytes, on `local[2]`.

    python -m benchmarks.spark_reading --photos 4000 --runs 3

One session reads both in turns, all columns of all rows into Spark's `noop` sink; neither is compressed. The first
reading of each is not counted: it starts Python's workers, and Java compiles. The floor is Parquet, of which no byte
leaves the JVM; the bytes of `mds` are verified, and pass from Python to Java through a socket.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.photos import Photos
from smalti.spark import SparkOptions, build_session
from smalti.writer import MDSWriter

COLUMNS = {"image": "bytes", "label": "int", "name": "str"}
_FILES = 4


def make(folder: Path, count: int) -> int:
    """Write the rows as a set and as Parquet files; return the bytes of their pictures."""
    rows = list(Photos(count))
    with MDSWriter(out=str(folder / "mds"), columns=COLUMNS, compression=None) as writer:
        for row in rows:
            writer.write(row)
    (folder / "parquet").mkdir()
    for number in range(_FILES):
        table = pa.Table.from_pylist(rows[number::_FILES])
        path = folder / "parquet" / f"{number}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=200)
    return sum(len(row["image"]) for row in rows)


def measure(frame: Any) -> float:
    """Return the seconds in which a frame is read."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def main() -> None:
    """Measure, and print a line for each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="smalti-spark-reading-"))
    try:
        num_bytes = make(folder, options.photos)
        spark = build_session(SparkOptions(master="local[2]"))
        places = {name: str(folder / name) for name in ("parquet", "mds")}
        for name, place in places.items():
            frame = spark.read.format(name).load(place)
            assert frame.count() == options.photos
            measure(frame)
        seconds: dict[str, list[float]] = {name: [] for name in places}
        for run in range(options.runs):
            for name, place in places.items():
                seconds[name].append(measure(spark.read.format(name).load(place)))
            ratio = seconds["parquet"][-1] / seconds["mds"][-1]
            took = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items())
            print(f"round {run + 1}: {took}; rate of mds / rate of parquet: {ratio:.2f}; load {os.getloadavg()[0]:.1f}")
        for name, times in seconds.items():
            median = statistics.median(times)
            print(f"{name}: median {median:.2f} s, {num_bytes / median / 1e6:,.0f} MB/s")
        ratios = [one / other for one, other in zip(seconds["parquet"], seconds["mds"], strict=True)]
        print(f"ratio: median {statistics.median(ratios):.2f} (goal: at least 0.5)")
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
