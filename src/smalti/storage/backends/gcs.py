"""Google Cloud Storage through gcsfs, or with HMAC keys through its S3-compatible endpoint, as in MosaicML's reader."""

import functools
import importlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

from smalti.errors import StoreAuthError, StoreError
from smalti.regular_files import read_regular_text
from smalti.storage.backends import s3
from smalti.storage.backends.bodies import bound_responses
from smalti.storage.backends.network import CA_BUNDLE, PROXY, ca_bundle_of, login_proxies_of, ssl_context
from smalti.storage.options import parameters_of
from smalti.storage.redact import HideSecrets
from smalti.storage.retry import LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import detect, load_extra
from smalti.storage.store import Tagged

HMAC_ENDPOINT = "https://storage.googleapis.com"
_DEFAULT_LOGIN = "google_default"
METADATA_SECONDS = 1
"""Time limit to connect to the metadata service, which runs on the machine itself, and again for its answer."""


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the interface of all schemes
    """Return the address of Google's storage, or of the server that replaces it."""
    emulator = detect("STORAGE_EMULATOR_HOST")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    return str(options.get("endpoint_url") or emulator or HMAC_ENDPOINT)


def fill_options(scheme: str, root: str, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 -- of all schemes
    """Return the options; a contradiction among them is refused before they travel to other processes.

    Raises:
        StoreError: two options contradict each other.
    """
    others = [name for name in ("token", "key", "secret") if options.get(name) is not None]
    if options.get("workload_identity") and others:
        raise StoreError(f"storage options of Google: `workload_identity` is the login itself: leave out `{others[0]}`")
    if options.get("session_kwargs") and any(options.get(name) for name in (PROXY, CA_BUNDLE)):
        raise StoreError("storage options of Google: give proxy and certificates by name or in `session_kwargs`")
    return dict(options)


def option_names() -> set[str]:
    """Return the names of all options that gcsfs takes, and s3fs, which is used with an HMAC key."""
    return parameters_of(_class()) | {"s3_additional_kwargs", "use_ssl"}


def make(options: dict[str, Any]) -> Any:
    """Make a file system for GCS."""
    workload = options.pop("workload_identity", None)
    network = {name: options.pop(name) for name in (PROXY, CA_BUNDLE) if options.get(name) is not None}
    if workload is not None:
        options["token"] = workload_login(workload, str(options.get("access", "full_control")))
    key = options.pop("key", None) or detect("GCS_KEY")
    secret = options.pop("secret", None) or detect("GCS_SECRET")
    if key and secret and "token" not in options:
        client = {"region_name": "auto", **options.pop("client_kwargs", {})}
        endpoint = options.pop("endpoint_url", None) or HMAC_ENDPOINT
        login = {"key": key, "secret": secret, "endpoint_url": endpoint, "client_kwargs": client}
        return s3.make(options | network | login)
    token = options.setdefault("token", _DEFAULT_LOGIN)  # with None gcsfs may use anonymous access silently
    if isinstance(token, str) and ("/" in token or token.endswith(".json")) and not Path(token).expanduser().is_file():
        raise StoreAuthError(
            f"the storage option `token` names the key file {token}, which does not exist", token=token
        )
    if token == _DEFAULT_LOGIN:
        options["token"], project = default_login(str(options.get("access", "full_control")))
        if project:
            options.setdefault("project", project)
    if network:
        options["token"] = _through(options["token"], network)
        options["network"] = network
    defaults = {"requests_timeout": READ_SECONDS, "use_listings_cache": False, "skip_instance_cache": True}
    return _class()(**(defaults | options))


def workload_login(path: str, access: str) -> Any:
    """Return the credentials of a workload identity pool.

    `path` is a file that `gcloud iam workload-identity-pools create-cred-config` wrote.

    Raises:
        StoreAuthError: there is no such file here, or it is of another kind.
    """
    load_extra("gcsfs")
    file = Path(path).expanduser()
    if not file.is_file():
        raise StoreAuthError(f"the storage option `workload_identity` names {file}, which is not a file here")
    content = _read_json(file)
    if content.get("type") != "external_account":
        raise StoreAuthError(
            f"the storage option `workload_identity` names {file}, which holds {content.get('type')!r} and not "
            "'external_account'; give a key file as `token`"
        )
    source = content.get("credential_source") or {}  # of the pool's tokens
    module = "pluggable" if "executable" in source else "identity_pool"
    if str(source.get("environment_id", "")).startswith("aws"):
        module = "aws"
    kind = importlib.import_module(f"google.auth.{module}")
    return kind.Credentials.from_file(str(file), scopes=[_scope(access)])


def _scope(access: str) -> str:
    return f"https://www.googleapis.com/auth/devstorage.{access}"


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_regular_text(path))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _from_key_file(path: Path) -> Any:
    """Return the credentials of a service account or of a user."""
    scopes = [_scope("full_control")]
    if _read_json(path).get("type") == "service_account":
        account = importlib.import_module("google.oauth2.service_account").Credentials
        return account.from_service_account_file(str(path), scopes=scopes)
    user = importlib.import_module("google.oauth2.credentials").Credentials
    return user.from_authorized_user_file(str(path), scopes=scopes)


