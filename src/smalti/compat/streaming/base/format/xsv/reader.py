"""XSVReader, CSVReader and TSVReader: the samples of one text shard on this machine."""

from typing import Any

from smalti.compat.streaming.base.format.base.reader import FileInfo, SplitReader

__all__ = ["CSVReader", "TSVReader", "XSVReader"]


class XSVReader(SplitReader):
    """The samples of an XSV shard, by number: lines of values with a separator between them.

    Args:
        dirname: as for `SplitReader`, like the arguments that are not named here.
        split: as for `SplitReader`.
        column_encodings: encoding of each column.
        column_names: name of each column.
        compression: as for `SplitReader`.
        hashes: as for `SplitReader`.
        newline: end of each line.
        raw_data: as for `SplitReader`.
        raw_meta: as for `SplitReader`.
        samples: as for `SplitReader`.
        separator: text between the values of a line.
        size_limit: as for `SplitReader`.
        zip_data: as for `SplitReader`.
        zip_meta: as for `SplitReader`.
    """

    _format = "xsv"

    def __init__(  # noqa: PLR0913, PLR0917 - MosaicML's signature
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        separator: str,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname, split, compression, hashes, raw_data, raw_meta, samples, size_limit, zip_data, zip_meta
        )
        self.column_encodings = column_encodings
        self.column_names = column_names
        self.newline = newline
        self.separator = separator

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample that this line is, column to value.

        Raises:
            ValueError: it is damaged.
        """
        columns = dict(zip(self.column_names, self.column_encodings, strict=True))
        return self._decode_line(data, columns, self.newline, self.separator)


class CSVReader(XSVReader):
    """The samples of a CSV shard, by number; the arguments are those of `XSVReader` without `separator`."""

    _format = "csv"
    separator = ","

    def __init__(  # noqa: PLR0913, PLR0917 - MosaicML's signature
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname, split, column_encodings, column_names, compression, hashes, newline, raw_data, raw_meta, samples,
            self.separator, size_limit, zip_data, zip_meta,
        )  # fmt: skip


class TSVReader(XSVReader):
    """The samples of a TSV shard, by number; the arguments are those of `XSVReader` without `separator`."""

    _format = "tsv"
    separator = "\t"

    def __init__(  # noqa: PLR0913, PLR0917 - MosaicML's signature
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname, split, column_encodings, column_names, compression, hashes, newline, raw_data, raw_meta, samples,
            self.separator, size_limit, zip_data, zip_meta,
        )  # fmt: skip
