"""`Encoding`, the base class: how one value becomes bytes and comes back. The encodings themselves stand beside it."""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from smalti.errors import FormatError

Array = np.ndarray[Any, Any]
Bytes1d = np.ndarray[Any, "np.dtype[np.uint8]"]
Int64s = np.ndarray[Any, "np.dtype[np.int64]"]

_LONG_BYTES = 4096  # mean value size from which copying all bytes once more costs more than a view for each value


class Encoding(ABC):
    """Storage format of the values of one column; stateless, so thread-safe.

    A law for every encoding: `decode(encode(value))` equals `value`, or `encode` raises. Nothing is rounded, wrapped,
    truncated or guessed. Where MosaicML's writer accepts bytes that are stored already, `encode` accepts them if they
    can be checked, and they decode to the value that they represent.
    """

    is_image: ClassVar[bool] = False
    """True for encodings whose values batches carry as undecoded bytes: the consumer chooses size and decoder."""

    def __init__(self, name: str, size: int | None = None) -> None:
        self.name = name
        """Name in index files."""
        self.size = size
        """Bytes of every value, or None if values differ in length."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the stored bytes of `value`.

        Raises:
            SchemaError: `value` does not fit; the message contains neither column nor content, the caller adds the
                place.
        """

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Return the value whose stored bytes are `data`.

        Raises:
            ValueError: `data` is damaged (FormatError is a ValueError); the caller adds the place.
        """

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> Any:
        """Return the values whose stored bytes stand end to end in `data`.

        Args:
            data: The bytes of all values, uint8, shape (total,); owned by the values afterwards, which may be views of
                it.
            offsets: Where each value begins, and where the last one ends: int64, shape (n + 1,), rising from 0 to
                `total`.

        Returns:
            A list of n values; or an array of n values, for encodings whose values all have one type and shape.

        Raises:
            FormatError: A value is damaged; `row`, in [0, n), is the first such value.
        """
        values: list[Any] = []
        try:
            values.extend(map(self.decode, split(data, offsets)))
        except (ValueError, ArithmeticError, RecursionError) as error:
            # list.extend keeps what came before the error: the number of values is the place.
            raise FormatError(str(error), row=len(values)) from error
        return values


def split(data: Bytes1d, offsets: Int64s) -> list[bytes]:
    """Return the bytes of each value; arguments as in `Encoding.decode_many`."""
    count = len(offsets) - 1
    width = int(offsets[1]) if count else 0
    if 0 < width <= 1 << 16 and len(data) == count * width and (np.diff(offsets) == width).all():
        # All of one length: numpy splits them four times faster.
        values: list[bytes] = np.ascontiguousarray(data).view(f"V{width}").tolist()
        return values
    if len(data) > count * _LONG_BYTES:
        view = memoryview(data)
        return [bytes(view[begin:end]) for begin, end in pairwise(offsets.tolist())]
    whole = data.tobytes()
    return [whole[begin:end] for begin, end in pairwise(offsets.tolist())]


def kind_of(value: Any) -> str:
    """Return the type of `value` for a message; never its content, which may be private."""
    return "a null" if value is None else type(value).__name__
