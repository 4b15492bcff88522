"""A data set whose functions executors cannot import: `python -m tests.nightly.shipped MASTER FOLDER`.

The folder has the package `mine`; the master is one with executors of their own, or `connect` for a Connect server on
this machine. Prints the rows that were written.
"""

import sys
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession

from smalti.dataset import StreamingDataset
from smalti_dagster.declaration import Declaration, Prepare, Source, Split
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import LocalStorage
from tests.code_location.declared import define


def main(master: str, folder: str) -> None:
    sys.path.insert(0, folder)  # not in PYTHONPATH, which executors on this machine would inherit
    if master == "connect":
        server = SparkSession.builder.remote("local[2]").getOrCreate()
        print(type(server).__module__)
        master = "sc://127.0.0.1:15002"
    declared = Declaration(
        name="sales",
        source=Source(dataframe="mine.text:rows"),
        prepare=Prepare(function="mine.text:prepare"),
        split=Split(validation=0),
    )
    storage = LocalStorage(root=str(Path(folder) / "data"))
    defs = define(declared, storage=storage, spark=SparkResource(master=master))
    with dg.DagsterInstance.ephemeral() as instance:
        assert defs.resolve_job_def("sales_reshard_job").execute_in_process(instance=instance).success
    dataset = StreamingDataset(remote=storage.url("sales/shards"), split="train", shuffle=False)
    print(sorted(int(dataset[at]["code"]) for at in range(len(dataset))))


if __name__ == "__main__":
    main(*sys.argv[1:])
