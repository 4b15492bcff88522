"""The plan of a DataFrame's columns, and the casts that Spark does before its rows leave it.

Also here: Spark's types as the kinds of columns that `smalti.writer.tables` stores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smalti.spark.tasks import quoted
from smalti.writer.tables.columns import TablePlan, plan_columns
from smalti.writer.tables.types import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def plan_table(
    schema: "StructType", columns: Mapping[str, str | None] | None = None, nulls: str | Mapping[str, Any] = "reject"
) -> TablePlan:
    """Return how each column of a DataFrame is stored, as `plan_columns` does for any table."""
    return plan_columns(kinds_in(schema), columns, nulls)


def with_casts(df: "DataFrame", casts: Mapping[str, Sequence[str]]) -> "DataFrame":
    """Return the DataFrame with the casts of a `TablePlan` done; its other columns stay as they are."""
    from pyspark.sql import functions

    for name, kinds in casts.items():
        column = functions.col(quoted(name))
        for kind in kinds:
            column = column.cast(kind)
        df = df.withColumn(name, column)
    return df


_INTERVALS = ("daytimeinterval", "yearmonthinterval")
_MODULES = ("pyspark.ml.linalg", "pyspark.mllib.linalg")
_OWN_TYPES = {"VectorUDT": "vector", "MatrixUDT": "matrix"}


def kinds_in(schema: "StructType") -> list[tuple[str, Kind]]:
    """Return name and kind of every column of a DataFrame."""
    return [(field.name, kind_of_spark(field.dataType)) for field in schema.fields]


def kind_of_spark(spark: Any) -> Kind:
    """Return the kind of a `pyspark.sql.types.DataType`."""
    name = type(spark).__name__.removesuffix("Type").lower()  # the type name of an interval lists its fields
    text, family = spark.simpleString(), name if name in _INTERVALS else str(spark.typeName().split("(")[0])
    if hasattr(spark, "sqlType"):
        name = type(spark).__name__ if type(spark).__module__ in _MODULES else ""
        stored = spark.sqlType()
        fields = tuple(kinds_in(stored)) if hasattr(stored, "fields") else ()
        return Kind(_OWN_TYPES.get(name, "udt"), text, fields=fields)
    if family == "decimal":
        return Kind(family, text, precision=spark.precision, scale=spark.scale)
    if family == "array":
        return Kind(family, text, element=kind_of_spark(spark.elementType))
    if family == "map":
        return Kind(family, text, keys=kind_of_spark(spark.keyType), values=kind_of_spark(spark.valueType))
    if family == "struct":
        return Kind(family, text, fields=tuple(kinds_in(spark)))
    return Kind(family, text)
