"""MosaicML's dataframe_to_mds and the alias's over the same frames; run as a program by test_peer_call.

python both_writers.py FOLDER        with and without a function
python both_writers.py FOLDER more   other columns
"""

import json
import sys
from pathlib import Path

from streaming.base.converters import dataframe_to_mds as theirs

from smalti.compat.streaming.base.converters import dataframe_to_mds as alias
from smalti.spark import SparkOptions, build_session


def triples(frame):
    for row in frame.to_dict("records"):
        yield from ({"part": row["number"] / 3 * n, "name": f"{row['text']}/{n}", "left out": n} for n in range(3))


def shards(out):
    """Return the bytes of all shards, in the order of the index."""
    entries = json.loads((Path(out) / "index.json").read_bytes())["shards"]
    return [(Path(out) / entry["raw_data"]["basename"]).read_bytes() for entry in entries]


def main(folder: str, more: str = "") -> None:
    spark = build_session(SparkOptions(master="local[1]", driver_memory="512m"))
    if more:
        through_the_alias(spark, folder, ["chosen", "pickled"])
    else:
        through_the_alias(spark, folder, ["inferred", "small"])
    spark.stop()


def through_the_alias(spark, folder, names):
    """Write partitions of several and of less than one shard by MosaicML's function and by the alias."""
    frame = spark.range(0, 90, 1, 3).selectExpr(
        "id as number", "cast(id % 7 as tinyint) as small", "cast(id as smallint) as short",
        "cast(id as float) as real", "concat('råd ', id) as text", "X'80044B072E' as pickle",
        "cast(array(double(id)) as array<double>) as list",
        "named_struct('b', int(id), 'a', concat('ö', id)) as nested",
    )  # fmt: skip
    columns = {"number": "int64", "small": "uint8", "short": "uint16", "real": "float32"}
    pickles = {"pickle": "pkl", "text": "str"}
    calls = {
        "inferred": (frame.drop("nested"), {"size_limit": 1500}, None),
        "chosen": (frame, {"size_limit": 1500, "hashes": ["sha1"], "columns": {**columns, "nested": "json"}}, None),
        "pickled": (frame, {"size_limit": 1500, "columns": pickles}, None),
        "small": (frame, {"columns": {"part": "float32", "name": "str"}}, triples),
    }
    for name in names:
        (rows, options, function), found = calls[name], []
        for write in (theirs, alias):
            out = f"{folder}/{name}-{write.__module__.split('.')[0]}"
            kwargs = {"compression": None, **options, "out": out}
            answer = write(rows, mds_kwargs=kwargs, udf_iterable=function)
            found.append((answer == (out, ""), shards(out)))
        assert found[0] == found[1], (name, found[0][0], found[1][0], [len(s) for _, s in found])
        print(f"{name} through the alias: {len(found[0][1])} equal shards")


if __name__ == "__main__":
    main(*sys.argv[1:])
