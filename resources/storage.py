"""Storage of each kind: local, S3, Google Cloud Storage, Azure, volumes of Unity Catalog.

All variables are optional: without them the service's own logins are used. A secret is a `dg.EnvVar`: Dagster resolves
it in the run, and neither shows nor stores its value.
"""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from smalti_dagster.resources import (
    AzureConnectionString,
    AzureDefaultCredential,
    AzureKey,
    AzureSasToken,
    AzureStorage,
    GcsStorage,
    LocalStorage,
    S3Storage,
    StorageResource,
    VolumesStorage,
)
from smalti_dagster.resources.environment import storage_at
from smalti_dagster.resources.storage import storage_class

Environment = Mapping[str, str]


def storage_of(root: str, stage: str, environ: Environment) -> StorageResource:
    """Return the storage for the address of a stage's data.

    Raises:
        ValueError: the address has no known scheme, or a variable that it needs is not set.
    """
    make = KINDS.get(storage_class(root))
    return make(root, stage, environ) if make is not None else storage_at(root, stage, environ)  # oci://, sftp://


def local(root: str, stage: str, _: Environment) -> StorageResource:
    """Return a folder on this machine, or one that all machines mount: /mnt/training."""
    return LocalStorage(root=root, stage=stage)


def s3(root: str, stage: str, environ: Environment) -> StorageResource:
    """Return S3, or with an endpoint MinIO, Ceph, R2 or another compatible service: s3://bucket/prefix."""
    return S3Storage(
        root=root,
        stage=stage,
        region_name=_value(environ, "AWS_REGION", "AWS_DEFAULT_REGION"),
        endpoint_url=_value(environ, "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        aws_access_key_id=_secret(environ, "AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=_secret(environ, "AWS_SECRET_ACCESS_KEY"),
        aws_session_token=_secret(environ, "AWS_SESSION_TOKEN"),
    )


def gcs(root: str, stage: str, environ: Environment) -> StorageResource:
    """Return Google Cloud Storage, by a service account's key file or an HMAC key: gs://bucket/prefix."""
    return GcsStorage(
        root=root,
        stage=stage,
        project=_value(environ, "GOOGLE_CLOUD_PROJECT"),
        token=_value(environ, "GOOGLE_APPLICATION_CREDENTIALS"),
        hmac_key=_value(environ, "GCS_KEY"),
        hmac_secret=_secret(environ, "GCS_SECRET"),
    )


def azure(root: str, stage: str, environ: Environment) -> StorageResource:
    """Return Azure Blob or Data Lake Storage: abfs://container/prefix.

    Raises:
        ValueError: neither the address nor a variable names the account.
    """
    if text := _secret(environ, "AZURE_STORAGE_CONNECTION_STRING"):
        return AzureStorage(root=root, stage=stage, credential=AzureConnectionString(connection_string=text))
    credential: AzureKey | AzureSasToken | AzureDefaultCredential = AzureDefaultCredential()
    if key := _secret(environ, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY"):
        credential = AzureKey(key=key)
    elif token := _secret(environ, "AZURE_STORAGE_SAS_TOKEN"):
        credential = AzureSasToken(token=token)
    account = _value(environ, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
    if account is None and "@" not in root and not root.startswith("azure://"):
        raise ValueError(f"{root} needs AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING")
    return AzureStorage(root=root, stage=stage, storage_account=account, credential=credential)


def volumes(root: str, stage: str, environ: Environment) -> StorageResource:
    """Return a Unity Catalog volume, by a token or a service principal: dbfs:/Volumes/catalog/schema/volume."""
    return VolumesStorage(
        root=root,
        stage=stage,
        host=_value(environ, "DATABRICKS_HOST"),
        token=_secret(environ, "DATABRICKS_TOKEN"),
        client_id=_value(environ, "DATABRICKS_CLIENT_ID"),
        client_secret=_secret(environ, "DATABRICKS_CLIENT_SECRET"),
    )


KINDS: Mapping[type[StorageResource], Callable[[str, str, Environment], StorageResource]] = {
    LocalStorage: local,
    S3Storage: s3,
    GcsStorage: gcs,
    AzureStorage: azure,
    VolumesStorage: volumes,
}
"""The functions above by the class that an address has."""


def _value(environ: Environment, *names: str) -> str | None:
    """Return the value of the first variable that is set; None if none is."""
    return next((environ[name] for name in names if environ.get(name)), None)


def _secret(environ: Environment, *names: str) -> Any:
    """Return a reference to the first variable that is set; None if none is."""
    return next((dg.EnvVar(name) for name in names if environ.get(name)), None)
