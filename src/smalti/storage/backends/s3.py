"""S3 and services with its protocol, through s3fs: AWS, MinIO, Ceph, R2, B2, CoreWeave, Oracle, Google.

The client has time limits and few retries, is anonymous only on request, and follows no redirects: a store could send
a reader to any other host. Requester pays and canned ACLs are read from MosaicML's environment variables.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from smalti.storage.retry import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import detect, load_extra
from smalti.storage.store import Tagged, UnfinishedUpload

MAX_PUT_BYTES = 5 << 30
"""Largest object that S3 accepts in one request."""
REQUESTER_PAYS = "MOSAICML_STREAMING_AWS_REQUESTER_PAYS"
"""Variable with the names of buckets whose reader pays, separated by commas."""


def detect_s3_endpoint() -> str | None:
    """Return the endpoint from the environment; S3_ENDPOINT_URL takes precedence, as in MosaicML's reader."""
    return detect("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def detect_s3_region() -> str | None:
    """Return the region from the environment."""
    return detect("AWS_REGION", "AWS_DEFAULT_REGION")


def detect_requester_pays(bucket: str) -> bool:
    """Return whether the environment lists the bucket as one whose reader pays."""
    return bucket in {name.strip() for name in (detect(REQUESTER_PAYS) or "").split(",")}


def fill_options(root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options completed from the environment, so that workers on other hosts use the same."""
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
    """Return the endpoint in the options, in either of s3fs's two places for it. Pure."""
    endpoint = options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url")
    return str(endpoint) if endpoint else None


def arguments(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return s3fs's own arguments, those of its client, and those of the client's configuration."""
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"total_max_attempts": LIBRARY_ATTEMPTS, "mode": "standard"},
        "max_pool_connections": 64,
    }
    client = dict(options.pop("client_kwargs", {}))
    if endpoint_of({**options, "client_kwargs": client}):
        # Not AWS: several stores refuse or garble the checksum trailers that botocore sends by default.
        config |= {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
        if "region_name" not in client and not detect_s3_region():
            client["region_name"] = "us-east-1"
    config |= options.pop("config_kwargs", {})
    defaults = {"anon": False, "use_listings_cache": False, "skip_instance_cache": True}
    return defaults | options, client, config


def make(options: dict[str, Any]) -> Any:
    """Make a file system for S3."""
    load_extra("s3fs")
    settings, client, config = arguments(options)
    return _class()(**settings, client_kwargs=client, config_kwargs={"http_session_cls": session_class()} | config)


@functools.cache
def _class() -> Any:
    s3fs = load_extra("s3fs")

    class BoundedS3FileSystem(s3fs.S3FileSystem):  # type: ignore[misc, name-defined]
        """s3fs with conditional puts, and without its own retry loop, which multiplies botocore's into minutes."""

        retries = 1

        async def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite", **options: Any) -> Any:
            if mode == "create":  # one request: Ceph and others ignore conditions on multipart uploads
                options["chunksize"] = MAX_PUT_BYTES
            return await super()._pipe_file(path, data, mode=mode, **options)

        async def _get_tagged(self, path: str) -> Tagged:
            bucket, key, _ = self.split_path(path)
            reply = await self._call_s3("get_object", Bucket=bucket, Key=key)
            async with reply["Body"] as body:
                return Tagged(bytes(await body.read()), str(reply["ETag"]))

        async def _put_if_match(self, path: str, data: bytes, etag: str) -> str:
            bucket, key, _ = self.split_path(path)
            reply = await self._call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfMatch=etag)
            return str(reply["ETag"])

        async def _unfinished_uploads(self, path: str) -> list[UnfinishedUpload]:
            """Return the multipart uploads below a folder, with whole paths for keys."""
            bucket, folder, _ = self.split_path(path)
            prefix = f"{folder.rstrip('/')}/" if folder else ""
            found: list[UnfinishedUpload] = []
            page_start: dict[str, str] = {}
            while True:
                page = await self._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **page_start)
                found += [
                    UnfinishedUpload(f"{bucket}/{up['Key']}", up["UploadId"], up["Initiated"].timestamp())
                    for up in page.get("Uploads", ())
                    if "Initiated" in up  # otherwise its age is unknown
                ]
                if not page.get("IsTruncated"):
                    return found
                page_start = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

        async def _abort_upload(self, path: str, upload_id: str) -> None:
            bucket, key, _ = self.split_path(path)
            await self._call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)

    return BoundedS3FileSystem


@functools.cache
def session_class() -> Any:
    """Return a class of aiobotocore's HTTP session that treats a redirect as an error of the store."""
    base: Any = importlib.import_module("aiobotocore.httpsession").AIOHTTPSession

    class NoRedirectSession(base):  # type: ignore[misc]
        """A session that follows no redirects: aiohttp would follow them to any host."""

        async def _get_session(self, proxy_url: Any) -> Any:
            return _NoRedirects(await super()._get_session(proxy_url))

    return NoRedirectSession


class _NoRedirects:
    """The part of an aiohttp session that aiobotocore uses, without redirects."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        return await self._session.request(*args, allow_redirects=False, **kwargs)
