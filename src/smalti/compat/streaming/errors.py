"""Errors that are also of the built-in class which MosaicML Streaming raises in their place, so that code catches both.

Most of Smalti's errors need no class here: `FormatError`, `SchemaError`, `CursorError`, `WorldMismatch` and
`CacheLimitError` are ValueErrors, `StoreNotFound` is a FileNotFoundError. Arguments are refused by plain ValueErrors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import InvalidOperation
from json import JSONDecodeError
from typing import Any

from smalti.errors import (
    CatalogError,
    ChecksumMismatch,
    FormatError,
    IndexFileError,
    SchemaError,
    ShardNotFound,
    SmaltiError,
    StoreAuthError,
    StoreError,
    StoreNotFound,
)
from smalti.format.sizes import VERSION


class MissingIndexError(StoreNotFound, RuntimeError):
    """No `index.json` where a stream's set should be.

    MosaicML raises RuntimeError for a set in a local folder, and FileNotFoundError for one in a remote store.
    """


class DamagedIndexError(IndexFileError, JSONDecodeError):
    """An index file that is empty or no JSON."""

    def __init__(self, message: str = "", /, **facts: Any) -> None:
        ValueError.__init__(self, message)  # JSONDecodeError's attributes, such as `pos`, are among the facts
        self._describe(message, facts)


class EmptyStreamError(IndexFileError, RuntimeError):
    """A stream without a sample."""


class MissingShardError(ShardNotFound, RuntimeError):
    """A shard that the index names and the remote does not have."""


class BadColumn(SchemaError, TypeError, AssertionError):  # noqa: N818 - named as those of `smalti.errors`
    """A column that cannot be written; MosaicML raises TypeError for MDS, AssertionError for the text formats."""


class BadParameters(BadColumn, KeyError, AttributeError):  # noqa: N818 - named as those of `smalti.errors`
    """Parameters for an encoding that does not exist (MosaicML: KeyError) or takes none (AttributeError)."""


class BadDecimal(FormatError, InvalidOperation):  # noqa: N818 - named as those of `smalti.errors`
    """Bytes that are not the digits of a decimal number."""


class BadLine(SchemaError, AssertionError):  # noqa: N818 - named as those of `smalti.errors`
    """A value that a line of text cannot hold: it contains the separator or the end of the line."""


class EntryError(ValueError, KeyError, AssertionError):
    """A shard's entry that cannot be read; MosaicML raises AssertionError for its version, KeyError for its format."""

    __str__ = Exception.__str__  # KeyError's shows the message in quotation marks


class BatchSizeError(TypeError, AssertionError):
    """A batch size that is no whole number; MosaicML raises AssertionError."""


class MergeError(CatalogError, RuntimeError):
    """Index files that cannot be merged."""


class GCSAuthError(StoreAuthError, ValueError):
    """Missing or refused credentials of Google."""


class ReadOnlyStoreError(StoreError, NotImplementedError):
    """An upload that this kind of store does not allow."""


_UNSAFE_REMEDY = "set ``allow_unsafe_types=True``"


@contextmanager
def mosaicmls_words(unsafe_remedy: str = _UNSAFE_REMEDY) -> Iterator[None]:
    """Let errors of the engine that MosaicML Streaming also raises begin with its words.

    Args:
        unsafe_remedy: how a set with an unsafe column can be read.
    """
    try:
        yield
    except (IndexFileError, SchemaError, ChecksumMismatch) as error:
        found = in_mosaicmls_words(error, unsafe_remedy)
        if found is error:
            raise
        raise found from error


def in_mosaicmls_words(error: SmaltiError, unsafe_remedy: str = _UNSAFE_REMEDY) -> SmaltiError:
    """Return an error of the same class, or one derived from it, with MosaicML's words before the engine's.

    The error itself where MosaicML raises none in its place.
    """
    facts, cause = error.facts, error.__cause__
    if isinstance(cause, JSONDecodeError):
        text = f"Index file at {facts.get('where')} is empty or corrupted. {error.message}"
        return DamagedIndexError(text, **(vars(cause) | facts))
    if isinstance(error, ShardNotFound):
        text = (
            f"{error.message}. Check if the shard file exists in your remote location or have you deleted the shard "
            "file from the local directory?"
        )
        return MissingShardError(text, **facts)
    if isinstance(error, ChecksumMismatch):
        text = f"Checksum failure: {error.message}"
    elif "format_version" in facts:
        found = facts["format_version"]
        text = f"Unsupported streaming data version: {found}. Expected version {VERSION}. {error.message}"
    elif "lacking_hash" in facts:
        text = (
            f"Hash algorithm `{facts['lacking_hash']}` chosen for data validation does not match with those provided "
            f"during dataset creation `{facts['hashes']}`. Provide one of those. {error.message}"
        )
    elif facts.get("is_unsafe"):
        text = (
            f"Column {facts['column']} contains an unsafe type: {facts['encoding']}. To proceed anyway, "
            f"{unsafe_remedy}."
        )
    else:
        return error
    return type(error)(text, **facts)


def check_type(value: object, expected: type | tuple[type, ...]) -> None:
    """Check that a value to encode is of a type, or of one of several.

    Raises:
        AttributeError: it is not; MosaicML raises this class.
    """
    if not isinstance(value, expected):
        raise AttributeError(  # noqa: TRY004 - MosaicML's class
            f"data should be of type {expected}, but instead, found as {type(value)}"
        )
