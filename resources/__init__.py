"""Resources of the stages of this deployment: storage, Spark, trainer and notifications, by the keys of Smalti.

`SMALTI_STAGE` names the stage, and the variables of docs/storage.md say the rest. A project with fixed places returns
its own resources here, such as `S3Storage(root="s3://bucket/prefix", region_name="eu-central-1")` as `smalti_storage`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti_dagster.resources.deployment import detect_resources, detect_stage

LOCAL_ROOT = Path(__file__).resolve().parents[1] / "data"
"""Folder of the stage `local`, wherever the code location is started."""


def resources_of_stage(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the resources of the stage that the environment names.

    Raises:
        ValueError: there is no such stage, a variable that it needs is not set, or the address has no known scheme.
    """
    found = dict(os.environ if environ is None else environ)
    if detect_stage(found) == "local" and not found.get("SMALTI_ROOT"):
        found["SMALTI_ROOT"] = str(LOCAL_ROOT)
    return detect_resources(found)
