"""The plan of a DataFrame's columns, and the casts that Spark does before its rows leave it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smalti.spark.kinds import kinds_in
from smalti.spark.tasks import quoted
from smalti.writer.tables.columns import TablePlan, plan_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def plan_table(
    schema: "StructType", columns: Mapping[str, str | None] | None = None, nulls: str | Mapping[str, Any] = "reject"
) -> TablePlan:
    """Return how each column of a DataFrame is stored, as `plan_columns` does for any table."""
    return plan_columns(kinds_in(schema), columns, nulls)


def with_casts(df: "DataFrame", plan: TablePlan) -> "DataFrame":
    """Return the DataFrame with the casts of the plan done; its other columns stay as they are."""
    from pyspark.sql import functions

    for name, kinds in plan.casts.items():
        column = functions.col(quoted(name))
        for kind in kinds:
            column = column.cast(kind)
        df = df.withColumn(name, column)
    return df
