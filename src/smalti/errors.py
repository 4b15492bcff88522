"""The errors that Smalti raises, in one tree, and the categories of its warnings; nothing else belongs here.

Every message names the object, the expected and the found value, and the remedy; the values are attributes too. A
traceback shows the address of the section about the class below the message, as a note (Python 3.11 and newer).

    SmaltiError
    ├── ArgumentError (ValueError)        an argument that is missing, or has a value that cannot be used
    │   └── ArgumentTypeError (TypeError) an argument of another type than expected
    ├── SampleIndexError (IndexError)     the number of a sample that a set does not have
    ├── ClosedError (ValueError)          an object that was used after it was closed or finished
    ├── FormatError (ValueError)          bytes that do not conform to the format
    │   ├── IndexFileError                an index file or manifest that cannot be trusted
    │   ├── ChecksumMismatch              bytes that differ from their declared hash or size
    │   └── BadImageError                 bytes that are not a usable image; where a sample is decoded, an OSError too
    ├── SchemaError (ValueError)          a value or column that does not fit its declaration
    ├── StoreError (OSError)              an operation of a store failed
    │   ├── StoreNotFound (FileNotFoundError)   no such key
    │   │   └── ShardNotFound             a shard that a version names is gone
    │   ├── StoreExists (FileExistsError) an exclusive put found an existing object
    │   ├── StoreConflict               a conditional put found another object than the one to replace
    │   ├── StoreAuthError (PermissionError)    no credentials, or refused ones
    │   └── StoreTimeout (TimeoutError)   no progress before the deadline
    ├── CatalogError                      versions of a shard set
    │   ├── DatasetExists (FileExistsError)     the place already holds a data set
    │   ├── VersionNotFound (LookupError) no such version
    │   ├── CommitConflict                another writer published first
    │   └── CommitUnknown                 it is unknown whether a publish took effect
    ├── CursorError (ValueError)          a saved position that does not fit this data set or run
    ├── WorldMismatch (ValueError)        ranks, hosts or sizes that contradict each other
    ├── CheckpointError (OSError)         no checkpoint that verifies
    ├── TrainingError (RuntimeError)      a training process failed
    ├── CacheLimitError (ValueError)      a `cache_limit` smaller than the largest shard
    ├── SkipLimitExceeded (ValueError)    more samples cannot be read than may be skipped
    └── MissingDependency (ImportError)   an extra or a program that is not installed

    UserWarning
    ├── MixedSplitsWarning                a set with splits is read without choosing one
    ├── SourceWarning                     files of a source are left out, or its folders are ambiguous
    ├── SharedDatasetWarning              two loaders read one dataset at the same time
    └── DeletedSamplesWarning             a set is replaced, from which samples had been deleted
"""

from typing import Any

from smalti.redaction import HELP_PAGE, redact_message


class SmaltiError(Exception):
    """Base of all errors that Smalti raises; keyword facts become attributes. Secrets in addresses are masked.

    Examples:
        >>> try:
        ...     smalti.open_dataset("s3://bucket/users", version=7)
        ... except SmaltiError as error:
        ...     print(type(error).__name__, error.version)
        VersionNotFound 7
    """

    def __init__(self, message: str = "", /, **facts: Any) -> None:
        super().__init__(message)
        self._describe(message, facts)

    def _describe(self, message: str, facts: dict[str, Any]) -> None:
        self.message = redact_message(message)
        self.facts: dict[str, Any] = {
            name: redact_message(fact) if isinstance(fact, str) else fact for name, fact in facts.items()
        }
        self.args = (self.message,)
        # Not add_note, which Python 3.10 lacks: there, too, pytest and some other programs show notes.
        self.__notes__ = [f"Help: {self.help_url}"]

    @property
    def help_url(self) -> str:
        """The address of the section about this class, or about its base class in this module."""
        documented = next(each for each in type(self).__mro__ if each.__module__ == __name__)
        return f"{HELP_PAGE}#{documented.__name__.lower()}"

    def __str__(self) -> str:
        return self.message

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes send errors to the main process by pickle; the default would lose the facts.
        return _rebuild, (type(self), self.message, self.facts), {"__notes__": list(self.__notes__)}


def _rebuild(kind: type[SmaltiError], message: str, facts: dict[str, Any]) -> SmaltiError:
    return kind(message, **facts)


class ArgumentError(SmaltiError, ValueError):
    """An argument that is missing, or has a value that cannot be used; nothing was read or written."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of another type than expected."""


class SampleIndexError(SmaltiError, IndexError):
    """The number of a sample that the set does not have."""


class ClosedError(SmaltiError, ValueError):
    """An object that was used after it was closed, finished or aborted."""


class FormatError(SmaltiError, ValueError):
    """Bytes that do not conform to the MDS format."""


class IndexFileError(FormatError):
    """An index file or manifest that cannot be trusted."""


class ChecksumMismatch(FormatError):
    """Bytes that differ from their declared hash or size."""


class BadImageError(FormatError):
    """Bytes that are not a usable image."""


class SchemaError(SmaltiError, ValueError):
    """A value or a column that does not fit its declaration."""


class StoreError(SmaltiError, OSError):
    """A failed operation of a store."""


class StoreNotFound(StoreError, FileNotFoundError):
    """No such key in the store."""


class ShardNotFound(StoreNotFound):
    """A shard that a version names is gone."""


class StoreExists(StoreError, FileExistsError):
    """An exclusive put found an existing object."""


class StoreConflict(StoreError):
    """A conditional put found another object than the one to replace, or none."""


class StoreAuthError(StoreError, PermissionError):
    """No credentials, or credentials that were refused."""


class StoreTimeout(StoreError, TimeoutError):
    """No progress before the deadline."""


class CatalogError(SmaltiError):
    """An error about the versions of a shard set."""


class DatasetExists(CatalogError, FileExistsError):
    """The place already holds a data set."""


class VersionNotFound(CatalogError, LookupError):
    """No such version of the shard set."""


class CommitConflict(CatalogError):
    """Another writer published this version first; nothing of this writer is visible."""


class CommitUnknown(CatalogError):
    """It is unknown whether a publish took effect; nothing was removed."""


class CursorError(SmaltiError, ValueError):
    """A saved position that does not fit this data set or run."""


class WorldMismatch(SmaltiError, ValueError):
    """Ranks, hosts or sizes that contradict each other."""


class CheckpointError(SmaltiError, OSError):
    """No checkpoint that verifies."""


class TrainingError(SmaltiError, RuntimeError):
    """A training process failed."""


class MissingDependency(SmaltiError, ImportError):
    """A Python extra or a program that this needs is not installed."""


class CacheLimitError(SmaltiError, ValueError):
    """A cache limit smaller than the largest shard needs."""


class SkipLimitExceeded(SmaltiError, ValueError):
    """More samples cannot be decoded or transformed than `max_skipped` allows to skip."""


class MixedSplitsWarning(UserWarning):
    """A set with splits is read without choosing one, so that training may include validation samples."""


class SourceWarning(UserWarning):
    """Files of a source are left out, or its folders may mean something else than is assumed."""


class SharedDatasetWarning(UserWarning):
    """Two loaders read one dataset at the same time, so that each reads every other epoch."""


class DeletedSamplesWarning(UserWarning):
    """The content of a set is replaced, without comparison with the samples that were deleted from the set."""
