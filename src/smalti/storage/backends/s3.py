"""S3 and what speaks its protocol: AWS, MinIO, Ceph, R2, B2, CoreWeave, Oracle's and Google's compatible doors.

Few retries of the library's own, time limits, never anonymous unless asked, requester pays and canned ACLs as
MosaicML's environment names say them.

No redirects for S3: a store that sends readers to another host is refused, not followed.

aiohttp would follow, to any host, where what comes is read as if the store that the user named had sent it.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from smalti.storage.retry import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import detect, load_extra
from smalti.storage.store import Tagged, UnfinishedUpload


@functools.cache
def session_class() -> Any:
    """Aiobotocore's HTTP session, which hands a redirect back as what it is: an error of the store."""
    base: Any = importlib.import_module("aiobotocore.httpsession").AIOHTTPSession

    class StayingSession(base):  # type: ignore[misc]
        """Asks the host that it was given, and no other."""

        async def _get_session(self, proxy_url: Any) -> Any:
            return _Staying(await super()._get_session(proxy_url))

    return StayingSession


class _Staying:
    """The part of an aiohttp session that aiobotocore uses."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        return await self._session.request(*args, allow_redirects=False, **kwargs)


MAX_PUT_BYTES = 5 << 30
"""What S3 takes in one request."""
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


def fill_options(root: str, options: Mapping[str, Any]) -> dict[str, Any]:
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


def arguments(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What s3fs is made with: its own arguments, those of its client, and those of the client's configuration."""
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"total_max_attempts": LIBRARY_ATTEMPTS, "mode": "standard"},
        "max_pool_connections": 64,
    }
    client = dict(options.pop("client_kwargs", {}))
    if endpoint_of({**options, "client_kwargs": client}):
        # Stores that are not AWS: several refuse or mangle the checksum trailers that botocore sends by default.
        config |= {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
        if "region_name" not in client and not detect_s3_region():
            client["region_name"] = "us-east-1"
    config |= options.pop("config_kwargs", {})
    defaults = {"anon": False, "use_listings_cache": False, "skip_instance_cache": True}
    return defaults | options, client, config


def make(options: dict[str, Any]) -> Any:
    """A file system for S3."""
    load_extra("s3fs")
    settings, client, config = arguments(options)
    return _class()(**settings, client_kwargs=client, config_kwargs={"http_session_cls": session_class()} | config)


@functools.cache
def _class() -> Any:
    s3fs = load_extra("s3fs")

    class BoundedS3FileSystem(s3fs.S3FileSystem):  # type: ignore[misc, name-defined]
        """s3fs without its own retry loop, which multiplies botocore's into minutes."""

        retries = 1

        async def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite", **options: Any) -> Any:
            if mode == "create":  # in one request: Ceph and others look at no condition where parts are joined
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
            """The multipart uploads below a folder, with whole paths for keys."""
            bucket, folder, _ = self.split_path(path)
            prefix = f"{folder.rstrip('/')}/" if folder else ""
            found: list[UnfinishedUpload] = []
            after: dict[str, str] = {}
            while True:
                page = await self._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
                told = [up for up in page.get("Uploads", ()) if "Initiated" in up]  # else its age is not known
                found += [
                    UnfinishedUpload(f"{bucket}/{up['Key']}", up["UploadId"], up["Initiated"].timestamp())
                    for up in told
                ]
                if not page.get("IsTruncated"):
                    return found
                after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

        async def _abort_upload(self, path: str, upload_id: str) -> None:
            bucket, key, _ = self.split_path(path)
            await self._call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)

    return BoundedS3FileSystem
