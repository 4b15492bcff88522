"""Sources of rows: tables, queries and DataFrames; read by Spark, identified, prepared by a function and published."""

import hashlib
import importlib
import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import Field

from assets.configuration import with_defaults
from assets.declaration import Declaration
from assets.places import expand
from assets.reports.tables import Value
from assets.sources.inventory import inventories_of
from assets.sources.partitions import PARTITIONS, ReadPartitions
from assets.stage import RunPartitions
from resources.storage import StorageResource
from smalti.catalog import Manifest
from smalti.catalog.header import read_header
from smalti.spark import SourceFile, dataframe_to_mds, reshard_files
from smalti.spark.prepared.reshard import Target
from smalti.spark.rows import (
    SPLIT,
    Identity,
    by_split,
    find_same,
    first_transformed,
    identities_in,
    identity_of,
    in_partitions,
    transformed,
    with_split,
)
from smalti.spark.writing.transform import Transform, as_transform
from smalti.storage import open_store
from smalti.storage.redact import redact

SparkSession = Any  # Dagster resolves annotations when it loads, and pyspark is not to be imported then
DataFrame = Any

_RECIPE = 1  # another number when the same rows and options would give other shards
_SHOWN_ROWS = 8
_SHOWN_CHARACTERS = 80


class RowsConfig(dg.Config):
    """The source of the rows."""

    form: str = Field(default="table", description="table, sql or dataframe.")
    source: str = Field(
        default="",
        description="table: name in the catalogue, or address if the declaration has a format; sql: a query; "
        "dataframe: module:function.",
    )

    @property
    def described(self) -> str:
        """Return the source as a text without secrets; equal for configurations that read the same place."""
        return f"{self.form} {redact(expand(self.source))}"


def rows_config(declared: Declaration) -> type[RowsConfig]:
    """Return the configuration with the values of a declaration."""
    return with_defaults(RowsConfig, form=declared.source.form, source=declared.source.text)


def read_frame(session: SparkSession, declared: Declaration, config: RowsConfig) -> DataFrame:
    """Return the rows of the source; lazy.

    Raises:
        dg.Failure: the source is of no known form.
    """
    text = expand(config.source)
    if config.form == "table" and declared.source.format is not None:
        return session.read.format(declared.source.format).load(text)
    if config.form == "table":
        return session.table(text)
    if config.form == "sql":
        return session.sql(text)
    if config.form == "dataframe":
        return load_function(text)(session)
    raise dg.Failure(f"`form` must be table, sql or dataframe, found {config.form!r}", allow_retries=False)


def identify_partitions(
    frame: DataFrame, declared: Declaration, partitions: RunPartitions
) -> tuple[Identity, ReadPartitions]:
    """Return what identifies the rows of all partitions, and the digest of each.

    The rows of the run's own partitions are read. Those of all others are as earlier runs have found them.

    Raises:
        dg.Failure: no partition has rows.
    """
    column = _partition_column(declared)
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
    frame = read_frame(session, declared, RowsConfig(form=facts["form"], source=facts["reads"]))
    if PARTITIONS in facts:
        read = ReadPartitions.load(inventories_of(declared, storage), facts[PARTITIONS])
        return _rows_of(frame, declared, {key: digest for key, digest in read.own.items() if digest})
    found = identity_of(frame).digest
    if found != facts["digest"]:
        raise _changed(declared, str(facts["source"]), str(facts["digest"]), found)
    return frame


def _rows_of(frame: DataFrame, declared: Declaration, digests: Mapping[str, str]) -> DataFrame:
    """Return the rows of some partitions, given by their keys, if they still have these digests."""
    column = _partition_column(declared)
    found = identities_in(frame, column, digests)
    for key, before in digests.items():
        now = found[key].digest if key in found else ""
        if before != now:
            raise _changed(declared, f"partition {key} of {declared.source.text}", before, now)
    return in_partitions(frame, column, digests)


def _partition_column(declared: Declaration) -> str:
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


