"""JSON shards: a JSON object on each line. Their reader, their writer, and the types of their columns."""

import json
from typing import Any, ClassVar

from typing_extensions import Unpack

from smalti.compat.paths import serve
from smalti.compat.streaming.base.format.base.reader import SplitReader
from smalti.compat.streaming.base.format.base.writer import SplitWriter, WriterArguments, with_writer_arguments
from smalti.compat.streaming.errors import BadColumn, check_type

__all__ = ["JSONReader", "JSONWriter", "is_json_encoded", "is_json_encoding"]


class Encoding:
    """A type of JSON values."""

    _type: ClassVar[type]

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True if the value is of this type.

        Raises:
            AttributeError: it is not.
        """
        return cls._validate(obj, cls._type)

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> bool:
        check_type(data, expected_type)
        return True


class Str(Encoding):
    """Text."""

    _type = str


class Int(Encoding):
    """Whole numbers."""

    _type = int


class Float(Encoding):
    """Floating-point numbers."""

    _type = float


_encodings: dict[str, type[Encoding]] = {"str": Str, "int": Int, "float": Float}


def is_json_encoded(encoding: str, value: Any) -> bool:
    """Return True if the value is of the type called `encoding`.

    Raises:
        AttributeError: it is not.
        KeyError: there is no such type.
    """
    return _encodings[encoding].is_encoded(value)


def is_json_encoding(encoding: str) -> bool:
    """Return whether there is a type of this name."""
    return encoding in _encodings


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
    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        **arguments: Unpack[WriterArguments],
    ) -> None:
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


serve(__name__, "encodings", "reader", "writer")
