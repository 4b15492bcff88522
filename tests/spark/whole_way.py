"""Folder to shards on the kind of session that the first argument names; run as a program by test_session."""

import sys

from pyspark.sql import SparkSession

from smalti.errors import SmaltiError
from smalti.spark import (
    PrepareOptions,
    SparkOptions,
    build_session,
    dataframe_to_mds,
    list_images,
    prepare_images,
    read_prepared,
    write_prepared,
)


def main(master: str, source: str, out: str) -> None:
    if master == "connect":  # what `sc://` needs a server for, in one process
        session = SparkSession.builder.remote("local[2]").getOrCreate()
    else:
        session = build_session(SparkOptions(master=master, driver_memory="1g"))
    options = PrepareOptions(size=16, validation_fraction=0.25, num_partitions=3)
    write_prepared(prepare_images(session, list_images(source), options), f"{out}/prepared")
    frame = read_prepared(session, f"{out}/prepared")
    manifest = dataframe_to_mds(frame, f"{out}/mds", columns={"image": "jpeg"}, partition_by="split")
    print(f"{manifest.rows} rows in {', '.join(manifest.partitions)}")
    try:
        dataframe_to_mds(session.range(0, 9, 1, 1).selectExpr("if(id = 7, null, id) as x"), f"{out}/bad")
    except SmaltiError as error:
        print(f"{type(error).__name__}: {error}")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
