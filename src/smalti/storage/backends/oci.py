"""Oracle's object storage by its S3-compatible door: `oci://bucket@namespace/prefix`, with customer secret keys."""

import configparser
import os
from pathlib import Path
from typing import Any

from smalti.errors import StoreError
from smalti.storage.backends import s3
from smalti.storage.extras import detect

HELP = (
    "set OCI_REGION, or have a `region` in ~/.oci/config, or pass the storage option `endpoint_url` "
    "(https://<namespace>.compat.objectstorage.<region>.oraclecloud.com)"
)


def fill_oci(namespace: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with the endpoint of the namespace's compatible door.

    Raises:
        StoreError: nothing names the region or the namespace.
    """
    filled = dict(options)
    if s3.endpoint_of(filled):
        return filled
    region = filled.get("client_kwargs", {}).get("region_name") or detect_oci_region()
    if not region:
        raise StoreError(f"oci://: the region is not known; {HELP}")
    if not namespace:
        raise StoreError("oci://: the namespace is missing; expected oci://bucket@namespace/prefix")
    filled["endpoint_url"] = f"https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"
    filled["client_kwargs"] = {"region_name": region, **filled.get("client_kwargs", {})}
    return filled


def detect_oci_region() -> str | None:
    """The region of the environment, or of the profile in Oracle's configuration file."""
    named = detect("OCI_REGION", "OCI_CLI_REGION")
    if named:
        return named
    path = Path(os.environ.get("OCI_CONFIG_FILE") or os.environ.get("OCI_CLI_CONFIG_FILE") or "~/.oci/config")
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read(path.expanduser())
    except (OSError, configparser.Error):
        return None
    profile = detect("OCI_CLI_PROFILE") or "DEFAULT"
    return config.get(profile, "region", fallback=None)
