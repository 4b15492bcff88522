"""XSVWriter, CSVWriter and TSVWriter, the writers of lines of values with a separator between them."""

from typing import Any

from smalti.compat.streaming.base.format.base.writer import Out, SplitWriter, check_layout, encode_json, encode_table
from smalti.compat.streaming.base.format.xsv.encodings import is_xsv_encoding, xsv_encode
from smalti.compat.streaming.errors import BadColumn, BadLine

__all__ = ["XSVWriter", "CSVWriter", "TSVWriter"]


class XSVWriter(SplitWriter):
    r"""A writer of lines of values with any separator, below a line with the names of the columns.

    Args:
        columns: Name to type: str, int or float.
        separator: Text between the values.
        newline: End of each line.
        out: as for `Writer`, like the arguments that are not named here.
        keep_local: as for `Writer`.
        compression: as for `Writer`.
        hashes: as for `Writer`.
        size_limit: as for `Writer`; it counts the lines of samples.
        **kwargs: as for `Writer`.

    Raises:
        AssertionError: a type is unknown, or a name contains the separator or the end of a line; it is a ValueError
            too.
    """

    format = "xsv"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        separator: str,
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        for name, encoding in columns.items():
            if newline in name or separator in name:
                raise BadColumn(f"column {name!r:.80}: the name contains {separator!r} or {newline!r}; rename it.")
            if not is_xsv_encoding(encoding):
                raise BadColumn(f"column {name!r}: lines of text hold str, int and float, not {encoding!r:.80}.")
        check_layout(self.format, columns, newline, separator)
        super().__init__(
            out=out, keep_local=keep_local, compression=compression, hashes=hashes, size_limit=size_limit, **kwargs
        )
        self.columns = columns
        self.column_names: list[str] = sorted(columns)
        self.column_encodings: list[str] = [columns[name] for name in self.column_names]
        self.separator = separator
        self.newline = newline

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """Return the line of a sample; errors are those of `write`.

        Raises:
            AssertionError: a value contains the separator or the end of a line; it is a ValueError too.
        """
        values = []
        for name, encoding in zip(self.column_names, self.column_encodings, strict=True):
            value = xsv_encode(encoding, sample[name])
            if self.newline in value or self.separator in value:
                raise BadLine(
                    f"column {name!r}: a value contains {self.separator!r} or {self.newline!r}, and such lines have no "
                    "quotes; use another separator, or MDSWriter.",
                    column=name,
                )
            values.append(value)
        return (self.separator.join(values) + self.newline).encode("utf-8")

    def get_config(self) -> dict[str, Any]:
        """Return the description of the shards that stands in each of them and in the index, as JSON."""
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "separator": self.separator,
            "newline": self.newline,
        }

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the files of a shard of the samples in `new_samples`: lines of text, and their offsets."""
        header = (self.separator.join(self.column_names) + self.newline).encode("utf-8")
        table = encode_table(map(len, self.new_samples), encode_json(self.get_config()), len(header))
        return b"".join([header, *self.new_samples]), table


class _SeparatedWriter(XSVWriter):
    """A writer of a format that fixes the separator."""

    separator: str

    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            separator=self.separator,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the description of the shards that stands in each of them and in the index, as JSON."""
        config = super().get_config()
        del config["separator"]
        return config


class CSVWriter(_SeparatedWriter):
    """A writer of comma-separated values; arguments as for `XSVWriter`."""

    format = "csv"
    separator = ","


class TSVWriter(_SeparatedWriter):
    """A writer of tab-separated values; arguments as for `XSVWriter`."""

    format = "tsv"
    separator = "\t"
