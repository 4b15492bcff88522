"""`JSONWriter`, `CSVWriter`, `TSVWriter` and `XSVWriter`, with the interface of MosaicML's writers."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from smalti.catalog.publishing.publish import Mode
from smalti.format import ShardOptions, TextShardBuilder, layout_of, text_schema
from smalti.writer.version import Place, VersionWriter, WriterOptions


class TextWriter(VersionWriter):
    """The base of the writers of text shards, each of which writes one version. See `MDSWriter` for the life cycle.

    Columns hold text, integers of any size, or floats. Values that cannot be read back unchanged are refused: as there
    is no quoting, values in CSV, TSV and XSV contain neither separators nor line ends, and JSON contains no NaN.
    """

    _format: ClassVar[str]
    _separator: str | None = None

    def __init__(  # noqa: PLR0913 - MosaicML's names and defaults, so that notebooks need no changes
        self,
        *,
        columns: Mapping[str, str],
        out: Place | tuple[Place, Place],
        newline: str = "\n",
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        exist_ok: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        progress_bar: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        mode: Mode | None = None,
    ) -> None:
        r"""Check the options, and that the version can be published at `out`.

        Args:
            columns: Name to encoding: `"str"`, `"int"` or `"float"`.
            out: As for `MDSWriter`, like every argument from `keep_local` on; `size_limit` counts the lines only.
            newline: Ends each line.
            keep_local: With (local, remote), whether the set is written to the local folder as well.
            compression: Of data and meta files, such as `"zstd:7"`, or None.
            hashes: Checksums to record for every file; None means xxh3_64, an empty list none at all.
            size_limit: Largest shard before compression, in bytes or as `"64mb"`; None for a single shard.
            exist_ok: MosaicML's name for `mode="overwrite"`.
            max_workers: Shards that are sealed and uploaded at the same time.
            retry: Attempts per upload, at least 1.
            progress_bar: Whether to show stored shards and bytes on the error stream.
            storage_options: For the file system of the URL.
            metadata: Kept with the version; JSON.
            mode: `"create"`, `"overwrite"` or `"append"`.

        Raises:
            SchemaError: a column or option is invalid, or `append` to a set with other columns.
            DatasetExists: there is a set already and the mode is `create`, or Smalti did not write the set.
            StoreError: `out` cannot be read.
            ValueError: `retry` or `max_workers` is below 1, or the mode is unknown or contradicts `exist_ok` or
                `keep_local`.
        """
        schema = text_schema(columns)
        layout = layout_of(self._format, schema, newline, self._separator)
        chosen = ShardOptions(compression, ("xxh3_64",) if hashes is None else tuple(hashes), size_limit)
        options = WriterOptions(
            out, keep_local, exist_ok, max_workers, retry, progress_bar, storage_options, metadata, mode=mode
        )
        super().__init__(schema, TextShardBuilder(layout, chosen), options)


class JSONWriter(TextWriter):
    """A writer of JSONL: one JSON object per line."""

    _format = "json"


class CSVWriter(TextWriter):
    """A writer of comma-separated values, below a line with the names of the columns."""

    _format, _separator = "csv", ","


class TSVWriter(TextWriter):
    """A writer of tab-separated values, below a line with the names of the columns."""

    _format, _separator = "tsv", "\t"


class XSVWriter(TextWriter):
    """A writer of values with any separator, below a line with the names of the columns."""

    _format = "xsv"

    def __init__(self, *, columns: Mapping[str, str], separator: str, **options: Any) -> None:
        """Create a writer as `CSVWriter`, with the text that separates the values, such as `"|"`."""
        self._separator = separator
        super().__init__(columns=columns, **options)
