"""Writers of versions of JSONL, CSV, TSV and XSV shards, which the library reads, compacts and deletes samples from.

MosaicML's own writers of these formats are in `smalti.compat.streaming`; they have no versions to append to.
"""

from typing import Any, ClassVar

from smalti.format import ShardOptions, TextShardBuilder, text_schema
from smalti.format.text import layout_of
from smalti.writer import VersionWriter, WriterOptions


class TextWriter(VersionWriter):
    """Takes the arguments of `MDSWriter`, and `newline` and `separator`."""

    kind: ClassVar[str]
    separator: ClassVar[str | None] = None

    def __init__(self, *, columns: Any, newline: str = "\n", separator: str | None = None,
                 compression: str | None = None, hashes: Any = ("xxh3_64",), size_limit: Any = 1 << 26,
                 **options: Any) -> None:  # fmt: skip
        layout = layout_of(self.kind, text_schema(columns), newline, separator or self.separator)
        builder = TextShardBuilder(layout, ShardOptions(compression, tuple(hashes), size_limit))
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
