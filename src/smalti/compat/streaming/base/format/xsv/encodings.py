"""Types of the columns of CSV, TSV and XSV shards, and how their values are written as text."""

from abc import ABC, abstractmethod
from typing import Any

from smalti.compat.streaming.base.format.base.encoding import check_type

__all__ = ["is_xsv_encoding", "xsv_decode", "xsv_encode"]


class Encoding(ABC):
    """A type of values that lines of text hold."""

    @classmethod
    @abstractmethod
    def encode(cls, obj: Any) -> str:
        """Return the text of the value.

        Raises:
            AttributeError: it is of another type.
        """

    @classmethod
    @abstractmethod
    def decode(cls, obj: str) -> Any:
        """Return the value of the text.

        Raises:
            ValueError: the text does not hold a value of this type.
        """

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        check_type(data, expected_type)


class Str(Encoding):
    """Text as it is."""

    @classmethod
    def encode(cls, obj: Any) -> str:
        """Return the text; see `Encoding`."""
        cls._validate(obj, str)
        text: str = obj
        return text

    @classmethod
    def decode(cls, obj: str) -> Any:
        """Return the text."""
        return obj


class Int(Encoding):
    """Whole numbers as digits."""

    @classmethod
    def encode(cls, obj: Any) -> str:
        """Return the digits; see `Encoding`."""
        cls._validate(obj, int)
        return str(obj)

    @classmethod
    def decode(cls, obj: str) -> Any:
        """Return the number; see `Encoding`."""
        return int(obj)


class Float(Encoding):
    """Floating-point numbers as the shortest digits that give them back."""

    @classmethod
    def encode(cls, obj: Any) -> str:
        """Return the digits; see `Encoding`."""
        cls._validate(obj, float)
        return str(obj)

    @classmethod
    def decode(cls, obj: str) -> Any:
        """Return the number; see `Encoding`."""
        return float(obj)


_encodings: dict[str, type[Encoding]] = {"str": Str, "int": Int, "float": Float}


def is_xsv_encoding(encoding: str) -> bool:
    """Return whether there is a type of this name."""
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
