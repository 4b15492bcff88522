"""What an encoding is: how one value becomes bytes and comes back. The encodings themselves are beside this."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Encoding(ABC):
    """How the values of one column are stored; stateless, so thread-safe.

    A law for every encoding: `decode(encode(value))` equals `value`, or `encode` raises. Nothing is rounded, wrapped,
    cut or guessed.
    """

    is_image: ClassVar[bool] = False
    """Batches carry such values as undecoded bytes: the consumer decides size and decoder."""

    def __init__(self, name: str, size: int | None = None) -> None:
        self.name = name
        """As it stands in index files."""
        self.size = size
        """Bytes of every value, or None where values differ in length."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """The stored bytes of `value`.

        Raises:
            SchemaError: `value` does not fit; the message names neither column nor content, the caller adds the place.
        """

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value whose stored bytes are `data`.

        Raises:
            ValueError: `data` is damaged (FormatError is a ValueError); the caller adds the place.
        """


def kind_of(value: Any) -> str:
    """The type of `value` for a message; never its content, which may be private."""
    return "a null" if value is None else type(value).__name__
