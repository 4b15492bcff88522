"""JSON, CSV, TSV and XSV shards, of lines of text: their readers, their writers, and the types of their columns.

A line is a JSON object, or values with a separator between them.
"""

import json
from typing import Any, ClassVar

from typing_extensions import Unpack

from smalti.compat.streaming.base.format.base import SplitReader
from smalti.compat.streaming.base.format.base.writer import SplitWriter, WriterArguments, with_writer_arguments
from smalti.compat.streaming.errors import BadColumn, BadLine, check_type

__all__ = [
    "CSVReader",
    "CSVWriter",
    "JSONReader",
    "JSONWriter",
    "TSVReader",
    "TSVWriter",
    "XSVReader",
    "XSVWriter",
    "is_json_encoded",
    "is_json_encoding",
    "is_xsv_encoding",
    "xsv_decode",
    "xsv_encode",
]


class Encoding:
    """A type of values that lines of text hold: as JSON has them, or as Python's `str` writes them."""

    _type: ClassVar[Any]

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True if the value is of this type.

        Raises:
            AttributeError: it is not.
        """
        return cls._validate(obj, cls._type)

    @classmethod
    def encode(cls, obj: Any) -> str:
        """Return the text of the value.

        Raises:
            AttributeError: it is of another type.
        """
        cls._validate(obj, cls._type)
        return obj if isinstance(obj, str) else str(obj)

    @classmethod
    def decode(cls, obj: str) -> Any:
        """Return the value of the text.

        Raises:
            ValueError: the text does not hold a value of this type.
        """
        return cls._type(obj)

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> bool:
        check_type(data, expected_type)
        return True


class Str(Encoding):
    """Text as it is."""

    _type = str


class Int(Encoding):
    """Whole numbers as digits."""

    _type = int


class Float(Encoding):
    """Floating-point numbers as the shortest digits that give them back."""

    _type = float


_encodings: dict[str, type[Encoding]] = {"str": Str, "int": Int, "float": Float}
"""The types of lines with a separator, by name."""
_json_encodings = {**_encodings}
"""The types of JSON values: `_encodings` of MosaicML's other module. A type that is added to one is not in both."""


def is_json_encoded(encoding: str, value: Any) -> bool:
    """Return True if the value is of the type called `encoding`.

    Raises:
        AttributeError: it is not.
        KeyError: there is no such type.
    """
    return _json_encodings[encoding].is_encoded(value)


def is_json_encoding(encoding: str) -> bool:
    """Return whether there is a type of JSON values of this name."""
    return encoding in _json_encodings


def is_xsv_encoding(encoding: str) -> bool:
    """Return whether there is a type of lines with a separator of this name."""
    return encoding in _encodings


def xsv_encode(encoding: str, value: Any) -> str:
    """Return the text of a value of the type called `encoding`.

    Raises:
        AttributeError: it is of another type.
        KeyError: there is no such type.
    """
    return _encodings[encoding].encode(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """Return the value of a text of the type called `encoding`.

    Raises:
        ValueError: the text is not of the type.
        KeyError: there is no such type.
    """
    return _encodings[encoding].decode(value)


class JSONReader(SplitReader):
    """The samples of a JSON shard, by number.

    Args:
        dirname: as for `SplitReader`, like the arguments that are not named here.
        split: as for `SplitReader`.
        columns: name to encoding of each column.
        compression: as for `SplitReader`.
        hashes: as for `SplitReader`.
        newline: end of each line.
        raw_data: as for `SplitReader`.
        raw_meta: as for `SplitReader`.
        samples: as for `SplitReader`.
        size_limit: as for `SplitReader`.
        zip_data: as for `SplitReader`.
        zip_meta: as for `SplitReader`.
    """

    _format = "json"
    _fields = SplitReader._fields | {"columns", "newline"}
    columns: dict[str, str]
    newline: str

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample that this line is, column to value.

        Raises:
            ValueError: it is damaged.
        """
        return self._decode_line(data, self.columns, self.newline, None)


class JSONWriter(SplitWriter):
    r"""A writer of JSON shards.

    Args:
        columns: Name to type: str, int or float.
        newline: End of each line.
        **arguments: as for `Writer`; `size_limit` counts the lines.

    Raises:
        AssertionError: a type is unknown; it is a ValueError too.
    """

    format = "json"

    @with_writer_arguments
    def __init__(self, *, columns: dict[str, str], newline: str = "\n", **arguments: Unpack[WriterArguments]) -> None:
        for name, encoding in columns.items():
            if not is_json_encoding(encoding):
                raise BadColumn(f"column {name!r}: JSON shards hold str, int and float, not {encoding!r:.80}.")
        self._check_layout(columns, newline)
        super().__init__(**arguments)
        self.columns = columns
        self.newline = newline

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """Return the line of a sample; errors are those of `write`."""
        values = {name: sample[name] for name in self.columns}
        for name, encoding in self.columns.items():
            is_json_encoded(encoding, values[name])
        return (json.dumps(values, sort_keys=True) + self.newline).encode("utf-8")

    def get_config(self) -> dict[str, Any]:
        """Return the description of the shards that stands in each of them and in the index, as JSON."""
        return {**super().get_config(), "columns": self.columns, "newline": self.newline}

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the files of a shard of the samples in `new_samples`: lines of text, and their offsets."""
        table = self._encode_table(0)
        return b"".join(self.new_samples), table


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
    _fields = SplitReader._fields | {"column_encodings", "column_names", "newline", "separator"}
    column_encodings: list[str]
    column_names: list[str]
    newline: str
    separator: str

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
    _fields = XSVReader._fields - {"separator"}
    separator = ","


class TSVReader(XSVReader):
    """The samples of a TSV shard, by number; the arguments are those of `XSVReader` without `separator`."""

    _format = "tsv"
    _fields = XSVReader._fields - {"separator"}
    separator = "\t"


class XSVWriter(SplitWriter):
    r"""A writer of lines of values with any separator, below a line with the names of the columns.

    Args:
        columns: Name to type: str, int or float.
        separator: Text between the values.
        newline: End of each line.
        **arguments: as for `Writer`; `size_limit` counts the lines of samples.

    Raises:
        AssertionError: a type is unknown, or a name contains the separator or the end of a line; it is a ValueError
            too.
    """

    format = "xsv"

    @with_writer_arguments
    def __init__(
        self,
        *,
        columns: dict[str, str],
        separator: str,
        newline: str = "\n",
        **arguments: Unpack[WriterArguments],
    ) -> None:
        for name, encoding in columns.items():
            if newline in name or separator in name:
                raise BadColumn(f"column {name!r:.80}: the name contains {separator!r} or {newline!r}; rename it.")
            if not is_xsv_encoding(encoding):
                raise BadColumn(f"column {name!r}: lines of text hold str, int and float, not {encoding!r:.80}.")
        self._check_layout(columns, newline, separator)
        super().__init__(**arguments)
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
        table = self._encode_table(len(header))
        return b"".join([header, *self.new_samples]), table


class _SeparatedWriter(XSVWriter):
    """A writer of a format that fixes the separator."""

    separator: str

    @with_writer_arguments
    def __init__(self, *, columns: dict[str, str], newline: str = "\n", **arguments: Unpack[WriterArguments]) -> None:
        super().__init__(columns=columns, separator=self.separator, newline=newline, **arguments)

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
