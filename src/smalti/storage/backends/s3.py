"""S3 and services with its protocol: AWS, MinIO, Ceph, R2, B2, CoreWeave, Oracle, Google.

s3fs writes and lists. The client has time limits and few retries, is anonymous only on request, and follows no
redirects: a store could send a reader to any other host. Requester pays and canned ACLs are read from MosaicML's
environment variables. Encryption, roles, proxies and certificate authorities have options of their own
(`check_options`), which the reader and the file system take alike.

`S3Reader` reads through botocore: one streamed request for an object, in the caller's thread, on plain sockets. s3fs
reads a range into memory behind one event loop; the reader is five times as fast with a tenth of the CPU time, and
faster than obstore, which also breaks forked workers (docs/adr/0009). A client belongs to one process and finds
credentials as s3fs does.

Oracle's object storage, `oci://bucket@namespace/prefix`, is reached through its S3-compatible endpoint, with customer
secret keys.

Also here: requests for the contents that a versioned bucket of S3 keeps of replaced and removed objects.
"""

import configparser
import functools
import hashlib
import importlib
import os
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smalti.errors import StoreError
from smalti.process import PerProcess, collection_paused
from smalti.storage.backends.aws_login import assumed_role, async_session, with_shared_models
from smalti.storage.backends.bodies import bound_responses, within
from smalti.storage.backends.network import ca_bundle_of, proxies_of
from smalti.storage.object_store import Body, FsspecReader, Reader
from smalti.storage.options import parameters_of
from smalti.storage.retry import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS, Deadline
from smalti.storage.schemes import SCHEME_BY_NAME, Address, bucket_address, detect, load_extra, named_login
from smalti.storage.store import OldVersion, Tagged, UnfinishedUpload

