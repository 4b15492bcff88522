"""Shards of any format, opened and read as one: batches out of several shards whose formats may differ."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import Int64s
from smalti.format.index import PARQUET, ShardInfo
from smalti.format.reading.batch import DEFAULTS, Arrays, OpenOptions, filled, read_batch
from smalti.format.reading.files import MappedRows
from smalti.format.reading.shard import Shard
from smalti.format.reading.text import TextShard
from smalti.format.schema import Schema

AnyShard = Shard | TextShard
_PLAN = attrgetter("plan")  # a batch may touch a thousand shards: no Python code runs for each of them


def open_shard(paths: Sequence[Path], info: ShardInfo, options: OpenOptions = DEFAULTS) -> AnyShard:
    """Open the shard whose uncompressed files are `paths`, in the order of `info.raw_files`.

    Raises:
        ChecksumMismatch: The size of a file is not the declared one.
        FormatError: A file is damaged or contradicts the index.
        SchemaError: A column whose encoding is refused.
        OSError: A file cannot be opened.
    """
    _check_no_parquet(info)
    if len(paths) != len(info.raw_files):
        raise FormatError(f"{info.raw.basename}: expected {len(info.raw_files)} files, found {len(paths)}.")
    if info.meta is None:
        return Shard.open(paths[0], info, options)
    return TextShard.open(paths[0], paths[1], info, options)


def check_readable(
    shards: Iterable[ShardInfo], *, allow_unsafe_types: bool = False, names: tuple[str, ...] | None = None
) -> None:
    """Return only if the columns of all shards may be decoded; fast, since shards share schemas.

    `names` are the columns to read; None for all.

    Raises:
        FormatError: These are Parquet files.
        SchemaError: A column is unsafe (`pkl`) and `allow_unsafe_types` is not given, or a shard lacks one of `names`.
    """
    seen: dict[int, Schema] = {}  # with the schemas, so that no `id` is reused
    for shard in shards:
        _check_no_parquet(shard)
        if id(shard.schema) not in seen:
            columns = set(shard.schema.names)
            missing = [name for name in names or () if name not in columns]
            if missing:
                raise SchemaError(
                    f"{shard.raw.basename} has no column {missing[0]!r}, which other shards of the set have; its "
                    f"columns are {', '.join(shard.schema.names)}.",
                    column=missing[0],
                    shard=shard.raw.basename,
                )
            if shard.meta is None:
                read = shard.schema if names is None else shard.schema.only(names)
                read.codecs(allow_unsafe_types=allow_unsafe_types)
            seen[id(shard.schema)] = shard.schema


def _check_no_parquet(info: ShardInfo) -> None:
    if info.format == PARQUET:
        raise FormatError(
            f"{info.raw.basename} is a Parquet file of prepared images and no shard: read the version with "
            "`smalti.spark.read_prepared`, or any reader of Parquet (`prepared_files`)."
        )


def batch_of(shards: Sequence[AnyShard], which: Int64s, rows: Int64s, out: Arrays | None = None) -> dict[str, Any]:
    """Return samples of several shards by column, in the order of `rows`, as `Shard.batch` does for one.

    Args:
        shards: At least one.
        which: For each row of the batch its shard's place in `shards`, int64, shape (n,).
        rows: For each row its sample in that shard, int64, shape (n,), each in [0, len(shard)): not checked again.
        out: Arrays to fill for columns of numbers and of fixed-size arrays, by name, of the dtype and shape that the
            column has in the batch; such a column is returned as that array. Their content is undefined if an error is
            raised.

    Raises:
        FormatError: Bytes of one of the samples are damaged.
        SchemaError: Two of the shards have different columns or encodings; or an array of `out` has another dtype or
            shape, or cannot be written.
        ValueError: One of the shards is closed.
    """
    mds_shards = [shard for shard in shards if isinstance(shard, Shard)]
    plans = set(map(_PLAN, mds_shards))
    if len(plans) == 1 and len(mds_shards) == len(shards):  # all are MDS shards of one schema, the usual case
        return read_batch(MappedRows([shard.mapped() for shard in mds_shards], which, rows), plans.pop(), out)
    check_alike([shard.info for shard in shards], [shard.names for shard in shards])
    groups = [np.flatnonzero(which == place) for place in range(len(shards))]
    parts = [shard.batch(rows[group]) for shard, group in zip(shards, groups, strict=True)]
    return filled(joined(parts, groups), out)


def check_alike(infos: Sequence[ShardInfo], names: Sequence[tuple[str, ...] | None]) -> None:
    """Return only if the columns that are read of the shards are the same, in any order.

    `names` are the columns that are read of each; None for all.

    Raises:
        SchemaError: Those of two of them are not.
    """
    first, first_names = infos[0], names[0]
    for info, its_names in zip(infos[1:], names[1:], strict=True):
        if info.schema is first.schema and its_names == first_names:
            continue
        columns, its_columns = [
            (shard.schema if read is None else shard.schema.only(read)).columns()
            for shard, read in ((first, first_names), (info, its_names))
        ]
        if its_columns != columns:
            raise SchemaError(
                f"shards {first.raw.basename} and {info.raw.basename} have different columns: "
                f"{columns} and {its_columns}; a batch by column needs the same ones. "
                "Read such a set sample by sample, or write it again with one schema.",
                shard=info.raw.basename,
            )


def joined(parts: Sequence[dict[str, Any]], places: Sequence[Int64s]) -> dict[str, Any]:
    """Join parts of a batch that have the same columns.

    `places` holds, for each of the parts, at least one, which rows of the batch it has, in its order.
    """
    order = np.argsort(np.concatenate(places), kind="stable")
    batch: dict[str, Any] = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        if all(isinstance(column, np.ndarray) for column in columns):
            batch[name] = np.concatenate(columns)[order]
        else:
            rows = [
                row for column in columns for row in (column.tolist() if isinstance(column, np.ndarray) else column)
            ]
            batch[name] = [rows[place] for place in order.tolist()]
    return batch
