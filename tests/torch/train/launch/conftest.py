"""The S3 server of the storage tests."""

from tests.storage.conftest import clean_environment, s3_bucket, s3_server

__all__ = ["clean_environment", "s3_bucket", "s3_server"]
