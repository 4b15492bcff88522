"""One Parquet file of an export: Arrow types with nullability, images as columns of bytes."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.format.reading.arrow import STORED_AS
from smalti.stream.arrow import ArrowReader, RowSpan

SUFFIX = ".parquet"
_ROW_GROUP_BYTES = 32 << 20  # in memory; readers load and skip a row group as a whole
_COMPRESSED_ALREADY = (b"jpeg", b"png")


def write_parquet(path: Path, reader: ArrowReader, spans: Iterable[RowSpan], compression: str) -> None:
    """Write the samples of these spans to a new file; memory holds one row group."""
    schema = reader.schema
    codecs = {field.name: compression for field in schema if not _is_image(field)}
    words = [field.name for field in schema if _repeats(field.type)]
    with pq.ParquetWriter(
        path,
        schema,
        compression=codecs or "none",
        use_dictionary=words or False,
        write_statistics=[field.name for field in schema if not _is_image(field)] or False,
    ) as writer:
        waiting: list[pa.RecordBatch] = []
        num_bytes = 0
        for span in spans:
            for batch in reader.batches(span):
                waiting.append(batch)
                num_bytes += batch.nbytes
                if num_bytes >= _ROW_GROUP_BYTES:
                    _write(writer, waiting, schema)
                    waiting, num_bytes = [], 0
        if waiting:
            _write(writer, waiting, schema)


def _write(writer: pq.ParquetWriter, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
    table = pa.Table.from_batches(batches, schema)
    writer.write_table(table, row_group_size=max(1, table.num_rows))


def _is_image(field: pa.Field) -> bool:
    return (field.metadata or {}).get(STORED_AS) in _COMPRESSED_ALREADY


def _repeats(kind: pa.DataType) -> bool:
    """Return whether a dictionary of values is worth trying: for words and integers, not for arrays and files."""
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind))
