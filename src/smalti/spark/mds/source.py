"""The class by which Spark knows `format("mds")`; needs PySpark 4.0 or later."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from smalti.errors import ArgumentError
from smalti.spark.mds.reading import Pin, ShardSetReader
from smalti.spark.mds.writing import ShardSetStreamWriter, ShardSetWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class MDSDataSource(DataSource):  # type: ignore[misc]
    """Shard sets as tables of Spark: `spark.read.format("mds").load(url)`.

    Spark makes an instance for each frame, asks it for the schema, and keeps the pickled instance for all actions of
    the frame: the version that the schema is of is the one that they read.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "mds"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options; nothing is opened."""
        super().__init__(options)
        self._pin: Pin | None = None

    def schema(self) -> "StructType":
        """Return the columns of the set, and remember its version."""
        opened = ShardSetReader(self.options)
        self._pin = opened.pin
        return opened.schema

    def reader(self, schema: "StructType") -> ShardSetReader:
        """Return a reader of these columns."""
        return ShardSetReader(self.options, self._pin, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> ShardSetWriter:  # noqa: FBT001 -- of PySpark
        """Return the writer of a query's rows."""
        return ShardSetWriter(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> ShardSetStreamWriter:  # noqa: FBT001, N802
        """Return the writer of a streaming query's micro-batches."""
        return ShardSetStreamWriter(schema, self.options, overwrite=overwrite)

    def streamReader(self, schema: "StructType") -> NoReturn:  # noqa: N802, ARG002 -- of PySpark
        """Refuse `spark.readStream`.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            'format("mds") is written as a stream and not read as one: `spark.read.format("mds")` reads the newest '
            "version"
        )
