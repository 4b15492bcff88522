"""Which rows of a batch go where: bad images by their policy, the others to their splits.

Every row to a place that its content and a seed decide: the global shuffle at write.

Each row gets a key of 128 bits, a hash of the seed and of all its values. The keys decide the row's Spark partition and
its place in it, so the order depends on the rows, the seed and the number of partitions; not on the order or the
partitions that the rows had, and not on which attempt at a task Spark counts. Equal rows come to stand together.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import BadImageError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR = "error"
PATH = "path"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}", re.ASCII)
_MAX_SPLITS = 64  # a split costs every task an open shard in memory; more is a mistaken column


def without_bad_images(batch: pa.RecordBatch, policy: str | None) -> pa.RecordBatch:
    """The rows of `prepare_images` that have an image; all rows of other frames.

    Raises:
        BadImageError: the policy is `fail`, and one has none.
    """
    if policy is None:
        return batch
    good = pc.is_null(batch.column(ERROR))
    if policy == "fail" and not pc.all(good).as_py():
        first = batch.filter(pc.invert(good)).slice(0, 1).select([PATH, ERROR]).to_pylist()[0]
        raise BadImageError(
            f"{first[PATH]} is not a usable image: {first[ERROR]}. Remove or replace it, or set `on_bad_image` to "
            f'"skip"; `write_prepared` names all such files',
            path=first[PATH],
        )
    return batch.filter(good)


def by_split(batch: pa.RecordBatch, column: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The batch cut by the values of the partition column, in order of first appearance.

    Raises:
        SchemaError: no such column of texts, or a null in it.
    """
    if column is None or batch.num_rows == 0:
        yield None, batch
        return
    if column not in batch.schema.names:
        raise SchemaError(
            f"`partition_by` names {column!r}, `transform` gave {', '.join(batch.schema.names)}", column=column
        )
    values = batch.column(column)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise SchemaError(f"`partition_by` column {column!r} must hold text, found {values.type}", column=column)
    if values.null_count:
        raise SchemaError(
            f"`partition_by` column {column!r} has a null, so the row belongs to no split: fill it first", column=column
        )
    distinct = pc.unique(values).to_pylist()
    for value in distinct:
        yield value, batch if len(distinct) == 1 else batch.filter(pc.equal(values, value))


def check_split(column: str | None, split: str | None, count: int) -> None:
    """Refuse a split as soon as it is seen: publishing would refuse it too, but after all the work.

    Args:
        column: where it comes from.
        split: the new one.
        count: how many there are without it.

    Raises:
        SchemaError: it cannot name a folder, or there are too many.
    """
    if split is None:
        return
    if not _SPLIT_NAME.fullmatch(split):
        raise SchemaError(
            f"`partition_by` column {column!r} holds {split[:80]!r}, which cannot be the folder of a split: expected "
            f"1 to 128 letters, digits and . _ = -, beginning with a letter or digit",
            column=column,
        )
    if count >= _MAX_SPLITS:
        raise SchemaError(
            f"`partition_by` column {column!r} has more than {_MAX_SPLITS} values in one task; it is meant for splits "
            f"such as train and validation",
            column=column,
        )


_KEYS = ("__smalti_key_0", "__smalti_key_1")
_STEP = 0x9E3779B97F4A7C15  # any odd number: makes two seeds of one


def spread(df: "DataFrame", seed: int, partitions: int | None) -> "DataFrame":
    """The same rows in an order of their own, which is a permutation by `seed`; evaluated when the rows are read.

    Costs one shuffle of all rows through Spark, and a sort of each partition.

    Args:
        df: the rows.
        seed: another seed is another order.
        partitions: of the result, about equally large; None takes `spark.sql.shuffle.partitions`.
    """
    from pyspark.sql import functions

    count = partitions or int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    values = [_hashable(field.name, field.dataType) for field in df.schema]
    keys = [
        functions.xxhash64(functions.lit(_signed(seed + number * _STEP)), *values).alias(name)
        for number, name in enumerate(_KEYS)
    ]
    keyed = df.select("*", *keys)
    return keyed.repartition(count, _KEYS[0]).sortWithinPartitions(*_KEYS).drop(*_KEYS)


def _signed(number: int) -> int:
    """The number modulo 2^64, as Spark's long has it."""
    return (number + 2**63) % 2**64 - 2**63


def _hashable(name: str, kind: Any) -> "Column":
    """The column, or, as Spark hashes no maps, its JSON."""
    from pyspark.sql import functions

    column = functions.col("`" + name.replace("`", "``") + "`")
    return functions.to_json(functions.struct(column)) if _has_map(kind) else column


def _has_map(kind: Any) -> bool:
    family = kind.typeName()
    if family == "map":
        return True
    if family == "array":
        return _has_map(kind.elementType)
    if family == "struct":
        return any(_has_map(field.dataType) for field in kind.fields)
    return False
