"""A write on Spark Connect whose source files change while they are read; run as a program by test_connect_files.

changing_on_connect <folder>

Prints the outcome of each case, and the number of rows of the set afterwards.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from smalti.catalog import load_manifest
from smalti.errors import CatalogError
from smalti.spark import dataframe_to_mds
from smalti.spark.lineage import list_files

NAMES = [f"{number} %41 {{a}}[b].parquet" for number in range(4)]
"""Names with characters that are escaped in addresses or special in globs."""


def put_ids(path, first):
    """Write a hundred ids; all files are equally long, so that only their times differ."""
    table = pa.table({"id": list(range(first, first + 100))})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)


def changing(source, mark, change):
    """Return a function for tasks: it reads all of its rows, and the first task then changes a file of another."""

    def work(batches):
        rows = list(batches)
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            yield from rows
            return
        path = source / NAMES[0]
        if change in {"replaced", "removed"}:
            path.unlink()
        if change == "replaced":
            put_ids(path, 1000)
        if change == "came":
            put_ids(source / "late.parquet", 5000)
        yield from rows

    return work


def write(session, folder, change):
    source, out = folder / change / "day=a b", folder / change / "out"
    source.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        put_ids(source / name, 100 * number)
    dataframe_to_mds(session.range(7), out, compression=None)
    # One partition: every file was read when something changes, and nothing but the check can see it.
    frame = session.read.parquet(str(source)).coalesce(1)
    work = changing(source, folder / change / "mark", change)
    try:
        dataframe_to_mds(frame.mapInArrow(work, frame.schema), out, compression=None, mode="overwrite")
    except CatalogError as error:
        print(change, "refused:", error)
    else:
        print(change, "published")
    print(change, load_manifest(out).rows, "rows")


def main(folder):
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    for change in ("nothing", "came", "replaced", "removed"):
        write(session, Path(folder), change)
    found = list_files(session.read.parquet(str(Path(folder) / "nothing" / "day=a b")))
    print(
        "listed",
        len(found),
        {num_bytes for _, num_bytes, _ in found} == {(Path(folder) / "nothing" / "day=a b" / NAMES[0]).stat().st_size},
    )
    print("without files", list_files(session.range(3)))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
