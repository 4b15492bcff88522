"""The errors that users of Petastorm catch."""

from smalti.errors import SchemaError, SmaltiError, StoreNotFound


class NoDataAvailableError(SmaltiError):
    """There are no rows to read."""


class FilesNotAvailable(StoreNotFound, RuntimeError):  # noqa: N818 -- named like the errors of smalti.errors
    """Files of a converted DataFrame did not appear in time."""


class NoMatchingFields(SchemaError, RuntimeError):  # noqa: N818 -- named like the errors of smalti.errors
    """No column matches `schema_fields`."""
