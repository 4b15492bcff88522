"""From a batch's gathered bytes to the values that a user sees; needs neither shard nor file."""

from collections.abc import Callable, Mapping
from typing import Any

from smalti.errors import FormatError
from smalti.format.encoding import Encoding
from smalti.format.plan import is_verbatim
from smalti.format.ragged import Ragged
from smalti.format.registry import parse_encoding
from smalti.format.schema import Schema

DECODER_ERRORS = (ValueError, ArithmeticError, RecursionError)
"""What decoders raise on damaged bytes."""


def decode_gathered(schema: Schema, gathered: Mapping[str, Any], *, allow_unsafe_types: bool = False) -> dict[str, Any]:
    """The batch that `Shard.batch` gives, from what `Shard.gather` gave, perhaps in another process; pure.

    Args:
        schema: The shard's.
        gathered: Column to values; those that are no `Ragged` are returned as they are.
        allow_unsafe_types: Whether columns that run code when read are wanted.

    Raises:
        FormatError: A value is damaged; `column` and `row`, its place in the batch, say which.
        SchemaError: A column whose encoding is refused.
    """
    encodings = schema.columns()  # looked up for bytes alone: numbers in text shards have encodings of their own
    found = dict(gathered)
    for name, values in gathered.items():
        if isinstance(values, Ragged):
            codec = parse_encoding(encodings[name], allow_unsafe_types=allow_unsafe_types)
            found[name] = values.tolist() if is_verbatim(codec) else decode_column(name, codec, values, _place)
    return found


def _place(row: int) -> str:
    return f"row {row} of the batch"


def decode_column(name: str, codec: Encoding, values: Ragged, where: Callable[[int], str]) -> Any:
    """The values of one column, decoded at once.

    Args:
        name: The column's.
        codec: Its encoding.
        values: Their bytes.
        where: Names a row of the batch, for the message.

    Raises:
        FormatError: A value is damaged; `column` and `row`, its place in the batch, say which.
    """
    try:
        return codec.decode_many(values.data, values.offsets)
    except DECODER_ERRORS as error:
        row, cause = _find(codec, values, error)
        raise damaged(name, codec, where(row), cause, row=row) from cause


def damaged(name: str, codec: Encoding, where: str, cause: Exception, **facts: Any) -> FormatError:
    """The error for a value that does not decode."""
    return FormatError(
        f"{where}, column {name!r}: not a value of {codec.name} ({cause}); the shard is damaged. Fetch it again, or "
        "run the writer again.",
        column=name,
        **facts,
    )


def _find(codec: Encoding, values: Ragged, error: Exception) -> tuple[int, Exception]:
    """The first value that does not decode by itself, and why."""
    if isinstance(error, FormatError) and "row" in error.facts:
        return int(error.row), error
    for row, value in enumerate(values.tolist()):
        try:
            codec.decode(value)
        except DECODER_ERRORS as cause:  # noqa: PERF203 - the rare way, after a failure
            return row, cause
    return 0, error
