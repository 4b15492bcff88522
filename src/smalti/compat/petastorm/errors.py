"""Errors that Petastorm's users catch by these names."""

from smalti.errors import SmaltiError, StoreNotFound


class NoDataAvailableError(SmaltiError):
    """There is not one row to read."""


class FilesNotAvailable(StoreNotFound, RuntimeError):  # noqa: N818 -- named for what happened, as smalti.errors is
    """Files of a converted DataFrame did not appear in time."""