def _through(token: Any, network: Mapping[str, Any]) -> Any:
    """Return credentials that fetch their tokens through a proxy, and trust the given authorities.

    Raises:
        StoreError: the login is one that gcsfs makes itself, and cannot take this way.
    """
    base: Any = importlib.import_module("google.auth.credentials").Credentials
    transport, requests = map(importlib.import_module, ("google.auth.transport.requests", "requests"))
    if token == "anon":  # noqa: S105 -- gcsfs's word for no login
        return token
    if isinstance(token, str) and Path(token).expanduser().is_file():
        token = _from_key_file(Path(token).expanduser())
    if not isinstance(token, base):
        raise StoreError(
            "storage options of Google: `proxy` and `ca_bundle` need a login by a key file, `workload_identity` or "
            "application default credentials; for others set HTTPS_PROXY and REQUESTS_CA_BUNDLE"
        )
    proxies, authority = login_proxies_of(network), ca_bundle_of(network)

    class Credentials(base):  # type: ignore[misc]
        """Credentials of google-auth whose requests go another way."""

        def refresh(self, request: Any) -> None:
            del request
            with requests.Session() as session:
                session.proxies = dict(proxies or {})
                send = transport.Request(session)
                # In each request: variables such as REQUESTS_CA_BUNDLE take precedence over the session's own.
                token.refresh(lambda *args, **options: send(*args, **options, verify=authority or True))
            self.token, self.expiry = token.token, token.expiry

    return Credentials()


def default_login(access: str) -> tuple[Any, str | None]:
    """Return Google's application default credentials, and their project if it is known.

    `access` is "full_control", "read_write" or "read_only".
    """
    load_extra("gcsfs")
    auth, requests = map(importlib.import_module, ("google.auth", "requests"))
    with requests.Session() as session:
        found: tuple[Any, str | None] = auth.default(scopes=[_scope(access)], request=metadata_request(session))
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
                # The answer of a machine without it: google-auth retries after an exception, but not after an answer.
                return SimpleNamespace(status=504, data=b"", headers={})

    return MetadataRequest(session)


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

        def __init__(self, *args: Any, network: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
            self._network = dict(network or {})
            super().__init__(*args, **kwargs)

        async def _set_session(self) -> Any:
            if self._session is None and self._network:  # a connector belongs to the loop in which it is made
                aiohttp, authority = importlib.import_module("aiohttp"), ca_bundle_of(self._network)
                context = ssl_context(authority) if authority else True
                self.session_kwargs = {"connector": aiohttp.TCPConnector(ssl=context)}
                if self._network.get(PROXY):
                    self.session_kwargs["proxy"] = self._network[PROXY]
            return bound_responses(await super()._set_session())

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
