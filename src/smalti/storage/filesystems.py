"""Making the fsspec file system for a scheme, with the defaults that production needs.

No silent anonymous access, few retries of the library's own (ours are bounded), connect and read timeouts, no listing
cache. The libraries are imported here, when a URL first needs them, and never by `import smalti`.
"""

import functools
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.errors import MissingDependency, StoreAuthError

CONNECT_SECONDS = 5
READ_SECONDS = 30
LIBRARY_ATTEMPTS = 2
"""Attempts inside a client library for one request; `FsspecStore` adds its own, with a deadline over all."""

SCHEMES = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs",
    "dbfs": "dbfs", "memory": "memory",
}  # fmt: skip
"""Accepted URL schemes and the canonical one for each."""

_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs", "adlfs": "azure", "databricks.sdk": "databricks"}


def detect_s3_endpoint() -> str | None:
    """The endpoint that the environment names for S3: S3_ENDPOINT_URL first, as MosaicML's reader takes it."""
    for name in ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if os.environ.get(name):
            return os.environ[name]
    return None


def detect_s3_region() -> str | None:
    """The region that the environment names."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def fill_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options completed from the environment where workers on other machines must see the same: the endpoint."""
    filled = dict(options)
    if scheme == "s3" and "endpoint_url" not in filled and "endpoint_url" not in filled.get("client_kwargs", {}):
        endpoint = detect_s3_endpoint()
        if endpoint:
            filled["endpoint_url"] = endpoint
    return filled


def make_filesystem(scheme: str, options: Mapping[str, Any]) -> Any:
    """A new fsspec file system; not shared with other users of fsspec, so that changed credentials take effect.

    Raises:
        MissingDependency: the extra for this scheme is not installed; the message has the pip command.
        StoreAuthError: the options name credentials that cannot be used.
    """
    makers = {"s3": _make_s3, "gs": _make_gcs, "abfs": _make_azure, "dbfs": _make_volumes, "memory": _make_memory}
    return makers[scheme](dict(options))


def load_extra(module: str) -> Any:
    """The imported module, or `MissingDependency` naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = _EXTRAS[module]
        raise MissingDependency(
            f"this address needs the Python package {module!r}, which is not installed: pip install 'smalti[{extra}]'",
            module=module,
            extra=extra,
        ) from error


def _make_s3(options: dict[str, Any]) -> Any:
    endpoint = options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url")
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"total_max_attempts": LIBRARY_ATTEMPTS, "mode": "standard"},
        "max_pool_connections": 64,
    }
    client = dict(options.pop("client_kwargs", {}))
    if endpoint:
        # Stores that are not AWS: several refuse or mangle the checksum trailers that botocore sends by default.
        config |= {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
        if "region_name" not in client and not detect_s3_region():
            client["region_name"] = "us-east-1"
    config |= options.pop("config_kwargs", {})
    defaults = {"anon": False, "use_listings_cache": False, "skip_instance_cache": True}
    return _s3_class()(**(defaults | options), client_kwargs=client, config_kwargs=config)


@functools.cache
def _s3_class() -> Any:
    s3fs = load_extra("s3fs")

    class BoundedS3FileSystem(s3fs.S3FileSystem):  # type: ignore[misc, name-defined]
        """s3fs without its own retry loop, which multiplies botocore's into minutes."""

        retries = 1

    return BoundedS3FileSystem


def _make_gcs(options: dict[str, Any]) -> Any:
    token = options.setdefault("token", "google_default")  # None would fall through to anonymous access in silence
    if isinstance(token, str) and ("/" in token or token.endswith(".json")) and not Path(token).expanduser().is_file():
        raise StoreAuthError(
            f"the storage option `token` names the key file {token}, which does not exist", token=token
        )
    defaults = {"requests_timeout": READ_SECONDS, "use_listings_cache": False, "skip_instance_cache": True}
    return _gcs_class()(**(defaults | options))


@functools.cache
def _gcs_class() -> Any:
    # Before the import: gcsfs otherwise probes every bucket over gRPC, whose threads do not survive a fork.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    load_extra("gcsfs")
    core = importlib.import_module("gcsfs.core")
    retry = importlib.import_module("gcsfs.retry")
    request = getattr(core.GCSFileSystem._request, "__wrapped__", None)  # the only way to bound retries

    class BoundedGcsFileSystem(core.GCSFileSystem):  # type: ignore[misc, name-defined]
        """gcsfs with few retries: its own six take half a minute for one refused request."""

        if request is not None:
            _request = retry.retry_request(retries=LIBRARY_ATTEMPTS)(request)

    return BoundedGcsFileSystem


def _make_azure(options: dict[str, Any]) -> Any:
    defaults = {
        "anon": False,  # adlfs's own default is anonymous access
        "connection_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    return _azure_class()(**(defaults | options))


@functools.cache
def _azure_class() -> Any:
    adlfs = load_extra("adlfs")

    class BoundedAzureFileSystem(adlfs.AzureBlobFileSystem):  # type: ignore[misc, name-defined]
        """adlfs with few retries: the SDK's own take a minute and a half, and adlfs has no option for them."""

        def do_connect(self) -> None:
            super().do_connect()
            policy = getattr(getattr(self.service_client, "_config", None), "retry_policy", None)
            if policy is not None:
                policy.total_retries = LIBRARY_ATTEMPTS - 1
                policy.initial_backoff = 0.5
                policy.increment_base = 2

    return BoundedAzureFileSystem


def _make_volumes(options: dict[str, Any]) -> Any:
    load_extra("databricks.sdk")
    volumes = importlib.import_module("smalti.storage.volumes")
    return volumes.VolumesFileSystem(**({"skip_instance_cache": True} | options))


def _make_memory(options: dict[str, Any]) -> Any:
    memory = importlib.import_module("fsspec.implementations.memory")
    return memory.MemoryFileSystem(**options)
