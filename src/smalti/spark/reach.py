"""The check that Spark's executors can use a store, made by one of them before rows are read.

Executors get the storage options of a store, and neither the environment nor the files of the driver: a login that only
the driver has would be found by the first shard, when minutes of a query are done.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog.header import FOLDER, INDEX
from smalti.errors import MissingDependency, StoreError
from smalti.process import is_connect
from smalti.spark.tasks import run_on_rows
from smalti.storage import Store
from smalti.writer.tables.attempts import Attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_reach(spark: "SparkSession", *stores: Store, writes: bool = True) -> None:
    """Return if executors on other machines can use the stores; folders, and a local master, are not checked.

    Args:
        spark: The session.
        *stores: Stores that the tasks of a job will use.
        writes: Whether the tasks will write to them.

    Raises:
        StoreError: An executor cannot; of the class that it raised.
        MissingDependency: The executors have no Smalti, or not the client of a store.
    """
    far = [store for store in stores if store.local_path(INDEX) is None]
    if far and has_remote_executors(spark):
        ask_executor(spark, far, writes=writes)


def has_remote_executors(spark: "SparkSession") -> bool:
    """Return whether tasks run in processes that this one did not start with its own environment."""
    if is_connect(spark) or os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        return True
    master = str(spark.sparkContext.master)
    return master != "local" and not master.startswith("local[")


def ask_executor(spark: "SparkSession", stores: list[Store], *, writes: bool) -> None:
    """Use the stores in one task; errors are those of `require_reach`."""

    def use(batches: Iterator[pa.RecordBatch], _: Attempt) -> dict[str, Any]:
        for _rows in batches:
            pass
        for store in stores:
            _use(store, writes=writes)
        return {}

    try:
        run_on_rows(spark, [(0,)], "place int", use)
    except MissingDependency:
        raise
    except StoreError as error:
        places = ", ".join(store.url for store in stores)
        raise type(error)(
            f"Spark's executors cannot use {places}; no row was read: {error.message} They have the storage options of "
            "the call, and neither the environment nor the files of this machine, such as ~/.aws: give the credentials "
            "as `storage_options`, or set their variables on the executors (`spark.executorEnv.NAME`) before the "
            "session is started.",
            **error.facts,
        ) from error


def _use(store: Store, *, writes: bool) -> None:
    """Read from a store, or put a small object and remove it."""
    if not writes:
        store.exists(INDEX)
        return
    probe = f"{FOLDER}/probe-{secrets.token_hex(8)}"
    store.put(probe, b"1")
    with contextlib.suppress(StoreError):  # an executor may be allowed to write only; a vacuum removes it
        store.delete(probe)
