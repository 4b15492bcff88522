"""The version and the hard limits of the format, and byte counts as users write them (`"64mb"`)."""

import re

from smalti.attributes import whole_number
from smalti.errors import SchemaError

VERSION = 2
"""Version of MDS, in every index file and shard."""
MAX_FILE_BYTES = (1 << 32) - 1
"""Largest shard file in bytes: sample offsets are uint32."""

_UNITS = {"": 1, "b": 1} | {f"{prefix}b": 1024 ** (n + 1) for n, prefix in enumerate("kmgtpezy")}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtpezy]?b)?\s*", re.ASCII | re.IGNORECASE)


def parse_byte_count(value: int | str, *, what: str) -> int:
    """Return the bytes meant by `value`: an integer, or text such as `"100kb"` (units of 1024).

    Args:
        value: A whole number of bytes, at least 0, or text with an optional unit b, kb, mb, ... yb in any case.
        what: The name of the setting, for the message.

    Raises:
        SchemaError: The text is no byte count, or the number is negative or not whole.
    """
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise SchemaError(f'{what}: {value!r} is not a byte count; write for example 67108864 or "64mb".')
        digits, unit = match.groups()
        factor = _UNITS[(unit or "").lower()]
        return int(digits) * factor if digits.isdigit() else int(float(digits) * factor)
    try:
        return whole_number(what, value, 0)
    except ValueError as error:
        raise SchemaError(f"{what}: expected a whole number of bytes, at least 0, found {value!r}.") from error


def parse_size_limit(value: int | str | None) -> int | None:
    """Return the largest shard in bytes that `value` allows; None (also for 0) means one shard of any size.

    Raises:
        SchemaError: Not a byte count, or 4 GiB and more, which uint32 offsets cannot address.
    """
    if value is None:
        return None
    count = parse_byte_count(value, what="`size_limit`")
    if count > MAX_FILE_BYTES:
        raise SchemaError(
            f"`size_limit`: {count} bytes is too large, a shard is at most {MAX_FILE_BYTES} bytes because its "
            "offsets are 32 bit; ask for less."
        )
    return count or None


def check_stored(data: bytes, size: int | None) -> bytes:
    """Return `data` if it can be a stored value of a column of this `size`, None if values differ in length.

    Raises:
        SchemaError: It has another size, which only an encoding registered by the user can cause, or it is too large.
    """
    if size is not None and len(data) != size:
        raise SchemaError(f"the encoding declares {size} bytes for every value, but returned {len(data)}; correct it.")
    if len(data) > MAX_FILE_BYTES:
        raise SchemaError("a value of 4 GiB and more does not fit a shard.")
    return data
