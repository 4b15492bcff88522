"""The resources that follow from the environment, where a project defines none.

`SMALTI_STAGE` names a stage of the table below (default: local), and `SMALTI_ROOT` says where its data are.

The kind of storage follows from the scheme of `SMALTI_ROOT`: a path, s3://bucket/prefix, gs://bucket/prefix,
abfs://container/prefix, oci://bucket@namespace/prefix, dbfs:/Volumes/catalog/schema/volume. Its credentials are read
from the variables of docs/storage.md (`environment.py`), each of them optional; without them the service's own chain
decides.

Everywhere: SMALTI_SPARK_MASTER, or SMALTI_DATABRICKS in its place (docs/databricks.md), and SMALTI_RUNS, the address of
training runs (default: `runs` below the root).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from smalti_dagster.resources.environment import Environment, storage_at
from smalti_dagster.resources.notifications import NotificationsResource
from smalti_dagster.resources.spark import ComputeResource, SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource


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
    "local": Stage(root="data", folder=""),
    "staging": Stage(root=None, folder="stage-staging"),
    "production": Stage(root=None, folder="stage-production"),
}


def detect_stage(environ: Environment | None = None, stages: Mapping[str, Stage] = STAGES) -> str:
    """Return the name of the stage that the environment chooses.

    Raises:
        ValueError: there is no such stage.
    """
    environ = os.environ if environ is None else environ
    name = environ.get("SMALTI_STAGE") or "local"
    if name not in stages:
        raise ValueError(f"SMALTI_STAGE must be one of {', '.join(stages)}, found {name!r}")
    return name


def detect_resources(
    environ: Environment | None = None,
    *,
    stages: Mapping[str, Stage] = STAGES,
    storage_of: Callable[[str, str, Environment], StorageResource] = storage_at,
) -> dict[str, Any]:
    """Return the resources of the stage that the environment chooses, under the names that assets ask for.

    Args:
        environ: variables; those of this process by default.
        stages: a project's own stages.
        storage_of: returns the storage for an address, the name of the stage and the variables.

    Raises:
        ValueError: there is no such stage, a variable that it needs is not set, or the address has no known scheme.
    """
    environ = os.environ if environ is None else environ
    name = detect_stage(environ, stages)
    stage = stages[name]
    storage = storage_of(_root(name, stage, environ), name, environ)
    return {
        "smalti_storage": storage,
        "smalti_spark": _compute(stage, environ, storage.root),
        "smalti_trainer": TrainerResource(
            run_root=_absolute(environ.get("SMALTI_RUNS", "")) or storage.url("runs"),
            launcher=stage.launcher,
            num_processes=stage.num_processes,
        ),
        "smalti_notifications": _notifications(environ),
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
        error_texts=environ.get("SMALTI_NOTIFY_ERROR_TEXTS", "") == "1",
        ui_url=environ.get("SMALTI_UI_URL", ""),
    )


def _root(name: str, stage: Stage, environ: Environment) -> str:
    """Return the address of the folder of a stage.

    Raises:
        ValueError: the stage has no address of its own, and the environment gives none.
    """
    root = environ.get("SMALTI_ROOT") or stage.root
    if not root:
        raise ValueError(
            f"stage {name!r} needs the environment variable SMALTI_ROOT, the address of its data: a path, "
            "s3://bucket/prefix, gs://, abfs://, oci:// or dbfs:/Volumes/...; see docs/dagster.md"
        )
    return "/".join(part for part in (_absolute(root).rstrip("/"), stage.folder) if part)


def _compute(stage: Stage, environ: Environment, root: str) -> ComputeResource:
    if text := environ.get("SMALTI_DATABRICKS"):
        if environ.get("SMALTI_SPARK_MASTER"):
            raise ValueError("SMALTI_DATABRICKS and SMALTI_SPARK_MASTER are two places for Spark: set one of them")
        from smalti_dagster.resources.databricks.settings import read_databricks

        return read_databricks(text, root, environ)
    # An sc:// address may hold a token.
    return SparkResource(master=_reference(environ, "SMALTI_SPARK_MASTER") or stage.spark_master)


def _absolute(address: str) -> str:
    """Return a path made absolute, because steps may run in another folder; other addresses as they are."""
    is_path = bool(address) and ":/" not in address
    return str(Path(address).expanduser().absolute()) if is_path else address


def _reference(environ: Environment, name: str) -> Any:
    """Return a reference to a variable, which is resolved when a run needs it; None when it is not set."""
    return dg.EnvVar(name) if environ.get(name) else None
