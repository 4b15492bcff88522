"""What an encoding is: how one value becomes bytes and comes back. The encodings themselves are beside this."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from smalti.errors import FormatError

Array = np.ndarray[Any, Any]
Bytes1d = np.ndarray[Any, "np.dtype[np.uint8]"]
Int64s = np.ndarray[Any, "np.dtype[np.int64]"]

_LONG_BYTES = 4096  # from here on, copying everything once more costs more than a view for each value


class Encoding(ABC):
    """How the values of one column are stored; stateless, so thread-safe.

    A law for every encoding: `decode(encode(value))` equals `value`, or `encode` raises. Nothing is rounded, wrapped,
    cut or guessed. Where MosaicML's writer takes bytes that are stored already, `encode` takes them if they can be
    checked, and then they come back as the value that they stand for.
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

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> Any:
        """The values whose stored bytes stand one behind the other in `data`.

        Args:
            data: The bytes of all values, uint8, shape (total,); it belongs to the values afterwards, which may be
                views of it.
            offsets: Where each value begins, and the last one ends: int64, shape (n + 1,), rising from 0 to `total`.

        Returns:
            A list of n values; or an array of n values, for encodings whose values all have one type and shape.

        Raises:
            FormatError: A value is damaged; `row`, the first such place in [0, n), says which.
        """
        return decode_each(self.decode, split(data, offsets))


def split(data: Bytes1d, offsets: Int64s) -> list[bytes]:
    """The bytes of each value; arguments as in `Encoding.decode_many`."""
    count = len(offsets) - 1
    width = int(offsets[1]) if count else 0
    if 0 < width <= 1 << 16 and len(data) == count * width and (np.diff(offsets) == width).all():
        # All equally long: numpy cuts them four times faster.
        values: list[bytes] = np.ascontiguousarray(data).view(f"V{width}").tolist()
        return values
    if len(data) > count * _LONG_BYTES:
        view = memoryview(data)
        return [bytes(view[begin:end]) for begin, end in pairwise(offsets.tolist())]
    whole = data.tobytes()
    return [whole[begin:end] for begin, end in pairwise(offsets.tolist())]


def decode_each(decode: Callable[[Any], Any], stored: Iterable[Any]) -> list[Any]:
    """`decode` of each stored value.

    Raises:
        FormatError: It raised what a damaged value makes it raise; `row` says at which value.
    """
    values: list[Any] = []
    try:
        values.extend(map(decode, stored))
    except (ValueError, ArithmeticError, RecursionError) as error:
        # list.extend keeps what came before the error: the number of values is the place.
        raise damaged(len(values), error) from error
    return values


def damaged(row: int, reason: object) -> FormatError:
    """The error for the value at place `row` of a batch; the caller adds column and shard."""
    return FormatError(str(reason), row=row)


def kind_of(value: Any) -> str:
    """The type of `value` for a message; never its content, which may be private."""
    return "a null" if value is None else type(value).__name__
