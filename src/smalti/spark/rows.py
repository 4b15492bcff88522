"""Rows of any DataFrame as the source of a data set: their identity, their split, and versions made from the same rows.

Read `identity_of` first. Writing them is `smalti.spark.writing`.

Also here: functions of the user on executors that do not have their modules; they travel with the task, code and all.

Spark pickles a function of a module by its name, which executors then have to import. Modules that lie in the user's
own folders, and not where packages are installed, are pickled by value instead. What a function imports while it runs
does not travel.
"""

import functools
import hashlib
import json
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import or_
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import Manifest, rollback
from smalti.catalog.manifest import Header, read_header
from smalti.catalog.opening import headers_before
from smalti.catalog.sidecars import last_erasure
from smalti.errors import SchemaError
from smalti.spark.lineage import source_of
from smalti.spark.tasks import decode_errors, has_remote_executors, map_in_arrow, quoted, require_frame, to_arrow
from smalti.storage import Store
from smalti.writer.tables.transform import Transform, TransformRun, as_transform

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


SPLIT = "split"
"""Column that `with_split` adds."""

_NUM_TRIAL_ROWS = 64  # on which a transform is run to learn its columns
_PLACES = 1 << 30  # of the hash that decides to which split a row belongs


@dataclass(frozen=True)
class Identity:
    """The identity of the rows of a DataFrame."""

    digest: str
    """Equal for equal rows, and another one when a row changes."""
    how: str
    """Text: whether sources or content were digested."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts that Spark gives about the source; may be empty."""
    rows: int | None = None
    """Number of rows, if they had to be read."""


@decode_errors()
def identity_of(df: "DataFrame") -> Identity:
    """Return what identifies the rows: versions or files of their source, else a hash of their content.

    Reads no row where Spark knows enough about the source, and all of them once where it does not.
    """
    require_frame(df, "`df`")
    facts = source_of(df)
    if "plan" in facts:
        return Identity(_digest_of(facts), "the source's versions or files, and the query", facts)
    ((_, identity),) = _by_content(df, "the content of all rows", facts)
    return identity


@decode_errors()
def in_partitions(df: "DataFrame", column: str, keys: Iterable[str]) -> "DataFrame":
    """Return the rows whose partition is one of `keys`, with the key as text in `column`.

    Raises:
        SchemaError: there is no such column.
    """
    from pyspark.sql import functions

    require_frame(df, "`df`")
    if column not in df.columns:
        raise SchemaError(f"the column of the partitions is {column!r}, the rows have {', '.join(df.columns)}")
    key = functions.col(quoted(column)).cast("string")
    return df.where(key.isin(sorted(keys))).withColumn(column, key)


@decode_errors()
def identities_in(df: "DataFrame", column: str, keys: Iterable[str]) -> dict[str, Identity]:
    """Return what identifies the rows of each partition: a hash of their content; reads the rows of these once.

    Partitions without rows are not in the result.

    Args:
        df: The rows of all partitions.
        column: Column with the key of each row; a key is compared as text.
        keys: Keys of the partitions.
    """
    rows, how = in_partitions(df, column, keys), "the content of the rows of each partition"
    return {key: identity for (key,), identity in _by_content(rows, how, {}, column)}


def _by_content(
    df: "DataFrame", how: str, facts: Mapping[str, Any], column: str | None = None
) -> Iterator[tuple[list[str], Identity]]:
    """Yield the identity of all rows, or each value of a column with that of its rows; reads all rows once."""
    from pyspark.sql import functions

    keys = [] if column is None else [functions.col(quoted(column)).alias("key")]
    hashes = [_content_hash(df, seed).cast("decimal(38,0)").alias(f"hash{seed}") for seed in (0, 1)]
    grouped = df.select(*keys, *hashes).groupBy(*(["key"] if keys else []))
    sums = grouped.agg(functions.count("*"), functions.sum("hash0"), functions.sum("hash1"))
    for *key, rows, one, other in sums.collect():
        content = [df.schema.json(), str(rows), str(one), str(other)]
        yield key, Identity(_digest_of(content), how, facts, rows=int(rows))


