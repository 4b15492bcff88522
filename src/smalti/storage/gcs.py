"""Google Cloud Storage by gcsfs, or by its S3-compatible door where HMAC keys are given, as MosaicML's reader does."""

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from smalti.errors import StoreAuthError
from smalti.storage import s3
from smalti.storage.extras import LIBRARY_ATTEMPTS, READ_SECONDS, detect, load_extra

HMAC_ENDPOINT = "https://storage.googleapis.com"


def make(options: dict[str, Any]) -> Any:
    """A file system for GCS."""
    key = options.pop("key", None) or detect("GCS_KEY")
    secret = options.pop("secret", None) or detect("GCS_SECRET")
    if key and secret and "token" not in options:
        return _make_compatible(key, secret, options)
    token = options.setdefault("token", "google_default")  # None would fall through to anonymous access in silence
    if isinstance(token, str) and ("/" in token or token.endswith(".json")) and not Path(token).expanduser().is_file():
        raise StoreAuthError(
            f"the storage option `token` names the key file {token}, which does not exist", token=token
        )
    defaults = {"requests_timeout": READ_SECONDS, "use_listings_cache": False, "skip_instance_cache": True}
    return _class()(**(defaults | options))


def _make_compatible(key: str, secret: str, options: dict[str, Any]) -> Any:
    client = {"region_name": "auto", **options.pop("client_kwargs", {})}
    endpoint = options.pop("endpoint_url", None) or HMAC_ENDPOINT
    return s3.make({**options, "key": key, "secret": secret, "endpoint_url": endpoint, "client_kwargs": client})


@functools.cache
def _class() -> Any:
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