MAX_PUT_BYTES = 5 << 30
"""Largest object that S3 accepts in one request."""
REQUESTER_PAYS = "MOSAICML_STREAMING_AWS_REQUESTER_PAYS"
"""Variable with the names of buckets whose reader pays, separated by commas."""
CHUNK_BYTES = 256 << 10
"""Size of the chunks of a body: fits into a core's cache, and needs few Python calls per megabyte."""
FAST_BYTES, FAST_BYTES_PER_SECOND = 4 << 10, 1 << 20
"""The least bytes of a read, and its speed, after which a whole chunk is waited for."""
PAGE_REQUESTS = 10
"""Requests of one page of a listing; S3 answers each with a thousand objects at most."""
_OPTIONS = frozenset({*SCHEME_BY_NAME["s3"].named_options, *SCHEME_BY_NAME["s3"].usual_options})
_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
_OF_ROLES = ("external_id", "role_session_name", "web_identity_token_file", "sts_endpoint_url")
_KEYS = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
_clients: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Clients in use, by a hash of process, options and login: a hundred streams of one bucket share one client."""
_REGION_HELP = (
    "set OCI_REGION, or have a `region` in ~/.oci/config, or pass the storage option `region`, or `endpoint_url` "
    "(https://<namespace>.compat.objectstorage.<region>.oraclecloud.com)"
)


def detect_s3_endpoint() -> str | None:
    """Return the endpoint from the environment; S3_ENDPOINT_URL takes precedence, as in MosaicML's reader."""
    return detect("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def detect_s3_region() -> str | None:
    """Return the region from the environment."""
    return detect("AWS_REGION", "AWS_DEFAULT_REGION")


def fill_options(scheme: str, root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options completed from the environment, so that workers on other hosts use the same.

    Raises:
        StoreError: two options contradict each other.
    """
    filled = dict(options)
    if scheme == "oci":  # completed by its address
        return filled
    check_options(filled)
    endpoint = None if endpoint_of(filled) else detect_s3_endpoint()
    if endpoint:
        filled["endpoint_url"] = endpoint
    payers = {name.strip() for name in (detect(REQUESTER_PAYS) or "").split(",")}
    if "requester_pays" not in filled and root.split("/", 1)[0] in payers:
        filled["requester_pays"] = True
    acl = detect("S3_CANNED_ACL")
    if acl and "ACL" not in filled.get("s3_additional_kwargs", {}):
        filled["s3_additional_kwargs"] = {**filled.get("s3_additional_kwargs", {}), "ACL": acl}
    return filled


def check_options(options: Mapping[str, Any]) -> None:
    """Check that the options fit together.

    Raises:
        StoreError: they do not; the message names them.
    """
    encryption, is_role = options.get("server_side_encryption"), bool(options.get("role_arn"))
    extra = options.get("s3_additional_kwargs") or {}
    uses_kms = (encryption or "aws:kms") != "AES256"
    is_anonymous, has_token_file = bool(options.get("anon")), bool(options.get("web_identity_token_file"))
    clashes = {
        f"`server_side_encryption` is {encryption!r}, expected one of {', '.join(_ENCRYPTIONS)}": (
            encryption is not None and encryption not in _ENCRYPTIONS
        ),
        "`kms_key_id` needs `server_side_encryption` aws:kms or aws:kms:dsse, not AES256": (
            bool(options.get("kms_key_id")) and not uses_kms
        ),
        "`bucket_key` needs `server_side_encryption` aws:kms, or `kms_key_id`": (
            options.get("bucket_key") is not None
            and (not uses_kms or not (encryption or options.get("kms_key_id")) or encryption == "aws:kms:dsse")
        ),
        "give the encryption by `server_side_encryption` and `kms_key_id`, or in `s3_additional_kwargs`, not by both": (
            bool(encryption or options.get("kms_key_id")) and bool({"ServerSideEncryption", "SSEKMSKeyId"} & {*extra})
        ),
        f"{' and '.join(f'`{name}`' for name in _OF_ROLES if options.get(name))} need `role_arn`": (
            not is_role and any(options.get(name) for name in _OF_ROLES)
        ),
        "`role_arn` is assumed with `key`, `secret` and `token`: give them by these names, not in `client_kwargs`": (
            is_role and not _KEYS.isdisjoint(options.get("client_kwargs") or {})
        ),
        "`role_arn` and `anon` exclude each other: an anonymous request has no role": is_role and is_anonymous,
        "`web_identity_token_file` is the login itself: leave out `key`, `secret` and `external_id`": (
            has_token_file and any(options.get(name) for name in ("key", "secret", "external_id"))
        ),
        "give the proxy by `proxy` or in `config_kwargs`, not by both": (
            bool(options.get("proxy")) and "proxies" in (options.get("config_kwargs") or {})
        ),
    }
    found = next((text for text, is_wrong in clashes.items() if is_wrong), None)
    if found is not None:
        raise StoreError(f"storage options of S3: {found}")


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of Smalti's own names in the places where s3fs expects them; roles stay."""
    settings = dict(options)
    extra = dict(settings.get("s3_additional_kwargs") or {})
    client, config = dict(settings.get("client_kwargs") or {}), dict(settings.get("config_kwargs") or {})
    encryption, key = settings.pop("server_side_encryption", None), settings.pop("kms_key_id", None)
    bucket_key = settings.pop("bucket_key", None)
    if encryption or key:
        extra["ServerSideEncryption"] = encryption or "aws:kms"
    if key:
        extra["SSEKMSKeyId"] = key
    if bucket_key is not None:
        extra["BucketKeyEnabled"] = bool(bucket_key)
    authority, proxies = ca_bundle_of(settings), proxies_of(settings)
    if authority:
        client["verify"] = authority
    if proxies:
        config["proxies"] = proxies
    if settings.get("region"):
        client["region_name"] = settings["region"]
    if settings.get("addressing_style"):
        config["s3"] = {**config.get("s3", {}), "addressing_style": settings["addressing_style"]}
    for name in ("proxy", "ca_bundle", "region", "addressing_style"):
        settings.pop(name, None)
    places = {"s3_additional_kwargs": extra, "client_kwargs": client, "config_kwargs": config}
    return settings | {name: value for name, value in places.items() if value}


def endpoint_of(options: Mapping[str, Any]) -> str | None:
    """Return the endpoint in the options, in either of s3fs's two places for it. Pure."""
    endpoint = options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url")
    return str(endpoint) if endpoint else None


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the interface of all schemes
    """Return the address of the service: that of the options or the environment, else AWS in the client's region."""
    given = options.get("region") or options.get("client_kwargs", {}).get("region_name")
    region = given or detect_s3_region() or "us-east-1"
    suffix = ".cn" if str(region).startswith("cn-") else ""
    return endpoint_of(options) or detect_s3_endpoint() or f"https://s3.{region}.amazonaws.com{suffix}"


def login_source(scheme: str, options: Mapping[str, Any]) -> str:
    """Return the source of the credentials; asks the metadata service of a machine as the client does.

    Raises:
        MissingDependency: botocore is not installed.
    """
    if options.get("anon"):
        return "none: anonymous access, as the storage option `anon` says"
    if options.get("role_arn"):
        return f"the role {options['role_arn']}, assumed"
    if options.get("key"):
        return named_login(scheme, options)
    session = load_extra("botocore.session").Session(profile=options.get("profile"))
    found = session.get_credentials()
    if found is None:
        return ""
    profile = session.get_config_variable("profile") or "default"
    of_profile = f"profile {profile!r}"
    sources = {
        "env": "the environment variable AWS_ACCESS_KEY_ID" + (" (temporary, with a token)" if found.token else ""),
        "shared-credentials-file": f"the file of shared credentials, {of_profile}",
        "config-file": f"the configuration file, {of_profile}",
        "assume-role": f"an assumed role, {of_profile}",
        "assume-role-with-web-identity": "a role assumed with a web identity token",
        "sso": f"single sign-on, {of_profile}",
        "custom-process": f"a program, {of_profile}",
        "container-role": "the role of this container",
        "iam-role": "the role of this machine (its metadata service)",
    }
    return sources.get(found.method, str(found.method))


def arguments(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return s3fs's own arguments, those of its client, and those of the client's configuration."""
    options = _translated(options)
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


def option_names() -> set[str]:
    """Return the names of all options that s3fs takes."""
    return parameters_of(_class()) | {"profile"}


def make(options: dict[str, Any]) -> Any:
    """Make a file system for S3."""
    load_extra("s3fs")
    settings, client, config = arguments(options)
    if settings.get("role_arn"):
        session = with_shared_models(load_extra("botocore.session").Session(profile=settings.get("profile")))
        login = assumed_role(session, settings, client, config.get("proxies"))
        settings["session"] = async_session(login)
        for name in ("role_arn", "key", "secret", "token", "profile", *_OF_ROLES):
            settings.pop(name, None)
    elif settings.get("session") is None:
        settings["session"] = async_session(profile=settings.pop("profile", None))
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

        _list_page, _unfinished_uploads, _old_versions = _list_page, _unfinished_uploads, _old_versions

        async def _abort_upload(self, path: str, upload_id: str) -> None:
            bucket, key, _ = self.split_path(path)
            await self._call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)

        async def _remove_old_version(self, path: str, version_id: str) -> None:
            bucket, key, _ = self.split_path(path)
            await self._call_s3("delete_object", Bucket=bucket, Key=key, VersionId=version_id)

    return BoundedS3FileSystem


@functools.cache
def session_class() -> Any:
    """Return a class of aiobotocore's HTTP session that treats a redirect as an error of the store."""
    base: Any = importlib.import_module("aiobotocore.httpsession").AIOHTTPSession

    class NoRedirectSession(base):  # type: ignore[misc]
        """A session that follows no redirects: aiohttp would follow them to any host."""

        async def _get_session(self, proxy_url: Any) -> Any:
            return _NoRedirects(bound_responses(await super()._get_session(proxy_url)))

    return NoRedirectSession


class _NoRedirects:
    """The part of an aiohttp session that aiobotocore uses, without redirects."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        return await self._session.request(*args, allow_redirects=False, **kwargs)


def make_reader(options: Mapping[str, Any], connection: PerProcess[Any], timeout: float) -> Reader:
    """Return an `S3Reader`, or one that uses s3fs if some of the options are known to s3fs only."""
    return S3Reader(options, timeout) if set(options) <= _OPTIONS else FsspecReader(connection)


class S3Reader:
    """Reads objects by botocore. Thread-safe, picklable.

    Args:
        options: Options of `s3fs.S3FileSystem`, of those in `_OPTIONS`.
        timeout: Longest wait for more bytes of a response, seconds.
    """

    def __init__(self, options: Mapping[str, Any], timeout: float) -> None:
        self._extra = dict(options.get("s3_additional_kwargs") or {})
        if options.get("requester_pays"):
            self._extra["RequestPayer"] = "requester"
        self._client: PerProcess[Any] = PerProcess(partial(_shared_client, dict(options), timeout))

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:  # noqa: ARG002 -- the client has one
        """Open the object from byte `begin` on; with a tag only if the content still has it."""
        conditions = ({"Range": f"bytes={begin}-"} if begin else {}) | ({"IfMatch": tag} if tag else {})
        reply = self._request("GetObject", path, **conditions)
        if begin and not str(reply.get("ContentRange", "")).startswith(f"bytes {begin}-"):
            reply["Body"].close()
            raise StoreError(f"s3://{path}: the store ignores ranges: asked for byte {begin} on, it sent all")
        return Body(str(reply.get("ETag", "")), _whole_size(reply), _chunks(reply["Body"]), reply["Body"].close)

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Return the bytes [begin, end), or all from `begin` on."""
        deadline, is_part = Deadline(timeout), bool(begin) or end is not None
        span = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if is_part else {}
        reply = self._request("GetObject", path, **span)
        chunks = _timely(_chunks(reply["Body"]), deadline)
        try:
            return b"".join(within(chunks, begin, end, is_part="ContentRange" in reply, what=f"s3://{path}"))
        finally:
            reply["Body"].close()  # the connection is reused if all bytes were read

    def size(self, path: str, *, timeout: float) -> int:  # noqa: ARG002
        """Return the object's size, bytes."""
        return int(self._request("HeadObject", path)["ContentLength"])

    def renew(self) -> None:
        """Discard this process's client, so that the next one reads the credentials again."""
        client = self._client.peek()
        for key in [key for key, known in list(_clients.items()) if known is client]:
            _clients.pop(key, None)
        self._client.renew(client)

    def _request(self, operation: str, path: str, **parameters: Any) -> Any:
        bucket, _, key = path.partition("/")
        client = self._client.get()
        known = client.meta.service_model.operation_model(operation).input_shape.members
        extra = {name: value for name, value in self._extra.items() if name in known}
        call = client.get_object if operation == "GetObject" else client.head_object
        return call(Bucket=bucket, Key=key, **extra, **parameters)


def _shared_client(options: dict[str, Any], timeout: float) -> Any:
    facts = repr((os.getpid(), sorted(options.items()), timeout, *_login()))
    key = hashlib.sha256(facts.encode()).hexdigest()  # the facts contain secrets
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = _make_client(options, timeout)
    return client


def _login() -> Iterator[Any]:
    """Yield the sources of credentials, which may change while the process runs: variables, and times of files."""
    yield sorted((name, os.environ[name]) for name in os.environ if name.startswith(("AWS_", "S3_")))
    for name, usual in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        path = os.path.expanduser(os.environ.get(name, f"~/.aws/{usual}"))  # noqa: PTH111 -- as botocore does
        yield path, os.stat(path).st_mtime_ns if os.path.exists(path) else None  # noqa: PTH110, PTH116


def _make_client(options: dict[str, Any], timeout: float) -> Any:
    botocore, configuration, sessions = map(load_extra, ("botocore", "botocore.config", "botocore.session"))
    settings, client, config = arguments(dict(options))
    config |= {
        "connect_timeout": min(CONNECT_SECONDS, timeout),
        "read_timeout": min(READ_SECONDS, timeout),
        "retries": {"total_max_attempts": 1, "mode": "standard"},  # the store retries
    }
    names = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
    given = {name: settings[name] for name in ("endpoint_url", "use_ssl") if settings.get(name) is not None}
    session = with_shared_models(sessions.Session(profile=settings.get("profile")))
    if settings.get("role_arn"):
        session._credentials = assumed_role(session, settings, client, config.get("proxies"))
    elif settings.get("anon"):
        config["signature_version"] = botocore.UNSIGNED
        client = {name: value for name, value in client.items() if name not in names.values()}
    else:
        given |= {names[name]: settings[name] for name in names if settings.get(name) is not None}
    with collection_paused():  # 15,000 objects, all of which stay
        return session.create_client("s3", config=configuration.Config(**config), **(given | client))


def _chunks(body: Any) -> Iterator[bytes]:
    """Yield the bytes of a body; the last read, which returns nothing, compares their number to the header.

    A read of a whole chunk has no deadline on a connection that delivers a few bytes now and then. So what has arrived
    is taken piece by piece, until the connection is fast.
    """
    is_fast = False
    while True:
        begin = time.monotonic()
        chunk = body.read(CHUNK_BYTES) if is_fast else _read_arrived(body)
        if not chunk:
            return
        is_fast = len(chunk) >= max(FAST_BYTES, FAST_BYTES_PER_SECOND * (time.monotonic() - begin))
        yield chunk


def _read_arrived(body: Any) -> bytes:
    """Return what has arrived of a body, at most a chunk; wait if that is nothing."""
    raw = body._raw_stream
    if not hasattr(raw, "read1"):  # urllib3 before version 2
        return bytes(body.read(CHUNK_BYTES))
    raw.read = raw.read1  # the body's own method counts, and computes checksums
    try:
        return bytes(body.read(CHUNK_BYTES))
    finally:
        del raw.read


def _timely(chunks: Iterator[bytes], deadline: Deadline) -> Iterator[bytes]:
    """Yield the chunks.

    Raises:
        TimeoutError: the deadline passed before one of them arrived.
    """
    arrived = 0
    for chunk in chunks:
        arrived += len(chunk)
        if deadline.passed():
            raise TimeoutError(f"{arrived} bytes had arrived")
        yield chunk


def _whole_size(reply: Any) -> int:
    _, _, whole = str(reply.get("ContentRange", "")).partition("/")
    return int(whole) if whole.isdigit() else int(reply.get("ContentLength", -1))  # -1: the answer does not say it


def parse_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address; of oci://bucket@namespace/prefix, with the endpoint of the namespace in its options.

    Raises:
        StoreError: the region or the namespace is unknown.
    """
    if scheme != "oci":
        return bucket_address(scheme, host, prefix, options)
    bucket, _, namespace = host.partition("@")
    filled = dict(options)
    if not endpoint_of(filled):
        region = filled.get("region") or filled.get("client_kwargs", {}).get("region_name") or detect_oci_region()
        if not region:
            raise StoreError(f"oci://: the region is not known; {_REGION_HELP}")
        if not namespace:
            raise StoreError("oci://: the namespace is missing; expected oci://bucket@namespace/prefix")
        filled["endpoint_url"] = f"https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"
        filled["client_kwargs"] = {"region_name": region, **filled.get("client_kwargs", {})}
    return Address(scheme, f"{bucket}/{prefix}".strip("/"), f"{scheme}://{host}/{prefix}".rstrip("/"), filled)


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


async def _list_page(filesystem: Any, path: str, after: str) -> tuple[dict[str, Any], str | None]:
    """Return entries by whole path that come after a key below a folder, and the last key; None at the end."""
    bucket, prefix = _below(filesystem, path)
    found: dict[str, Any] = {}
    for _ in range(PAGE_REQUESTS):
        start = {"StartAfter": prefix + after} if after else {}
        page = await filesystem._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **start)
        listed = page.get("Contents", ())
        found |= {f"{bucket}/{item['Key']}": {**item, "size": item["Size"]} for item in listed}
        if not page.get("IsTruncated") or not listed:
            return found, None
        after = listed[-1]["Key"].removeprefix(prefix)
    return found, after


async def _unfinished_uploads(filesystem: Any, path: str) -> list[UnfinishedUpload]:
    """Return the multipart uploads below a folder, with whole paths for keys."""
    return [
        UnfinishedUpload(key, upload["UploadId"], upload["Initiated"].timestamp())
        async for _, key, upload in _kept(filesystem, path, "list_multipart_uploads", "UploadId", "Uploads")
        if "Initiated" in upload  # otherwise its age is unknown
    ]


async def _old_versions(filesystem: Any, path: str) -> list[OldVersion]:
    """Return the noncurrent versions and delete markers below a folder, with whole paths for keys."""
    state = await filesystem._call_s3("get_bucket_versioning", Bucket=_below(filesystem, path)[0])
    if "Status" not in state:  # the bucket keeps no versions, and never did
        return []
    kinds = "Versions", "DeleteMarkers"
    return [
        OldVersion(key, entry["VersionId"], int(entry.get("Size", 0)), is_removal=kind == "DeleteMarkers")
        async for kind, key, entry in _kept(filesystem, path, "list_object_versions", "VersionId", *kinds)
        if kind == "DeleteMarkers" or not entry["IsLatest"]
    ]


def _below(filesystem: Any, path: str) -> tuple[str, str]:
    """Return the bucket of a folder, and the prefix of the keys below it."""
    bucket, folder, _ = filesystem.split_path(path)
    return bucket, f"{folder.rstrip('/')}/" if folder else ""


async def _kept(
    filesystem: Any, path: str, operation: str, id_name: str, *kinds: str
) -> AsyncIterator[tuple[str, str, Any]]:
    """Yield kind, whole path and entry of all uploads or versions below a folder; one page is in memory."""
    bucket, prefix = _below(filesystem, path)
    start: dict[str, str] = {}
    while True:
        page = await filesystem._call_s3(operation, Bucket=bucket, Prefix=prefix, **start)
        for kind in kinds:
            for entry in page.get(kind, ()):
                yield kind, f"{bucket}/{entry['Key']}", entry
        if not page.get("IsTruncated"):
            return
        start = {"KeyMarker": page["NextKeyMarker"], f"{id_name}Marker": page[f"Next{id_name}Marker"]}