@decode_errors()
def transformed(df: "DataFrame", transform: Transform) -> "DataFrame":
    """Return the rows that a transform makes of those of a DataFrame; lazy but for its first rows, on which it is run.

    Raises:
        SchemaError: There are no rows, or the transform gives none for the first ones.
        SmaltiError: The transform failed.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    require_frame(df, "`df`")
    first = first_transformed(df, transform, "the transform")
    schema = first.schema

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return TransformRun(transform, "a partition of the rows", schema).batches(batches)

    return map_in_arrow(df, task, from_arrow_schema(schema, prefer_timestamp_ntz=True))


def first_transformed(df: "DataFrame", transform: Transform, name: str) -> pa.RecordBatch:
    """Return the first batch that a transform makes of the first rows of a DataFrame; it runs in this process.

    Args:
        df: The rows.
        transform: Function over batches of them.
        name: Name of the function, for messages.

    Raises:
        SchemaError: There are no rows, or the transform gives none for the first ones.
        SmaltiError: The transform failed.
    """
    rows = to_arrow(df.limit(_NUM_TRIAL_ROWS))
    first = next(TransformRun(transform, f"trying {name} on the first rows").batches(iter(rows.to_batches())), None)
    if first is None:
        raise SchemaError(f"{name} gave no rows for the first {rows.num_rows}, so its columns are not known")
    return first


@decode_errors()
def with_split(df: "DataFrame", shares: Mapping[str, float], *, seed: int = 0, key: str | None = None) -> "DataFrame":
    """Return the DataFrame with a column `split`, decided by a hash of each row or of one of its columns.

    `shares` has the share of the rows of each split but `train`, which gets the rest. With the column `key`, rows with
    equal values stay together; by default all columns are hashed.

    Raises:
        SchemaError: there is a column `split` already, or none of the key's name.
    """
    from pyspark.sql import functions

    require_frame(df, "`df`")
    if SPLIT in df.columns:
        raise SchemaError(f"the rows have a column {SPLIT!r} already: name it as the column of the split, or drop it")
    if key is not None and key not in df.columns:
        raise SchemaError(f"the key of the split is {key!r}, the rows have {', '.join(df.columns)}", column=key)
    place = functions.pmod(_row_hash(df if key is None else df.select(quoted(key)), seed), functions.lit(_PLACES))
    chosen, end = functions.lit("train"), 1.0
    for name, share in shares.items():
        begin = end - share
        is_in = (place >= round(begin * _PLACES)) & (place < round(end * _PLACES))
        chosen, end = functions.when(is_in, name).otherwise(chosen), begin
    return df.withColumn(SPLIT, chosen)


def by_split(function: Transform | Callable[[Any], Any], column: str) -> Transform:
    """Return a transform that calls a function for the rows of one split at a time, and puts the split's name beside.

    So a function that merges rows, as one that packs texts into blocks does, never mixes splits. A function over
    iterators of batches is returned as it is: it gets the column, and has to give it.
    """
    given = as_transform(function)
    by_form = {"arrow": _arrow_by_split, "pandas": _pandas_by_split}.get(given.form)
    return given if by_form is None else Transform(functools.partial(by_form, given.function, column), given.form)


def _arrow_by_split(function: Callable[[Any], Any], column: str, batch: pa.RecordBatch) -> pa.Table:
    results = []
    values = batch.column(column)
    for name in sorted(_names(values.unique().to_pylist(), column)):
        given = function(batch.filter(pc.equal(values, name)))
        if not isinstance(given, pa.RecordBatch | pa.Table):
            return given  # the caller says what was expected
        result = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
        if column not in result.column_names:
            result = result.append_column(column, pa.array([name] * result.num_rows, pa.string()))
        results.append(result)
    return pa.concat_tables(results) if results else function(batch)


def _pandas_by_split(function: Callable[[Any], Any], column: str, frame: Any) -> Any:
    import pandas as pd

    results = []
    for name in sorted(_names(frame[column].unique().tolist(), column)):
        result = function(frame[frame[column] == name].reset_index(drop=True))
        if isinstance(result, pd.DataFrame) and column not in result.columns:
            result = result.assign(**{column: name})
        results.append(result)
    return pd.concat(results, ignore_index=True) if results else function(frame)


def _names(values: list[str | None], column: str) -> list[str]:
    if None in values:
        raise SchemaError(f"column {column!r} names the split of a row, and is null in some", column=column)
    return [str(value) for value in values]


def _content_hash(df: "DataFrame", seed: int) -> "Column":
    """Return 64 bits of hash over all columns and over which of them are null, which `_row_hash` skips.

    Rows without nulls have the hash of `_row_hash`.
    """
    from pyspark.sql import functions

    found = _row_hash(df, seed)
    nulls = [functions.col(quoted(field.name)).isNull() for field in df.schema if field.nullable]
    if not nulls:
        return found
    return functions.when(functools.reduce(or_, nulls), functions.xxhash64(found, *nulls)).otherwise(found)


def _row_hash(df: "DataFrame", seed: int) -> "Column":
    """Return 64 bits of hash over the values of all columns, by which `with_split` chose splits in earlier releases."""
    from pyspark.sql import functions

    names = [name.casefold() for name in df.columns]
    twice = next((name for name in df.columns if names.count(name.casefold()) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"the rows have column {twice!r} more than once, or in other case too; rename or drop one", column=twice
        )
    columns = [functions.col(quoted(name)) for name in df.columns]
    if any(kind in df.schema.simpleString() for kind in ("map<", "variant")):  # Spark hashes neither
        columns = [functions.to_json(functions.struct(*columns))]
    return functions.xxhash64(functions.lit(seed), *columns)


def _digest_of(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def find_same(store: Store, newest: Manifest | None, facts: Mapping[str, Any]) -> Manifest | None:
    """Return the newest version whose lineage has these facts; None if there is none. Needs no Spark.

    If others came after it, it is rolled back to: the same shards and digest under a new number; but not if samples
    were deleted since, which it may hold.

    Raises:
        CatalogError: As for `rollback`.
    """

    def is_same(version: Manifest | Header) -> bool:
        return all(version.lineage.get(name) == fact for name, fact in facts.items())

    if newest is None or is_same(newest):
        return newest
    if not newest.version:  # a plain MDS set
        return None
    header = earlier_with(store, read_header(store, newest.version), is_same)
    return None if header is None else rollback(store, header.version)


def earlier_with(store: Store, newest: Header, fits: Callable[[Header], bool]) -> Header | None:
    """Return the newest version before this one that fits, was not vacuumed, and is not older than a deletion."""
    for header in headers_before(store, newest):
        if header.version < last_erasure(newest):
            return None
        if header.version not in newest.expired and fits(header):
            return header
    return None


def ship_function(session: "SparkSession", function: Callable[..., Any]) -> list[str]:
    """Have Spark send the code of a function's module, and of those loaded from the same folder, to its executors.

    It holds for this process from now on. Nothing is done on a local master, whose workers import what this process
    does; for an installed module; and where a global of the function cannot be pickled, such as a lock: such a module
    has to be installed on the executors.

    Returns:
        Names of the top-level modules and packages that are sent.
    """
    if not has_remote_executors(session):
        return []
    from pyspark import cloudpickle

    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    folder = _folder_of(sys.modules[function.__module__.partition(".")[0]])
    if folder is None or any(folder.is_relative_to(Path(place).resolve()) for place in installed):
        return []
    left_out = {"__main__", "smalti", *cloudpickle.list_registry_pickle_by_value()}
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if "." not in name and left_out.isdisjoint((name, module.__name__)) and _folder_of(module) == folder
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        cloudpickle.dumps(function)
    except (pickle.PicklingError, TypeError, RecursionError):
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
        return []
    return [module.__name__ for module in modules]


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder that holds a top-level module or package; None of one without a file."""
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return Path(places[0]).resolve().parent if places[0] else None
