"""Writers of versions of JSONL, CSV, TSV and XSV shards, which the library reads, compacts and deletes samples from.

MosaicML's own writers of these formats are in `smalti.compat.streaming`; they have no versions to append to.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from smalti.errors import SchemaError
from smalti.format import FilledShard, ShardOptions, ShardPacker, text_schema
from smalti.format.text import TextLayout, layout_of
from smalti.writer import VersionWriter, WriterOptions


class TextBuilder(ShardPacker):
    """Packs samples of plain values into text shards: as MosaicML's writers, it writes what `json` and `str` return."""

    def __init__(self, layout: TextLayout, options: ShardOptions) -> None:
        super().__init__(layout, options)
        self.layout = layout

    def add(self, sample: Mapping[str, Any]) -> list[FilledShard]:
        """Add one sample, and return the shard that it completed, if any."""
        self.layout.schema.check_sample(sample, self.next_row)
        line = line_of(self.layout, sample)
        return self.add_encoded(np.array([len(line)]), memoryview(line))

    def add_batch(self, batch: Any) -> list[FilledShard]:
        """Add every row of an Arrow batch."""
        return [shard for row in batch.to_pylist() for shard in self.add(row)]


def line_of(layout: TextLayout, sample: Mapping[str, Any]) -> bytes:
    """Return the line of a sample with its end.

    Raises:
        SchemaError: A line with a separator would not be read as these values.
    """
    if layout.separator is None:
        return (json.dumps(dict(sample), sort_keys=True) + layout.newline).encode()
    values = [str(sample[name]) for name in layout.schema.names]
    line = layout.separator.join(values)
    if layout.newline in line or line.split(layout.separator) != values:
        raise SchemaError("a text contains the separator or the line end")
    return (line + layout.newline).encode()


class TextWriter(VersionWriter):
    """Takes the arguments of `MDSWriter`, and `newline` and `separator`."""

    kind: ClassVar[str]
    separator: ClassVar[str | None] = None

    def __init__(self, *, columns: Any, newline: str = "\n", separator: str | None = None,
                 compression: str | None = None, hashes: Any = ("xxh3_64",), size_limit: Any = 1 << 26,
                 **options: Any) -> None:  # fmt: skip
        layout = layout_of(self.kind, text_schema(columns), newline, separator or self.separator)
        builder = TextBuilder(layout, ShardOptions(compression, tuple(hashes), size_limit))
        super().__init__(layout.schema, builder, WriterOptions(**options))


class JSONWriter(TextWriter):
    """One JSON object on each line."""

    kind = "json"


class CSVWriter(TextWriter):
    """Values with commas between them."""

    kind, separator = "csv", ","


class TSVWriter(TextWriter):
    """Values with tabs between them."""

    kind, separator = "tsv", "\t"


class XSVWriter(TextWriter):
    """Values with any separator between them."""

    kind = "xsv"
