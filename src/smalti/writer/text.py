"""`JSONWriter`, `CSVWriter`, `TSVWriter` and `XSVWriter`, with the interface that MosaicML's users know."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from smalti.catalog.publishing.publish import Mode
from smalti.format import ShardOptions, TextShardBuilder, layout_of, text_schema
from smalti.writer.version import Place, VersionWriter, WriterOptions


class TextWriter(VersionWriter):
    """Writes one version of a set of text shards; the base of the writers below. See `MDSWriter` for the life cycle.

    Columns hold text, integers of any size, or floats. A value that would not come back as it was is refused: there is
    no quoting, so CSV, TSV and XSV hold neither separators nor line ends, and JSON holds no NaN.
    """

    _format: ClassVar[str]
    _separator: str | None = None

    def __init__(  # noqa: PLR0913 - MosaicML's names and defaults, so that a notebook moves over unchanged
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
        r"""Check the options, and that `out` can take the version.

        Args:
            columns: Name to encoding: `"str"`, `"int"` or `"float"`.
            out: As for `MDSWriter`, like every argument from `keep_local` on; `size_limit` counts the lines alone.
            newline: Ends each line.
            keep_local: With (local, remote), whether the set is written to the local folder as well.
            compression: `"zstd:7"`, for example, or None; of data and meta files alike.
            hashes: Checksums to record for every file; None means xxh3_64, an empty list none at all.
            size_limit: Largest shard before compression, in bytes or as `"64mb"`; None for a single shard.
            exist_ok: MosaicML's name for `mode="overwrite"`.
            max_workers: Shards sealed and uploaded at the same time.
            retry: Tries per upload, at least 1.
            progress_bar: Whether stored shards and bytes are counted on the error stream.
            storage_options: For the file system of the URL.
            metadata: Kept with the version; JSON.
            mode: `"create"`, `"overwrite"` or `"append"`.

        Raises:
            SchemaError: A column or an option that cannot be used, or `append` to a set with other columns.
            DatasetExists: There is a set already and the mode is `create`, or it is not one of Smalti's.
            StoreError: `out` cannot be read.
            ValueError: `retry` or `max_workers` below 1, no such mode, or one that `exist_ok` or `keep_local`
                contradicts.
        """
        schema = text_schema(columns)
        layout = layout_of(self._format, schema, newline, self._separator)
        chosen = ShardOptions(compression, ("xxh3_64",) if hashes is None else tuple(hashes), size_limit)
        options = WriterOptions(
            out, keep_local, exist_ok, max_workers, retry, progress_bar, storage_options, metadata, mode=mode
        )
        super().__init__(schema, TextShardBuilder(layout, chosen), options)


class JSONWriter(TextWriter):
    """Writes JSONL: an object on each line."""

    _format = "json"


class CSVWriter(TextWriter):
    """Writes lines of values with commas between them, below a line of the columns' names."""

    _format, _separator = "csv", ","


class TSVWriter(TextWriter):
    """Writes lines of values with tabs between them, below a line of the columns' names."""

    _format, _separator = "tsv", "\t"


class XSVWriter(TextWriter):
    """Writes lines of values with any separator between them, below a line of the columns' names."""

    _format = "xsv"

    def __init__(self, *, columns: Mapping[str, str], separator: str, **options: Any) -> None:
        """As `CSVWriter`, with the text that separates the values, such as `"|"`."""
        self._separator = separator
        super().__init__(columns=columns, **options)
