"""MDS as a data source of Spark: `format("mds")` reads, writes and streams into shard sets.

`options` reads the options, `source` has the class that Spark knows, and reads; `writing` writes. PySpark 4.0 or later
is needed; the modules import it, so import them only when it is there.
"""

from typing import TYPE_CHECKING

from smalti.errors import MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("mds")` known to a session that does not find it, and limit the session's Arrow batches to 2 MiB.

    Spark finds it by itself where smalti is installed for the Python of the driver, or of the server of Spark Connect.
    Limits that the session has are kept; a source cannot set them, and Spark's own make writes of pictures slower.

    Args:
        spark: The session.

    Raises:
        MissingDependency: PySpark is older than 4.0, which has no data sources in Python.

    Examples:
        >>> register(spark)
        >>> spark.read.format("mds").load("s3://bucket/users").count()
        15
    """
    try:
        from smalti.spark.mds.source import MDSDataSource

        sources = spark.dataSource
    except (ImportError, AttributeError) as error:  # not all of 4.0 is there, as in some runtimes of Databricks
        import pyspark

        raise MissingDependency(
            f'format("mds") needs PySpark 4.0 or later, found {pyspark.__version__}: update it, or write with '
            "`smalti.spark.dataframe_to_mds`",
            package="pyspark",
            extra="spark",
        ) from error
    from smalti.spark.session import ARROW_BATCHES
    from smalti.spark.tasks import set_by_default

    set_by_default(spark, ARROW_BATCHES)
    sources.register(MDSDataSource)
