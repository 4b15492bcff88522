"""MosaicML's and Smalti's dataframe_to_mds over the same frame; run as a program by test_peer_call.

python both_writers.py FOLDER        each call with and without a function
python both_writers.py FOLDER more   other columns through the alias
"""

import json
import sys
from pathlib import Path

from streaming.base.converters import dataframe_to_mds as theirs

from smalti.compat.streaming.base.converters import dataframe_to_mds as alias
from smalti.spark import SparkOptions, build_session, dataframe_to_mds


def pairs(frame, times):
    for row in frame.to_dict("records"):
        yield {"x": int(row["number"]) * times, "data": bytes(row["data"])}


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
        by_either_name(spark, folder)
        through_the_alias(spark, folder, ["inferred", "small"])
    spark.stop()


def by_either_name(spark, folder):
    """Write one partition by MosaicML's function and by Smalti's."""
    frame = spark.range(0, 60, 1, 1).selectExpr(
        "id as number", "cast(id / 4 as double) as quarter", "concat('råd ', id) as text",
        "cast(repeat('x', int(id)) as binary) as data", "cast(array(int(id), 1) as array<int>) as list",
        "cast(id as decimal(9,2)) as price",
    )  # fmt: skip
    plain = {"compression": None, "hashes": ["sha1"], "size_limit": 2000}
    columns = {"x": "int", "data": "bytes"}
    calls = {
        "plain": {"mds_kwargs": plain},
        "function": {"mds_kwargs": {**plain, "columns": columns}, "udf_iterable": pairs, "udf_kwargs": {"times": 7}},
    }
    for name, call in calls.items():
        found = []
        for write in (theirs, dataframe_to_mds):
            out = f"{folder}/{name}-{write.__module__.split('.')[0]}"
            answer = write(frame, merge_index=True, **{**call, "mds_kwargs": {**call["mds_kwargs"], "out": out}})
            found.append((answer == (out, ""), shards(out)))
        assert found[0] == found[1], (name, found[0][0], found[1][0], [len(s) for _, s in found])
        print(f"{name}: {len(found[0][1])} equal shards")


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
