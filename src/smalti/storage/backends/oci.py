"""Oracle's object storage through its S3-compatible endpoint, with customer secret keys.

`smalti.storage.backends.s3` makes the file system; this module parses `oci://bucket@namespace/prefix`.
"""

import configparser
import os
from pathlib import Path
from typing import Any

from smalti.errors import StoreError
from smalti.storage.backends import s3
from smalti.storage.schemes import Address, detect

_REGION_HELP = (
    "set OCI_REGION, or have a `region` in ~/.oci/config, or pass the storage option `endpoint_url` "
    "(https://<namespace>.compat.objectstorage.<region>.oraclecloud.com)"
)


def parse_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address oci://bucket@namespace/prefix, with the endpoint of the namespace in its options.

    Raises:
        StoreError: the region or the namespace is unknown.
    """
    bucket, _, namespace = host.partition("@")
    root = f"{bucket}/{prefix}".strip("/")
    return Address(scheme, root, f"{scheme}://{host}/{prefix}".rstrip("/"), _with_endpoint(namespace, options))


def _with_endpoint(namespace: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the S3-compatible endpoint of the namespace.

    Raises:
        StoreError: the region or the namespace is unknown.
    """
    filled = dict(options)
    if s3.endpoint_of(filled):
        return filled
    region = filled.get("client_kwargs", {}).get("region_name") or detect_oci_region()
    if not region:
        raise StoreError(f"oci://: the region is not known; {_REGION_HELP}")
    if not namespace:
        raise StoreError("oci://: the namespace is missing; expected oci://bucket@namespace/prefix")
    filled["endpoint_url"] = f"https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"
    filled["client_kwargs"] = {"region_name": region, **filled.get("client_kwargs", {})}
    return filled


def detect_oci_region() -> str | None:
    """Return the region from the environment, or from the profile in Oracle's configuration file."""
    region = detect("OCI_REGION", "OCI_CLI_REGION")
    if region:
        return region
    path = Path(os.environ.get("OCI_CONFIG_FILE") or os.environ.get("OCI_CLI_CONFIG_FILE") or "~/.oci/config")
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read(path.expanduser())
    except (OSError, configparser.Error):
        return None
    profile = detect("OCI_CLI_PROFILE") or "DEFAULT"
    return config.get(profile, "region", fallback=None)
