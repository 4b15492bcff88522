"""What Spark itself does with a DataFrame: limits for whoever takes its rows through Arrow into Python."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.interface import Peer, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetWrite(Peer):
    """Spark's own write of uncompressed Parquet: no row leaves the JVM, no checksum, nothing synced."""

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """One file per partition."""
        frame.write.mode("overwrite").option("compression", "none").parquet(str(folder))


class FrameRead(Peer):
    """The source read, and nothing done with its rows."""

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """Spark's `noop` sink."""
        frame.write.mode("overwrite").format("noop").save()


class ArrowOnly(Peer):
    """Every row brought to Python in Arrow batches as Smalti has them cut, and counted there."""

    def write_frame(self, frame: Any, folder: Path, options: WriteOptions) -> None:
        """A `mapInArrow` that does nothing."""
        from smalti.spark.session import ARROW_BATCHES

        for name, value in ARROW_BATCHES.items():
            frame.sparkSession.conf.set(name, value)
        frame.mapInArrow(_count, "rows long").collect()


def _count(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})
