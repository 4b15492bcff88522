"""Servers of the storage tests, for diagnoses of places."""

from tests.storage.conftest import certificate, clean_environment, guarded_bucket, guarded_server, s3_bucket, s3_server

__all__ = ["certificate", "clean_environment", "guarded_bucket", "guarded_server", "s3_bucket", "s3_server"]
