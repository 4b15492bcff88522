"""Sources of rows: tables, queries and DataFrames; read and identified by Spark."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import dagster as dg

from smalti.spark import hadoop_settings
from smalti.spark.rows import Identity, identities_in, identity_of, in_partitions
from smalti_dagster.declaration import Declaration
from smalti_dagster.places import expand
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import load_for_tasks
from smalti_dagster.sources.inventory import inventories_of
from smalti_dagster.sources.partitions import PARTITIONS, ReadPartitions
from smalti_dagster.sources.rows_config import RowsConfig
from smalti_dagster.sources.unchanged import UNCHANGED_WHILE, certain_state
from smalti_dagster.stage import RunPartitions

SparkSession = Any  # Dagster resolves annotations when it loads, and pyspark is not to be imported then
DataFrame = Any


def read_frame(session: SparkSession, declared: Declaration, config: RowsConfig, storage: StorageResource) -> DataFrame:
    """Return the rows of the source; lazy. Spark reads the service of the storage with the storage's own credentials.

    Raises:
        dg.Failure: the source is of no known form.
    """
    text = expand(config.source)
    if not os.environ.get("DATABRICKS_RUNTIME_VERSION"):  # Unity Catalog decides there
        for name, value in hadoop_settings(storage.root, storage.options()).items():
            session.conf.set(name, value)
    if config.form not in _READERS:
        raise dg.Failure(f"`form` must be one of {', '.join(_READERS)}, found {config.form!r}", allow_retries=False)
    return _READERS[config.form](session, text, declared)


def _read_table(session: SparkSession, text: str, declared: Declaration) -> DataFrame:
    if declared.source.format is None:
        return session.table(text)
    return session.read.format(declared.source.format).options(**declared.source.options).load(text)


_READERS: dict[str, Callable[[SparkSession, str, Declaration], DataFrame]] = {
    "table": _read_table,
    "sql": lambda session, text, _: session.sql(text),
    "dataframe": lambda session, text, _: load_for_tasks(session, text)(session),
}
"""By form of a source of rows (`FORMS` of the declaration): the function that reads it."""


def identify_partitions(
    frame: DataFrame, declared: Declaration, partitions: RunPartitions
) -> tuple[Identity, ReadPartitions]:
    """Return what identifies the rows of all partitions, and the digest of each.

    The rows of the run's own partitions are read. Those of all others are as earlier runs have found them.

    Raises:
        dg.Failure: no partition has rows.
    """
    column = partition_column(declared)
    found = identities_in(frame, column, partitions.keys)
    own = {key: found[key].digest if key in found else "" for key in partitions.keys}
    read = ReadPartitions(own, partitions.others)
    if not read.all:
        raise dg.Failure(
            f"{declared.source.text} has no rows whose {column!r} is one of {', '.join(partitions.keys)}, and no other "
            "partition was read before",
            allow_retries=False,
        )
    digest = hashlib.sha256(json.dumps(read.all).encode()).hexdigest()
    return Identity(digest, "the content of the rows of each partition"), read


def read_again(
    session: SparkSession, declared: Declaration, facts: Mapping[str, Any], storage: StorageResource
) -> DataFrame:
    """Return the rows that a materialisation of `raw` has read; of a partitioned source, those of its own partitions.

    Raises:
        dg.Failure: they changed since.
    """
    config = RowsConfig(form=facts["form"], source=facts["reads"])
    frame = read_frame(session, declared, config, storage)
    if PARTITIONS in facts:
        read = ReadPartitions.load(inventories_of(declared, storage), facts[PARTITIONS])
        digests = {key: digest for key, digest in read.own.items() if digest}
        return rows_of(frame, declared, digests, known=digests if is_as_read(declared, facts, storage) else ())
    if is_as_read(declared, facts, storage):
        return frame
    found = identity_of(frame).digest
    if found != facts["digest"]:
        raise _changed(declared, str(facts["source"]), str(facts["digest"]), found)
    return frame


def is_as_read(declared: Declaration, facts: Mapping[str, Any], storage: StorageResource) -> bool:
    """Return whether a source is known, without Spark, to be as a materialisation of `raw` has read it."""
    config = RowsConfig(form=facts["form"], source=facts["reads"])
    return UNCHANGED_WHILE in facts and facts[UNCHANGED_WHILE] == certain_state(declared, config, storage)


def rows_of(
    frame: DataFrame, declared: Declaration, digests: Mapping[str, str], *, known: Collection[str] = ()
) -> DataFrame:
    """Return the rows of some partitions, given by their keys, if they still have these digests.

    Those in `known` are not read for that.

    Raises:
        dg.Failure: they changed.
    """
    column = partition_column(declared)
    checked = {key: digest for key, digest in digests.items() if key not in known}
    found = identities_in(frame, column, checked) if checked else {}
    for key, before in checked.items():
        now = found[key].digest if key in found else ""
        if before != now:
            raise _changed(declared, f"partition {key} of {declared.source.text}", before, now)
    return in_partitions(frame, column, digests)


def partition_column(declared: Declaration) -> str:
    """Return the column with the key of each row's partition."""
    column = declared.partitions.column if declared.partitions is not None else None
    if column is None:
        raise ValueError(f"data set {declared.name} declares no column of partitions")
    return column


def _changed(declared: Declaration, what: str, before: str, now: str) -> dg.Failure:
    return dg.Failure(
        f"{what} changed since {declared.key('raw').to_user_string()} was materialised (digest {before[:12]}, now "
        f"{now[:12] or 'no rows'}): run {declared.name}_reshard_job, which reads it again",
        allow_retries=False,
    )


def column_schema(frame: DataFrame) -> dg.TableSchema:
    """Return the columns of a DataFrame for the UI."""
    columns = [dg.TableColumn(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    return dg.TableSchema(columns=columns)
