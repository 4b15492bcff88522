"""Dagster's instances for tests: the tables of one are made once for a process, for they take longer than most runs."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata
from dagster._core.storage.runs.schema import InstanceInfo, RunStorageSqlMetadata

KEPT = {InstanceInfo.name, "secondary_indexes"}
"""Tables about the storage itself."""

_unused: list[dg.DagsterInstance] = []


@contextmanager
def instance_in_memory() -> Iterator[dg.DagsterInstance]:
    """Give an empty instance that forgets everything; within each other, several."""
    made = _unused.pop() if _unused else _new_in_memory()
    try:
        yield made
    finally:
        _empty(made)
        _unused.append(made)


@contextmanager
def instance_in_folder(**settings: Any) -> Iterator[dg.DagsterInstance]:
    """Give an empty instance that other threads and processes can open, too, by DAGSTER_HOME."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shutil.copytree(_folder_with_tables(), folder, dirs_exist_ok=True)
        with dg.instance_for_test(overrides=settings, temp_dir=folder) as made:
            yield made


def _new_in_memory() -> dg.DagsterInstance:
    made = dg.DagsterInstance.ephemeral()
    atexit.register(made.dispose)
    return made


def _empty(instance: dg.DagsterInstance) -> None:
    runs, events = instance.run_storage, instance.event_log_storage
    with runs.connect() as connection:  # type: ignore[attr-defined]
        _delete_all(connection, RunStorageSqlMetadata)
    with events.index_connection() as connection:  # type: ignore[attr-defined]
        _delete_all(connection, SqlEventLogStorageMetadata)


def _delete_all(connection: Any, metadata: Any) -> None:
    for table in reversed(metadata.sorted_tables):
        if table.name not in KEPT:
            connection.execute(table.delete())


@functools.cache
def _folder_with_tables() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dagster-tables-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with dg.instance_for_test(temp_dir=str(folder)) as made:
        made.get_runs()
        made.fetch_materializations(dg.AssetKey("any"), limit=1)
    return folder
