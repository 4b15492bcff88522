"""The global shuffle of a write: every row goes to a place that its content and a seed decide.

Each row gets a key of 128 bits, a hash of the seed and of all its values. The keys decide the row's Spark partition and
its place in it. So the order depends on the rows, the seed and the number of partitions, and neither on the order or
partitioning of the input nor on which attempt at a task Spark counts. Equal rows become neighbours.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEYS = ("__smalti_key_0", "__smalti_key_1")
_SEED_STEP = 0x9E3779B97F4A7C15  # any odd number: derives the second key's seed from the first's


def shuffle_rows(df: "DataFrame", seed: int, partitions: int | None) -> "DataFrame":
    """Return the same rows in the order that `seed` gives them; lazy, as every transformation of Spark.

    Costs one shuffle of all rows through Spark, and a sort of each partition.

    Args:
        df: The rows.
        seed: Another seed gives another order.
        partitions: Number of partitions of the result, about equally large; None takes `spark.sql.shuffle.partitions`.
    """
    from pyspark.sql import functions

    count = partitions or int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    values = [_hashable(field.name, field.dataType) for field in df.schema]
    keys = [
        functions.xxhash64(functions.lit(_signed(seed + number * _SEED_STEP)), *values).alias(name)
        for number, name in enumerate(_KEYS)
    ]
    keyed = df.select("*", *keys)
    return keyed.repartition(count, _KEYS[0]).sortWithinPartitions(*_KEYS).drop(*_KEYS)


def _signed(number: int) -> int:
    """Return the number modulo 2^64, as the signed integer of Spark's long."""
    return (number + 2**63) % 2**64 - 2**63


def _hashable(name: str, kind: Any) -> "Column":
    """Return the column, or its JSON where it has a map, which Spark does not hash."""
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
