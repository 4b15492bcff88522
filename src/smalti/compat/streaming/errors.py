"""Errors that are also of the built-in class which MosaicML Streaming raises in their place, so that code catches both.

Most of Smalti's errors need no class here: `FormatError`, `SchemaError`, `CursorError`, `WorldMismatch` and
`CacheLimitError` are ValueErrors, `StoreNotFound` is a FileNotFoundError. Arguments are refused by plain ValueErrors.
"""

from decimal import InvalidOperation

from smalti.errors import (
    CatalogError,
    FormatError,
    IndexFileError,
    SchemaError,
    ShardNotFound,
    StoreAuthError,
    StoreError,
    StoreNotFound,
)


class MissingIndexError(StoreNotFound, RuntimeError):
    """No `index.json` where a stream's set should be.

    MosaicML raises RuntimeError for a set in a local folder, and FileNotFoundError for one in a remote store.
    """


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


class MergeError(CatalogError, RuntimeError):
    """Index files that cannot be merged."""


class GCSAuthError(StoreAuthError, ValueError):
    """Missing or refused credentials of Google."""


class ReadOnlyStoreError(StoreError, NotImplementedError):
    """An upload that this kind of store does not allow."""


class UnexpectedFilesError(ValueError, AssertionError):
    """Files of a data set that a conversion script does not expect; MosaicML raises AssertionError."""
