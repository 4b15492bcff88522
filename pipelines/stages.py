"""The stages: `SMALTI_STAGE` names one of the table below (default: local), and `SMALTI_ROOT` says where its data are.

The kind of storage follows from the scheme of `SMALTI_ROOT`: a path, s3://bucket/prefix, gs://bucket/prefix,
abfs://container/prefix, oci://bucket@namespace/prefix, dbfs:/Volumes/catalog/schema/volume. Its credentials are read
from the variables of docs/storage.md (`_FIELDS`), each of them optional; without them the service's own chain decides.
Secrets go on as references to their variables, so that Dagster neither shows nor stores them.

Everywhere: SMALTI_SPARK_MASTER, and SMALTI_RUNS, the address of training runs (default: `runs` below the root).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from resources.notifications import NotificationsResource
from resources.spark import SparkResource
from resources.storage import (
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
from resources.training import TrainerResource
from smalti.storage.schemes import secret_variables

REPOSITORY = Path(__file__).resolve().parents[1]

Environment = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Settings of a stage that are the same on every machine."""

    root: str | None
    """Address of its data if `SMALTI_ROOT` is not set; None: it must be set."""
    folder: str
    """Folder below the root, so that stages with the same root do not mix; "" is the root itself."""
    spark_master: str = "local[*]"
    """Default of `SMALTI_SPARK_MASTER`."""
    launcher: str = "inline"
    """Launcher of trainings, unless a declaration or a run names another one."""
    num_processes: int = 1
    """Training processes."""


STAGES: Mapping[str, Stage] = {
    "local": Stage(root=str(REPOSITORY / "data"), folder=""),
    "staging": Stage(root=None, folder="stage-staging"),
    "production": Stage(root=None, folder="stage-production"),
}

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


def detect_stage(environ: Environment | None = None) -> str:
    """Return the name of the stage that the environment chooses.

    Raises:
        ValueError: there is no such stage.
    """
    environ = os.environ if environ is None else environ
    name = environ.get("SMALTI_STAGE") or "local"
    if name not in STAGES:
        raise ValueError(f"SMALTI_STAGE must be one of {', '.join(STAGES)}, found {name!r}")
    return name


def detect_resources(environ: Environment | None = None) -> dict[str, Any]:
    """Return the resources of the stage that the environment chooses, under the names that assets ask for.

    Raises:
        ValueError: there is no such stage, a variable that it needs is not set, or the address has no known scheme.
    """
    environ = os.environ if environ is None else environ
    name = detect_stage(environ)
    stage = STAGES[name]
    storage = _storage(name, stage, environ)
    return {
        "storage": storage,
        # An sc:// address may hold a token.
        "spark": SparkResource(master=_reference(environ, "SMALTI_SPARK_MASTER") or stage.spark_master),
        "trainer": TrainerResource(
            run_root=_absolute(environ.get("SMALTI_RUNS", "")) or storage.url("runs"),
            launcher=stage.launcher,
            num_processes=stage.num_processes,
        ),
        "notifications": _notifications(environ),
    }


def has_channels(environ: Environment | None = None) -> bool:
    """Return whether the environment names a channel for notifications."""
    environ = os.environ if environ is None else environ
    return any(environ.get(f"SMALTI_NOTIFY_{name}") for name in ("WEBHOOK", "SLACK", "EMAIL"))


def _notifications(environ: Environment) -> NotificationsResource:
    """Return the channels of the deployment; the addresses of webhooks are secret.

    Raises:
        ValueError: the port is no number.
    """
    port = environ.get("SMALTI_SMTP_PORT") or "0"
    if not port.isdigit():
        raise ValueError(f"SMALTI_SMTP_PORT must be a number, found {port!r}")
    return NotificationsResource(
        webhook=_reference(environ, "SMALTI_NOTIFY_WEBHOOK") or "",
        slack=_reference(environ, "SMALTI_NOTIFY_SLACK") or "",
        email=environ.get("SMALTI_NOTIFY_EMAIL", ""),
        sender=environ.get("SMALTI_NOTIFY_FROM", ""),
        smtp_host=environ.get("SMALTI_SMTP_HOST", ""),
        smtp_port=int(port),
        smtp_security=environ.get("SMALTI_SMTP_SECURITY") or "starttls",  # type: ignore[arg-type]  # it is validated
        smtp_user=environ.get("SMALTI_SMTP_USER", ""),
        smtp_password=_reference(environ, "SMALTI_SMTP_PASSWORD") or "",
        ui_url=environ.get("SMALTI_UI_URL", ""),
    )


def _storage(name: str, stage: Stage, environ: Environment) -> StorageResource:
    root = environ.get("SMALTI_ROOT") or stage.root
    if not root:
        raise ValueError(
            f"stage {name!r} needs the environment variable SMALTI_ROOT, the address of its data: a path, "
            "s3://bucket/prefix, gs://, abfs://, oci:// or dbfs:/Volumes/...; see docs/dagster.md"
        )
    root = "/".join(part for part in (_absolute(root).rstrip("/"), stage.folder) if part)
    kind = storage_class(root)
    fields = {field: _first(environ, names) for field, names in _FIELDS.get(kind, {}).items()}
    if kind is AzureStorage:
        fields["credential"] = _azure_credential(environ)
        if isinstance(fields["credential"], AzureConnectionString):
            fields["storage_account"] = None
        elif not fields["storage_account"] and "@" not in root and not root.startswith("azure://"):
            raise ValueError(f"{root} needs AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING")
    return kind(root=root, stage=name, **{field: value for field, value in fields.items() if value is not None})


def _azure_credential(environ: Environment) -> Any:
    """Return the first of the credentials that docs/storage.md lists."""
    if text := _first(environ, ("AZURE_STORAGE_CONNECTION_STRING",)):
        return AzureConnectionString(connection_string=text)
    if key := _first(environ, ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY")):
        return AzureKey(key=key)
    if token := _first(environ, ("AZURE_STORAGE_SAS_TOKEN",)):
        return AzureSasToken(token=token)
    return AzureDefaultCredential()


def _absolute(address: str) -> str:
    """Return a path made absolute, because steps may run in another folder; other addresses as they are."""
    is_path = bool(address) and ":/" not in address
    return str(Path(address).expanduser().absolute()) if is_path else address


def _first(environ: Environment, names: tuple[str, ...]) -> Any:
    """Return the first variable that is set: a reference to a secret one, the value of any other; None if none is."""
    name = next((name for name in names if environ.get(name)), None)
    if name is None:
        return None
    return dg.EnvVar(name) if name in secret_variables() else environ[name]


def _reference(environ: Environment, name: str) -> Any:
    """Return a reference to a variable, which is resolved when a run needs it; None when it is not set."""
    return dg.EnvVar(name) if environ.get(name) else None
