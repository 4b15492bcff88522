"""Types of the columns of JSON shards."""

from abc import ABC, abstractmethod
from typing import Any

from smalti.compat.streaming.base.format.base.encoding import check_type

__all__ = ["is_json_encoded", "is_json_encoding"]


class Encoding(ABC):
    """A type of JSON values."""

    @classmethod
    @abstractmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True if the value is of this type.

        Raises:
            AttributeError: it is not.
        """

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> bool:
        check_type(data, expected_type)
        return True


class Str(Encoding):
    """Text."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True if it is text; see `Encoding`."""
        return cls._validate(obj, str)


class Int(Encoding):
    """Whole numbers."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True if it is a whole number; see `Encoding`."""
        return cls._validate(obj, int)


class Float(Encoding):
    """Floating-point numbers."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Return True if it is a float; see `Encoding`."""
        return cls._validate(obj, float)


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
