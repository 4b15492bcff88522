"""S3 and what speaks its protocol: AWS, MinIO, Ceph, R2, B2, CoreWeave, Oracle's and Google's compatible doors.

Few retries of the library's own, time limits, never anonymous unless asked, requester pays and canned ACLs as
MosaicML's environment names say them.
"""

import functools
from collections.abc import Mapping
from typing import Any

from smalti.storage.extras import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS, detect, load_extra
from smalti.storage.redirects import session_class

REQUESTER_PAYS = "MOSAICML_STREAMING_AWS_REQUESTER_PAYS"
"""Names of buckets, separated by commas, whose reader pays."""


def detect_s3_endpoint() -> str | None:
    """The endpoint that the environment names for S3: S3_ENDPOINT_URL first, as MosaicML's reader takes it."""
    return detect("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def detect_s3_region() -> str | None:
    """The region that the environment names."""
    return detect("AWS_REGION", "AWS_DEFAULT_REGION")


def detect_requester_pays(bucket: str) -> bool:
    """Whether the environment names the bucket as one whose reader pays."""
    return bucket in {name.strip() for name in (detect(REQUESTER_PAYS) or "").split(",")}


def fill_s3(root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options completed from the environment where workers on other machines must see the same."""
    filled = dict(options)
    endpoint = None if endpoint_of(filled) else detect_s3_endpoint()
    if endpoint:
        filled["endpoint_url"] = endpoint
    if "requester_pays" not in filled and detect_requester_pays(root.split("/", 1)[0]):
        filled["requester_pays"] = True
    acl = detect("S3_CANNED_ACL")
    if acl and "ACL" not in filled.get("s3_additional_kwargs", {}):
        filled["s3_additional_kwargs"] = {**filled.get("s3_additional_kwargs", {}), "ACL": acl}
    return filled


def endpoint_of(options: Mapping[str, Any]) -> str | None:
    """The endpoint that the options name, in either of the two places that s3fs has for it."""
    named = options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url")
    return str(named) if named else None


def make(options: dict[str, Any]) -> Any:
    """A file system for S3."""
    load_extra("s3fs")
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"total_max_attempts": LIBRARY_ATTEMPTS, "mode": "standard"},
        "max_pool_connections": 64,
        "http_session_cls": session_class(),
    }
    client = dict(options.pop("client_kwargs", {}))
    if endpoint_of({**options, "client_kwargs": client}):
        # Stores that are not AWS: several refuse or mangle the checksum trailers that botocore sends by default.
        config |= {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
        if "region_name" not in client and not detect_s3_region():
            client["region_name"] = "us-east-1"
    config |= options.pop("config_kwargs", {})
    defaults = {"anon": False, "use_listings_cache": False, "skip_instance_cache": True}
    return _class()(**(defaults | options), client_kwargs=client, config_kwargs=config)


@functools.cache
def _class() -> Any:
    s3fs = load_extra("s3fs")

    class BoundedS3FileSystem(s3fs.S3FileSystem):  # type: ignore[misc, name-defined]
        """s3fs without its own retry loop, which multiplies botocore's into minutes."""

        retries = 1

    return BoundedS3FileSystem
