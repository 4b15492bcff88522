"""Google Cloud Storage through gcsfs, or with HMAC keys through its S3-compatible endpoint, as in MosaicML's reader."""

import functools
import importlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from smalti.errors import StoreAuthError, StoreError
from smalti.storage.backends import s3
from smalti.storage.redact import HideSecrets
from smalti.storage.retry import LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import detect, load_extra
from smalti.storage.store import Tagged

HMAC_ENDPOINT = "https://storage.googleapis.com"
_DEFAULT_LOGIN = "google_default"
METADATA_SECONDS = 1
"""Time limit to connect to the metadata service, which runs on the machine itself, and again for its answer."""


def make(options: dict[str, Any]) -> Any:
    """Make a file system for GCS."""
    key = options.pop("key", None) or detect("GCS_KEY")
    secret = options.pop("secret", None) or detect("GCS_SECRET")
    if key and secret and "token" not in options:
        return _make_compatible(key, secret, options)
    token = options.setdefault("token", _DEFAULT_LOGIN)  # with None gcsfs may use anonymous access silently
    if isinstance(token, str) and ("/" in token or token.endswith(".json")) and not Path(token).expanduser().is_file():
        raise StoreAuthError(
            f"the storage option `token` names the key file {token}, which does not exist", token=token
        )
    if token == _DEFAULT_LOGIN:
        options["token"], project = default_login(str(options.get("access", "full_control")))
        if project:
            options.setdefault("project", project)
    defaults = {"requests_timeout": READ_SECONDS, "use_listings_cache": False, "skip_instance_cache": True}
    return _class()(**(defaults | options))


def default_login(access: str) -> tuple[Any, str | None]:
    """Return Google's application default credentials, and their project if it is known.

    `access` is "full_control", "read_write" or "read_only".
    """
    load_extra("gcsfs")
    auth, requests = map(importlib.import_module, ("google.auth", "requests"))
    scope = f"https://www.googleapis.com/auth/devstorage.{access}"
    with requests.Session() as session:
        found: tuple[Any, str | None] = auth.default(scopes=[scope], request=metadata_request(session))
        return found


def metadata_request(session: Any) -> Any:
    """Return a transport for google-auth that looks for the metadata service once, for `METADATA_SECONDS`.

    The library itself tries three times, 12 s in all where there is no such service; it also recognizes a machine of
    Google's by its firmware. The library's own variables take precedence.
    """
    transport = importlib.import_module("google.auth.transport.requests")
    failure = importlib.import_module("google.auth.exceptions").TransportError

    class MetadataRequest(transport.Request):  # type: ignore[misc, name-defined]
        def __call__(self, url: str, *args: Any, **options: Any) -> Any:
            if urlsplit(url).path.strip("/") or detect("GCE_METADATA_TIMEOUT", "GCE_METADATA_DETECT_RETRIES"):
                return super().__call__(url, *args, **options)
            try:
                return super().__call__(url, *args, **(options | {"timeout": METADATA_SECONDS}))
            except failure:
                return _NoService()  # google-auth retries after an exception, but not after an answer

    return MetadataRequest(session)


class _NoService:
    """The answer on a machine without the metadata service."""

    status, data = 504, b""
    headers: Mapping[str, str] = {}


def _make_compatible(key: str, secret: str, options: dict[str, Any]) -> Any:
    client = {"region_name": "auto", **options.pop("client_kwargs", {})}
    endpoint = options.pop("endpoint_url", None) or HMAC_ENDPOINT
    return s3.make({**options, "key": key, "secret": secret, "endpoint_url": endpoint, "client_kwargs": client})


@functools.cache
def _class() -> Any:
    # Before the import: otherwise gcsfs probes every bucket over gRPC, whose threads do not survive a fork.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    load_extra("gcsfs")
    logging.getLogger("gcsfs").addFilter(HideSecrets())  # it logs every refusal with the server's text
    core = importlib.import_module("gcsfs.core")
    retry = importlib.import_module("gcsfs.retry")
    request = getattr(core.GCSFileSystem._request, "__wrapped__", None)  # the only way to bound retries

    class BoundedGcsFileSystem(core.GCSFileSystem):  # type: ignore[misc, name-defined]
        """gcsfs with few retries and conditional puts: its own six attempts take 30 s for one refused request."""

        if request is not None:
            _request = retry.retry_request(retries=LIBRARY_ATTEMPTS)(request)

        async def _get_tagged(self, path: str) -> Tagged:
            headers, data = await self._call("GET", self.url(path))
            generation = {name.lower(): value for name, value in headers.items()}.get("x-goog-generation")
            if not generation:
                raise StoreError(f"gs://{path}: the server sent no generation, which a conditional put needs")
            return Tagged(bytes(data), str(generation))

        async def _put_if_match(self, path: str, data: bytes, etag: str) -> str:
            bucket, key, _ = self.split_path(path)
            address = f"{self._location}/upload/storage/v1/b/{quote(bucket)}/o"
            mark = secrets.token_hex(16)  # gcsfs's own function has no condition but "no object is there"
            kind = "Content-Type: application/json; charset=UTF-8"
            about = f"--{mark}\r\n{kind}\r\n\r\n{json.dumps({'name': key})}\r\n"
            body = f"{about}--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
            answer = await self._call(
                "POST",
                address,
                uploadType="multipart",
                ifGenerationMatch=etag,
                headers={"Content-Type": f'multipart/related; boundary="{mark}"'},
                data=body + data + f"\r\n--{mark}--\r\n".encode(),
                json_out=True,
            )
            return str(answer["generation"])

    return BoundedGcsFileSystem
