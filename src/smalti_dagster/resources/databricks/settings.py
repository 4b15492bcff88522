"""The settings of Databricks in a deployment: one variable with JSON, or with the path of a file that holds it."""

import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.storage.opening import service_of
from smalti.storage.schemes import SCHEME_BY_NAME, secret_variables
from smalti_dagster.resources.databricks.code import DISTRIBUTION
from smalti_dagster.resources.databricks.compute import DatabricksResource
from smalti_dagster.resources.environment import Environment, storage_variables

SCOPE = "secret_scope"
"""The setting beside the fields of `DatabricksResource`: where the workspace has the secrets of the storage."""

_LOGIN = ("host", "token")  # from the variables that the SDK reads, so that no secret is in a file of settings


def read_databricks(text: str, root: str, environ: Environment) -> DatabricksResource:
    """Return the resource that settings describe, whose cluster gets the variables of the storage at an address.

    Args:
        text: JSON with fields of `DatabricksResource` and `secret_scope`, or the path of a file that holds it.
        root: of the storage.
        environ: with the variables of docs/storage.md.

    Raises:
        ValueError: it is neither, has other fields, or no scope although a variable of the storage is secret.
    """
    given = _read(text)
    known = {*DatabricksResource.model_fields, SCOPE} - {*_LOGIN}
    if unknown := sorted(given.keys() - known):
        raise ValueError(
            f"the settings of Databricks have no {unknown[0]!r}; expected some of {', '.join(sorted(known))} (the "
            "login is that of DATABRICKS_HOST, DATABRICKS_TOKEN and the SDK's other variables)"
        )
    needed = cluster_environment(storage_variables(root, environ), given.pop(SCOPE, None))
    return DatabricksResource(
        **{
            **given,
            "environment": {**needed, **given.get("environment", {})},
            "libraries": [*given.get("libraries", []), *_client_of(root)],
        }
    )


def cluster_environment(environment: Mapping[str, str], scope: str | None) -> dict[str, str]:
    """Return variables for a cluster: secret ones as references to secrets of the same names in a scope.

    Raises:
        ValueError: a variable is secret, and there is no scope.
    """
    hidden = sorted(secret_variables() & environment.keys())
    if hidden and not scope:
        raise ValueError(
            f"{hidden[0]} is a secret, which the cluster gets from a secret scope of the workspace: put it there under "
            f"this name, and name the scope as {SCOPE!r} in the settings of Databricks"
        )
    return {name: f"{{{{secrets/{scope}/{name}}}}}" if name in hidden else value for name, value in environment.items()}


def _client_of(root: str) -> list[str]:
    """Return the requirements of the client of a store; a volume is mounted on the cluster."""
    scheme = SCHEME_BY_NAME.get(service_of(root))
    if scheme is None or not scheme.extra or scheme.name == "dbfs":
        return []
    marked = (each.partition(";") for each in importlib.metadata.requires(DISTRIBUTION) or ())
    return [needed for needed, _, marker in marked if re.search(rf"extra == ['\"]{scheme.extra}['\"]", marker)]


def _read(text: str) -> dict[str, Any]:
    try:
        if not text.lstrip().startswith("{"):
            text = Path(os.path.expanduser(text)).read_text(encoding="utf-8")  # noqa: PTH111
        found = json.loads(text)
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"the settings of Databricks must be JSON or a file with JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError('the settings of Databricks must be an object, such as {"volume": ...}')  # noqa: TRY004
    return found
