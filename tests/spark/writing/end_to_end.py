"""From a folder to shards on the session that the first argument names; run as a program by test_clusters."""

import json
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

from smalti.compat.streaming.base.converters import dataframe_to_mds as alias
from smalti.errors import SmaltiError
from smalti.spark import (
    PrepareOptions,
    SparkOptions,
    build_session,
    dataframe_to_mds,
    list_images,
    read_prepared,
    update_prepared,
)
from smalti.spark.tasks import run_tasks


def session_of(master: str, conf: dict[str, str]) -> SparkSession:
    if master == "connect":  # what `sc://` needs a server for, in one process
        return SparkSession.builder.remote("local[2]").getOrCreate()
    return build_session(SparkOptions(master=master, driver_memory="1g", conf=conf))


def images(session, source, out):
    options = PrepareOptions(size=16, validation_fraction=0.25, num_partitions=3)
    update_prepared(session, list_images(source), f"{out}/prepared", options=options)
    frame = read_prepared(session, f"{out}/prepared")
    manifest = dataframe_to_mds(frame, f"{out}/mds", columns={"image": "jpeg"}, partition_by="split")
    print(f"{manifest.rows} rows in {', '.join(manifest.partitions)}")


def options(session, out):
    """Write with a learnt transform after a shuffle, and by MosaicML's call with a function of the user."""

    def halved(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"half": pa.compute.divide(batch["id"], 2)})

    manifest = dataframe_to_mds(
        session.range(0, 40, 1, 4), f"{out}/half", transform=halved, shuffle_rows=True, target_shards=2,
        progress="always",
    )  # fmt: skip
    print(f"{manifest.rows} rows, {manifest.schema.columns()}, {len(manifest.shards)} shards")

    def samples(frame):
        return ({"x": int(number), "part": number / 3} for number in frame["id"])

    alias_kwargs = {"out": f"{out}/alias", "columns": {"x": "int", "part": "float32"}}
    print(alias(session.range(9), mds_kwargs=alias_kwargs, udf_iterable=samples) == (f"{out}/alias", ""))


def largest_batch(session):
    """Check that a frame of 40 MB in one partition comes in batches of 2 MiB and a row."""

    def largest(batches, attempt):
        return {"bytes": max(batch.nbytes for batch in batches)}

    frame = session.range(0, 400, 1, 1).selectExpr("cast(repeat('x', 100000) as binary) as data")
    ((_, answer),) = run_tasks(frame, largest)
    print("batches are cut by bytes:", answer["bytes"] < 3 << 20)


def torch_on_executors(session):
    def try_it(batches, attempt):
        try:
            import torch
        except ImportError:
            return {"torch": False}
        return {"torch": bool(torch)}

    print("torch on executors:", {answer["torch"] for _, answer in run_tasks(session.range(4), try_it)})


def main(master: str, source: str, out: str, conf: str = "{}") -> None:
    session = session_of(master, json.loads(conf))
    if master.startswith("spark://"):
        torch_on_executors(session)
    images(session, source, out)
    options(session, out)
    largest_batch(session)
    try:
        dataframe_to_mds(session.range(0, 9, 1, 1).selectExpr("if(id = 7, null, id) as x"), f"{out}/bad")
    except SmaltiError as error:
        print(f"{type(error).__name__}: {error}")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
