"""Storage resources with the credentials that the environment has: the variables of docs/storage.md, all optional.

Secrets are passed on as references to their variables, so that Dagster neither shows nor stores them.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from smalti.storage.schemes import secret_variables
from smalti_dagster.resources.storage import (
    AzureConnectionString,
    AzureDefaultCredential,
    AzureKey,
    AzureSasToken,
    AzureStorage,
    GcsStorage,
    OciStorage,
    S3Storage,
    StorageResource,
    VolumesStorage,
    storage_class,
)

Environment = Mapping[str, str]

# Fields of each storage resource, and the variables that they are read from: the first that is set.
_FIELDS: Mapping[type[StorageResource], Mapping[str, tuple[str, ...]]] = {
    S3Storage: {
        "endpoint_url": ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
        "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "aws_session_token": ("AWS_SESSION_TOKEN",),
    },
    OciStorage: {
        "region_name": ("OCI_REGION", "OCI_CLI_REGION"),
        "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
        "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    },
    GcsStorage: {
        "project": ("GOOGLE_CLOUD_PROJECT",),
        "token": ("GOOGLE_APPLICATION_CREDENTIALS",),
        "hmac_key": ("GCS_KEY",),
        "hmac_secret": ("GCS_SECRET",),
    },
    AzureStorage: {"storage_account": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")},
    VolumesStorage: {
        "host": ("DATABRICKS_HOST",),
        "token": ("DATABRICKS_TOKEN",),
        "client_id": ("DATABRICKS_CLIENT_ID",),
        "client_secret": ("DATABRICKS_CLIENT_SECRET",),
    },
}

_OF_THIS_MACHINE = frozenset({
    "DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_ID", "DATABRICKS_CLIENT_SECRET",
    "GOOGLE_APPLICATION_CREDENTIALS",
})  # fmt: skip

_AZURE_CREDENTIALS = (
    ("AZURE_STORAGE_CONNECTION_STRING",),
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY"),
    ("AZURE_STORAGE_SAS_TOKEN",),
)
_AZURE_IDENTITY = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")


def storage_at(
    root: str, stage: str, environ: Environment | None = None, *, refer: Callable[[str], Any] = dg.EnvVar
) -> StorageResource:
    """Return the storage resource for an address; its class follows from the scheme.

    Args:
        root: the address.
        stage: recorded in the tags of runs.
        environ: variables; those of this process by default.
        refer: what a field gets for the name of a secret variable; in a process without Dagster, its value.

    Raises:
        ValueError: the address has no known scheme, or does not say all that is needed.
    """
    environ = os.environ if environ is None else environ
    kind = storage_class(root)
    fields = {field: _first(environ, names, refer) for field, names in _FIELDS.get(kind, {}).items()}
    if kind is AzureStorage:
        fields["credential"] = _azure_credential(environ, refer)
        if isinstance(fields["credential"], AzureConnectionString):
            fields["storage_account"] = None
        elif not fields["storage_account"] and "@" not in root and not root.startswith("azure://"):
            raise ValueError(f"{root} needs AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING")
    return kind(root=root, stage=stage, **{field: value for field, value in fields.items() if value is not None})


def storage_variables(root: str, environ: Environment) -> dict[str, str]:
    """Return the variables by which the storage at an address is reached, of those that are set.

    Those that mean nothing on another machine are not among them: logins of Databricks, and paths of key files.
    """
    kind = storage_class(root)
    names = {name for each in _FIELDS.get(kind, {}).values() for name in each if name not in _OF_THIS_MACHINE}
    if kind is AzureStorage:
        names |= {name for each in _AZURE_CREDENTIALS for name in each} | {*_AZURE_IDENTITY}
    return {name: environ[name] for name in sorted(names) if environ.get(name)}


def differing_fields(here: StorageResource, there: StorageResource) -> list[str]:
    """Return the fields in which two storages differ that do not only hold credentials."""
    if type(here) is not type(there):
        return ["class"]
    hidden = {
        field
        for field, names in _FIELDS.get(type(here), {}).items()
        if {*names} & ({*_OF_THIS_MACHINE} | secret_variables())
    } | {"credential", "storage_account", "gcp_credentials"}
    fields = type(here).model_fields.keys() - hidden
    return sorted(field for field in fields if getattr(here, field) != getattr(there, field))


def _azure_credential(environ: Environment, refer: Callable[[str], Any]) -> Any:
    """Return the first of the credentials that docs/storage.md lists."""
    if text := _first(environ, _AZURE_CREDENTIALS[0], refer):
        return AzureConnectionString(connection_string=text)
    if key := _first(environ, _AZURE_CREDENTIALS[1], refer):
        return AzureKey(key=key)
    if token := _first(environ, _AZURE_CREDENTIALS[2], refer):
        return AzureSasToken(token=token)
    return AzureDefaultCredential()


def _first(environ: Environment, names: tuple[str, ...], refer: Callable[[str], Any]) -> Any:
    """Return the first variable that is set: a reference to a secret one, the value of any other; None if none is."""
    name = next((name for name in names if environ.get(name)), None)
    if name is None:
        return None
    return refer(name) if name in secret_variables() else environ[name]