def watched_digest(declared: Declaration, config: RowsConfig, storage: StorageResource) -> str | None:
    """Return a digest of the files that change whenever a table does, without Spark; None if there is no such table.

    Of Delta and Iceberg these are the files of the table's log, of Parquet all files of the folder.
    """
    if config.form != "table" or declared.source.format is None:
        return None
    address, digest = expand(config.source), hashlib.sha256()
    below = {"delta": "_delta_log/", "iceberg": "metadata/", "parquet": ""}[declared.source.format]
    store = open_store(address, storage.options_for(address))
    for item in sorted(store.list(below), key=lambda item: item.key):
        digest.update(f"{item.key}\0{item.num_bytes}\0{item.modified}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def column_schema(frame: DataFrame) -> dg.TableSchema:
    """Return the columns of a DataFrame for the UI."""
    columns = [dg.TableColumn(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    return dg.TableSchema(columns=columns)


def load_function(path: str) -> Callable[..., Any]:
    """Return the function at `module:function`.

    Raises:
        dg.Failure: there is no such module or function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise dg.Failure(f"cannot import {path}, as the declaration says: {error}", allow_retries=False) from error
    return function  # type: ignore[no-any-return]


def function_digest(path: str) -> str:
    """Return a digest of a function's name and of the source of its module: another one when the code changes."""
    module = inspect.getmodule(load_function(path))
    try:
        code = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):  # compiled
        code = ""
    return hashlib.sha256(f"{path}\0{code}".encode()).hexdigest()


def preview_function(frame: DataFrame, path: str) -> tuple[dg.TableSchema, list[dict[str, Value]]]:
    """Return the columns that a function gives, and its first rows, shortened; runs it on a few rows in this process.

    Raises:
        SchemaError: it gave no rows.
        SmaltiError: it failed, or gave something else than batches.
    """
    first = first_transformed(frame, as_transform(load_function(path)), path)
    schema = dg.TableSchema(columns=[dg.TableColumn(field.name, str(field.type)) for field in first.schema])
    return schema, [{name: _shown(value) for name, value in row.items()} for row in first[:_SHOWN_ROWS].to_pylist()]


def _shown(value: Any) -> Value:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


@dataclass(frozen=True)
class WriteRows:
    """One way of writing the rows of a data set as shards."""

    declared: Declaration
    rows: str
    """Digest of the rows: of the source, or of the source and the function that prepares it."""
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: str

    @property
    def write_id(self) -> str:
        """Return a name that is equal for equal rows and options."""
        declared = self.declared
        facts = [_RECIPE, self.rows, self.compression, list(self.hashes), self.size_limit]
        facts += [declared.columns, declared.shards.nulls, declared.split.model_dump(mode="json"), declared.function]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def options(self, target: Target) -> dict[str, Any]:
        """Return the arguments that both ways of writing have in common."""
        return {
            "nulls": self.declared.shards.nulls or "reject",
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
            "storage_options": target.storage_options,
        }

    def find(self, target: Target) -> Manifest | None:
        """Return the version that has these rows in such shards; an earlier one is rolled back to."""
        store = open_store(target.url, target.storage_options)
        return find_same(store, target.newest, {"write": self.write_id})


def publish_rows(
    frame: DataFrame, write: WriteRows, target: Target, *, lineage: Mapping[str, Any], is_rewrite: bool = False
) -> Manifest:
    """Write rows as a new version of a shard set by `dataframe_to_mds`, and return it."""
    declared, column = write.declared, write.declared.split.column or SPLIT
    frame = _prepared(frame, declared, None)
    transform = by_split(load_function(declared.function), column) if declared.function is not None else None
    columns = declared.columns
    if columns is None and transform is None:
        columns = {name: None for name in frame.columns if name != column}
    return dataframe_to_mds(
        frame,
        target.url,
        columns=columns,
        transform=transform,
        partition_by=column,
        mode="overwrite",
        progress=False,
        write_id=_fresh(write.write_id, target, is_rewrite=is_rewrite),
        lineage={"write": write.write_id, **lineage},
        **write.options(target),
    )


def publish_partitions(
    session: SparkSession,
    write: WriteRows,
    target: Target,
    source: Mapping[str, Any],
    digests: Mapping[str, str],
    *,
    lineage: Mapping[str, Any],
) -> Manifest:
    """Publish a version with the rows of all partitions; only those of new and changed ones are read and written.

    Args:
        session: of Spark.
        write: how the rows are written.
        target: the shard set.
        source: facts of `raw`.
        digests: of the rows of all partitions, by key.
        lineage: kept in the manifest.

    Raises:
        dg.Failure: a partition changed since `raw` has read it.
    """
    declared, split = write.declared, write.declared.split
    column, split_column = _partition_column(declared), split.column or SPLIT
    transform = None
    if declared.function is not None:
        transform = by_split(by_split(load_function(declared.function), split_column), column)

    def prepare(session: SparkSession, keys: Sequence[str]) -> DataFrame:
        frame = read_frame(session, declared, RowsConfig(form=source["form"], source=source["reads"]))
        return _prepared(_rows_of(frame, declared, {key: digests[key] for key in keys}), declared, transform)

    columns = declared.columns
    if columns is not None:
        columns = {column: "str", **columns}
    elif transform is None:
        names = read_frame(session, declared, RowsConfig(form=source["form"], source=source["reads"])).columns
        columns = {name: None for name in names if name != split_column}
    code = function_digest(declared.function) if declared.function is not None else None
    return reshard_files(
        session,
        [SourceFile(key, digest) for key, digest in digests.items()],
        target.url,
        prepare=prepare,
        recipe=[_RECIPE, split.model_dump(mode="json"), code],
        path_column=column,
        columns=columns,
        partition_by=split_column,
        lineage={"write": write.write_id, **lineage},
        **write.options(target),
    )


def _prepared(frame: DataFrame, declared: Declaration, transform: Transform | None) -> DataFrame:
    """Return rows with their split, transformed if there is a function."""
    split = declared.split
    if split.column is None:
        frame = with_split(frame, {"validation": split.validation, "test": split.test}, seed=split.seed, key=split.key)
    return frame if transform is None else transformed(frame, transform)


def _fresh(write_id: str, target: Target, *, is_rewrite: bool) -> str:
    """Return the name of a write that is not used up: two equal runs at once are one write, a later one is another."""
    if target.newest is None or not target.newest.version:
        return write_id
    header = read_header(open_store(target.url, target.storage_options), target.newest.version)
    is_used = is_rewrite or write_id in header.writes or write_id in header.fenced
    return f"{write_id}-{secrets.token_hex(4)}" if is_used else write_id
