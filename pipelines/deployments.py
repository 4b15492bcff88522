"""The resources of each deployment: `SMALTI_DEPLOYMENT` names one of those below; `local` needs no credentials.

    name      SMALTI_ROOT                      further variables, all optional unless marked *
    local     a folder; `data` by default      none
    s3        s3://bucket/prefix *             S3_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
                                               AWS_SESSION_TOKEN; else AWS's own chain of credentials
    gcs       gs://bucket/prefix *             GOOGLE_CLOUD_PROJECT, GOOGLE_APPLICATION_CREDENTIALS; else Google's chain
    azure     abfs://container/prefix *        AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME * with
                                               AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; else Azure identity
    volumes   dbfs:/Volumes/cat/schema/vol *   DATABRICKS_HOST, DATABRICKS_TOKEN; else the SDK's chain

The names, and in which order they count, are those of docs/storage.md.

Everywhere: SMALTI_RUNS, the folder of training runs (`<root>/runs` or `data/runs`), and SMALTI_SPARK_MASTER. Secrets go
on as references to their variables, so that Dagster neither shows nor stores them.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from resources.backends import AzureBackend, GcsBackend, LocalBackend, S3Backend, VolumesBackend
from resources.spark import SparkResource
from resources.storage import StorageResource
from resources.training import TrainerResource
from smalti.storage.schemes import secret_variables

REPOSITORY = Path(__file__).resolve().parents[1]

Environment = Mapping[str, str]


def detect_resources(environ: Environment | None = None) -> dict[str, Any]:
    """The resources of the deployment that the environment names, under the names that assets ask for.

    Raises:
        ValueError: no such deployment, or a variable that it needs is not set.
    """
    environ = os.environ if environ is None else environ
    name = environ.get("SMALTI_DEPLOYMENT") or "local"
    if name not in _BACKENDS:
        raise ValueError(f"SMALTI_DEPLOYMENT must be one of {', '.join(_BACKENDS)}, found {name!r}")
    backend = _BACKENDS[name](environ)
    home = backend.root if isinstance(backend, LocalBackend) else str(REPOSITORY / "data")
    return {
        "storage": StorageResource(backend=backend),
        # An sc:// address may hold a token.
        "spark": SparkResource(master=_reference(environ, "SMALTI_SPARK_MASTER") or "local[*]"),
        "trainer": TrainerResource(run_root=environ.get("SMALTI_RUNS") or str(Path(home) / "runs")),
    }


def _local(environ: Environment) -> LocalBackend:
    return LocalBackend(root=str(Path(environ.get("SMALTI_ROOT") or REPOSITORY / "data").absolute()))


def _s3(environ: Environment) -> S3Backend:
    return S3Backend(
        root=_needed(environ, "SMALTI_ROOT"),
        endpoint_url=_variable(environ, "S3_ENDPOINT_URL"),
        region_name=_variable(environ, "AWS_REGION"),
        aws_access_key_id=_variable(environ, "AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=_variable(environ, "AWS_SECRET_ACCESS_KEY"),
        aws_session_token=_variable(environ, "AWS_SESSION_TOKEN"),
    )


def _gcs(environ: Environment) -> GcsBackend:
    return GcsBackend(
        root=_needed(environ, "SMALTI_ROOT"),
        project=_variable(environ, "GOOGLE_CLOUD_PROJECT"),
        token=_variable(environ, "GOOGLE_APPLICATION_CREDENTIALS"),
    )


def _azure(environ: Environment) -> AzureBackend:
    root = _needed(environ, "SMALTI_ROOT")
    if connection_string := _variable(environ, "AZURE_STORAGE_CONNECTION_STRING"):
        return AzureBackend(root=root, connection_string=connection_string)
    return AzureBackend(
        root=root,
        storage_account=_needed(environ, "AZURE_STORAGE_ACCOUNT_NAME"),
        account_key=_variable(environ, "AZURE_STORAGE_ACCOUNT_KEY"),
        sas_token=_variable(environ, "AZURE_STORAGE_SAS_TOKEN"),
    )


def _volumes(environ: Environment) -> VolumesBackend:
    return VolumesBackend(
        root=_needed(environ, "SMALTI_ROOT"),
        host=_variable(environ, "DATABRICKS_HOST"),
        token=_variable(environ, "DATABRICKS_TOKEN"),
    )


_BACKENDS: dict[str, Callable[[Environment], Any]] = {
    "local": _local,
    "s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
    "volumes": _volumes,
}


def _variable(environ: Environment, name: str) -> Any:
    """Return a reference to a secret variable, the value of any other; None when unset, for the service's own chain."""
    return _reference(environ, name) if name in secret_variables() else environ.get(name) or None


def _reference(environ: Environment, name: str) -> Any:
    """Return a reference to a variable, which is resolved when a run needs it; None when it is not set."""
    return dg.EnvVar(name) if environ.get(name) else None


def _needed(environ: Environment, name: str) -> str:
    if not (value := environ.get(name)):
        deployment = environ.get("SMALTI_DEPLOYMENT")
        raise ValueError(
            f"deployment {deployment!r} needs the environment variable {name}: see pipelines/deployments.py"
        )
    return value
