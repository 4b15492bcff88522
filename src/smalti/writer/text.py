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
            out: As for `MDSWriter`, like all arguments below but `newline`.
            newline: Ends each line.
            keep_local: See `MDSWriter`.
            compression: Of data and meta files.
            hashes: Of data and meta files.
            size_limit: Of the lines, without the meta file.
            exist_ok: See `MDSWriter`.
            max_workers: See `MDSWriter`.
            retry: See `MDSWriter`.
            progress_bar: See `MDSWriter`.
            storage_options: See `MDSWriter`.
            metadata: See `MDSWriter`.
            mode: See `MDSWriter`.

        Raises:
            Errors as for `MDSWriter`.
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
