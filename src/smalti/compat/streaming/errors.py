"""Errors that are also of the built-in class which MosaicML Streaming raises in their place, so that code catches both.

Most of Smalti's errors need no class here: `FormatError`, `SchemaError`, `CursorError`, `WorldMismatch` and
`CacheLimitError` are ValueErrors, `StoreNotFound` is a FileNotFoundError. Arguments are refused by plain ValueErrors.
"""

from smalti.errors import (
    CatalogError,
    IndexFileError,
    SchemaError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
)


class MissingIndexError(StoreNotFound, RuntimeError):
    """No `index.json` where a stream's set should be: a RuntimeError there if it is local, else FileNotFoundError."""


class EmptyStreamError(IndexFileError, RuntimeError):
    """A stream without a sample."""


class MissingShardError(ShardNotFound, RuntimeError):
    """A shard that the index names and the remote does not have."""


class BadColumn(SchemaError, TypeError, AssertionError):  # noqa: N818 - named as those of `smalti.errors`
    """A column that cannot be written: a TypeError there for MDS, an AssertionError for the text formats."""


class BadLine(SchemaError, AssertionError):  # noqa: N818 - named as those of `smalti.errors`
    """A value that a line of text cannot hold: it contains the separator or the end of the line."""


class EntryError(ValueError, KeyError, AssertionError):
    """A shard's entry in an index: an AssertionError there if its version is another, a KeyError if its format is."""

    __str__ = Exception.__str__  # KeyError's shows the message in quotation marks


class BatchSizeError(TypeError, AssertionError):
    """A batch size that is no whole number: an AssertionError there."""


class MergeError(CatalogError, RuntimeError):
    """Index files that cannot be merged."""


class GCSAuthError(StoreAuthError, ValueError):
    """Missing or refused credentials of Google."""


class ReadOnlyStoreError(StoreError, NotImplementedError):
    """An upload that this kind of store does not allow."""


class UnexpectedFilesError(ValueError, AssertionError):
    """Files of a data set that a conversion script does not expect: an AssertionError there."""
