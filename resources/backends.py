"""Where things may be kept: one configuration class per storage service, saying what fsspec needs to know.

Credentials are given as `dg.EnvVar` (see `pipelines.deployments`) or left out, and then the service's own chain of
credentials decides. What is done with the storage does not belong here.
"""

from typing import Any, Literal

import dagster as dg
from pydantic import Field


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, "")}


class LocalBackend(dg.Config):
    """A folder on this machine, or one that every machine mounts."""

    kind: Literal["local"] = "local"
    root: str = Field(description="Folder that holds everything: images, tables, shard sets.")

    def options(self) -> dict[str, Any]:
        """What fsspec needs beside the URL: nothing."""
        return {}


class S3Backend(dg.Config):
    """S3, or with `endpoint_url` a service that speaks its protocol (R2, CoreWeave, B2, MinIO, OCI)."""

    kind: Literal["s3"] = "s3"
    root: str = Field(description="s3://bucket/prefix")
    endpoint_url: str | None = Field(default=None, description="URL of a compatible service; AWS when empty.")
    region_name: str | None = None
    aws_access_key_id: str | None = Field(default=None, description="AWS's own chain when empty.")
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None
    anonymous: bool = Field(default=False, description="Unsigned requests, for public buckets.")

    def options(self) -> dict[str, Any]:
        """Keyword arguments of s3fs."""
        client = _given(region_name=self.region_name)
        keys = _given(
            key=self.aws_access_key_id,
            secret=self.aws_secret_access_key,
            token=self.aws_session_token,
            endpoint_url=self.endpoint_url,
            client_kwargs=client or None,
        )
        return {**keys, "anon": True} if self.anonymous else keys


class GcsBackend(dg.Config):
    """Google Cloud Storage."""

    kind: Literal["gcs"] = "gcs"
    root: str = Field(description="gs://bucket/prefix")
    project: str | None = None
    token: str | None = Field(
        default=None, description="Path of a service account's key file; default credentials when empty."
    )

    def options(self) -> dict[str, Any]:
        """Keyword arguments of gcsfs."""
        return _given(project=self.project, token=self.token)


class AzureBackend(dg.Config):
    """Azure Blob Storage or Data Lake Storage, generation 2."""

    kind: Literal["azure"] = "azure"
    root: str = Field(description="abfs://container/prefix")
    storage_account: str | None = Field(default=None, description="Needed unless there is a connection string.")
    account_key: str | None = Field(default=None, description="Azure identity when all three are empty.")
    sas_token: str | None = None
    connection_string: str | None = None

    def options(self) -> dict[str, Any]:
        """Keyword arguments of adlfs."""
        secrets = _given(
            account_key=self.account_key, sas_token=self.sas_token, connection_string=self.connection_string
        )
        return _given(account_name=self.storage_account) | (secrets or {"anon": False})


class VolumesBackend(dg.Config):
    """A Unity Catalog volume on Databricks."""

    kind: Literal["volumes"] = "volumes"
    root: str = Field(description="dbfs:/Volumes/catalog/schema/volume/prefix")
    host: str | None = Field(default=None, description="Workspace URL; the SDK's own chain when empty.")
    token: str | None = None

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the Databricks workspace client."""
        return _given(host=self.host, token=self.token)
