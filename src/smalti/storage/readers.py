"""Which reader a store has."""

from collections.abc import Mapping
from typing import Any

from smalti.storage.backends.s3_reader import S3Reader, can_read
from smalti.storage.process import PerProcess
from smalti.storage.reader import FsspecReader, Reader


def make_reader(scheme: str, options: Mapping[str, Any], connection: PerProcess[Any], timeout: float) -> Reader:
    """The fastest reader for these options; nothing is connected before its first use."""
    if scheme in {"s3", "oci"} and can_read(options):
        return S3Reader(options, timeout)
    return FsspecReader(connection)
