"""The mapping of client libraries' exceptions to Smalti's errors, by error code, class name and HTTP status.

The libraries are not imported: classes are compared by name, so that none of the libraries has to be installed.
"""

import enum
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from smalti.errors import StoreAuthError, StoreError, StoreExists, StoreNotFound, StoreTimeout, TrainingError
from smalti.storage.schemes import Scheme

_WHO_NEEDS_CREDENTIALS = (
    "every process needs them: loader workers, each host of a training, Spark executors (spark.executorEnv.NAME for a "
    "variable); storage options travel with a dataset, the environment does not leave its host"
)


class FaultKind(enum.Enum):
    """Kinds of faults, by what a caller can do about them."""

    MISSING = enum.auto()
    EXISTS = enum.auto()
    NO_CREDENTIALS = enum.auto()
    NO_TOKEN = enum.auto()
    """A login service gave no token; the error's text lists the attempts."""
    REFUSED = enum.auto()
    PAST_END = enum.auto()
    """A range begins after the end of the object."""
    TIMEOUT = enum.auto()
    UNTRUSTED = enum.auto()
    """The server's certificate is not trusted."""
    TRANSIENT = enum.auto()
    """Likely to pass: retried."""
    OTHER = enum.auto()


RETRYABLE = frozenset({FaultKind.TIMEOUT, FaultKind.TRANSIENT})

_CLASS_NAMES: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.NO_CREDENTIALS: (
        "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError",
        "DefaultCredentialsError", "CredentialUnavailableError", "LocalTokenNotFoundError",
    ),
    FaultKind.NO_TOKEN: ("AzureIdentityError",),
    FaultKind.REFUSED: (
        "RefreshError", "ClientAuthenticationError", "AzureSigningError", "Unauthenticated", "PermissionDenied",
        "HostKeyNotVerifiable", "GatedRepoError", "SFTPPermissionDenied",
    ),
    FaultKind.MISSING: (
        "NotFound", "ResourceDoesNotExist", "ResourceNotFoundError", "RepositoryNotFoundError",
        "RevisionNotFoundError", "EntryNotFoundError", "SFTPNoSuchFile", "SFTPNoSuchPath", "SFTPNotADirectory",
        "SFTPFileIsADirectory",
    ),
    FaultKind.EXISTS: ("AlreadyExists", "ResourceAlreadyExists", "ResourceExistsError", "SFTPFileAlreadyExists"),
    FaultKind.TRANSIENT: (
        "SFTPNoConnection", "SFTPConnectionLost", "ConnectionLost", "ServiceRequestError", "ServiceResponseError",
        "EndpointConnectionError", "ConnectionClosedError", "ResponseStreamingError", "IncompleteReadError",
        "HTTPClientError", "ClientPayloadError", "ServerDisconnectedError", "ClientConnectionError",
        "ClientOSError", "ChunkedEncodingError", "ProtocolError", "ConnectionError", "DatabricksError",
        "InternalError", "TemporarilyUnavailable", "DeadlineExceeded", "TooManyRequests", "ResourceExhausted",
    ),
    FaultKind.TIMEOUT: ("FSTimeoutError", "ReadTimeoutError", "ConnectTimeoutError"),
    FaultKind.OTHER: ("BadRequest", "NotImplemented"),
}  # fmt: skip
"""Names of the client libraries' classes. `DatabricksError` is a base class: a status without a class, mostly 502."""
_CODES: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.EXISTS: ("PreconditionFailed",),
    FaultKind.OTHER: ("NotImplemented",),
    FaultKind.TRANSIENT: ("ConditionalRequestConflict", "OperationAborted", "SlowDown"),
    FaultKind.TIMEOUT: ("RequestTimeout",),
    FaultKind.PAST_END: ("InvalidRange",),
    FaultKind.REFUSED: (
        "400", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed",
        "AuthenticationFailed", "AuthorizationFailure",
    ),
}  # fmt: skip
"""Error codes of stores. `NotImplemented` is a 501, for which retries do not help; S3's documentation asks for a retry
after `ConditionalRequestConflict`; AWS answers "400" to a HEAD with an expired token, which has no body with a code."""
_BY_NAME = {name: kind for kind, names in _CLASS_NAMES.items() for name in names}
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes}
_BY_STATUS = {
    401: FaultKind.REFUSED,
    403: FaultKind.REFUSED,
    404: FaultKind.MISSING,
    408: FaultKind.TIMEOUT,
    409: FaultKind.TRANSIENT,
    410: FaultKind.MISSING,
    412: FaultKind.EXISTS,
    416: FaultKind.PAST_END,
    429: FaultKind.TRANSIENT,
}
_BY_BUILTIN: dict[type[BaseException], FaultKind] = {
    FileNotFoundError: FaultKind.MISSING,
    NotADirectoryError: FaultKind.MISSING,
    IsADirectoryError: FaultKind.MISSING,
    FileExistsError: FaultKind.EXISTS,
    PermissionError: FaultKind.REFUSED,
    TimeoutError: FaultKind.TIMEOUT,
    ConnectionError: FaultKind.TRANSIENT,
}
_EXPIRED = frozenset(
    {
        "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired", "400",
        "InvalidAuthenticationInfo", "AuthenticationFailed",
    }
)  # fmt: skip
"""Codes of expired credentials. The last two are Azure's, for expired tokens and signatures, but also for wrong keys:
the answer to a HEAD does not distinguish them."""
_THROTTLED = frozenset(
    {
        "SlowDown", "TooManyRequests", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServerBusy",
        "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "TEMPORARILY_UNAVAILABLE",
    }
)  # fmt: skip
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_NO_BUCKET_TEXTS = ("specified bucket does not exist", "bucket not found")
_REFUSED_TEXTS = ("connection refused", "connect call failed", "could not connect to the endpoint")
_UNTRUSTED_TEXTS = ("certificate_verify_failed", "certificate verify failed")
_NO_LOGIN_TEXTS = (
    "cannot configure default credentials",
    "must provide either a connection_string or account_name",
    "unable to locate credentials",
    "could not automatically determine credentials",
)


def classify(error: BaseException) -> FaultKind:
    """Return the kind of a fault, by the most specific fact of the error and its causes. Pure."""
    chain = list(_chain(error))
    for kind_of in (lambda link: _BY_CODE.get(_code_of(link)), _by_name, _by_status, _by_builtin):
        for link in chain:
            kind = kind_of(link)
            if kind is not None:
                return kind
    return FaultKind.OTHER


def error_code(error: BaseException) -> str:
    """Return the store's own code of a fault, such as "ExpiredToken"; "" if there is none. Pure."""
    return next(filter(None, map(_code_of, _chain(error))), "")


def is_expired(error: BaseException) -> bool:
    """Return whether the credentials have expired, so that reading them again may help. Pure."""
    return any(_code_of(link) in _EXPIRED for link in _chain(error))


def is_throttled(error: BaseException) -> bool:
    """Return whether the store throttles, which deserves more attempts than a fault. Pure."""
    return any(_code_of(link) in _THROTTLED or _status_of(link) in {"429", "503"} for link in _chain(error))


def is_unknown_host(error: BaseException) -> bool:
    """Return whether the server's name cannot be resolved, which retries rarely change. Pure."""
    return any(isinstance(link, socket.gaierror) and link.errno == socket.EAI_NONAME for link in _chain(error))


def translate(error: BaseException, *, what: str, scheme: Scheme, detail: str, facts: dict[str, Any]) -> StoreError:
    """Return Smalti's error for a fault of a client library. Pure.

    Args:
        error: The library's exception; its causes count.
        what: Action and address, such as "cannot read s3://bucket/key".
        scheme: Scheme of the store, for the advice about credentials.
        detail: Text of the library's exception, redacted.
        facts: Attributes of the error; `code` is added to them, the store's own name of the fault or "".
    """
    kind = classify(error)
    facts = {**facts, "code": error_code(error)}
    advice = f"{scheme.credentials_help}; {_WHO_NEEDS_CREDENTIALS}"
    is_bucket = any(_code_of(link) in _NO_BUCKET or _has(link, _NO_BUCKET_TEXTS) for link in _chain(error))
    if kind is FaultKind.MISSING and is_bucket:
        return no_bucket(what, urlsplit(str(facts.get("url", ""))).netloc, **facts)
    texts: dict[FaultKind, tuple[type[StoreError], str]] = {
        FaultKind.MISSING: (StoreNotFound, "no such object, bucket or volume"),
        FaultKind.EXISTS: (StoreExists, "an object is there already; nothing was written"),
        FaultKind.NO_CREDENTIALS: (StoreAuthError, f"no credentials were found; {advice}"),
        FaultKind.NO_TOKEN: (StoreAuthError, f"{detail}; check them, or {advice}"),
        FaultKind.REFUSED: (StoreAuthError, f"the credentials were refused ({detail}); check them, or {advice}"),
        FaultKind.UNTRUSTED: (
            StoreError,
            f"the server's certificate is not trusted ({detail}); if the server is yours, name its authority's file "
            "in AWS_CA_BUNDLE (S3) or SSL_CERT_FILE (all others)",
        ),
        FaultKind.TIMEOUT: (
            StoreTimeout,
            f"no answer before the deadline ({detail}); check the endpoint and the network",
        ),
    }
    if kind in texts:
        error_class, text = texts[kind]
        return error_class(f"{what}: {text}", **facts)
    if any(_code_of(link) == "NotImplemented" for link in _chain(error)):
        return StoreError(f"{what}: {detail}; this store cannot do that", is_unsupported=True, **facts)
    if any(isinstance(link, ConnectionRefusedError) or _has(link, _REFUSED_TEXTS) for link in _chain(error)):
        detail = f"{detail}; no server answers there: check that it runs, and {scheme.endpoint_help}"
    return StoreError(f"{what}: {detail}", **({"is_transient": True} if kind is FaultKind.TRANSIENT else {}), **facts)


def _has(error: BaseException, texts: tuple[str, ...]) -> bool:
    """Return whether the error's own text contains one of the texts, which are in lower case."""
    return any(text in str(error).lower() for text in texts)


def no_bucket(what: str, bucket: str, **facts: Any) -> StoreNotFound:
    """Return the error for a bucket, container or volume that does not exist. Pure."""
    return StoreNotFound(
        f"{what}: there is no bucket, container or volume {bucket!r}; check its name, and the endpoint and credentials "
        "that are used, or create it",
        **{**facts, "is_bucket": True},
    )


def is_transient(error: BaseException) -> bool:
    """Return whether a fault of a store is likely to pass: no answer in time, or one of its client's kinds. Pure.

    The error of a training's rank says so of the fault that the rank has met.
    """
    faults = [link for link in _chain(error) if isinstance(link, StoreError | TrainingError)]
    return any(isinstance(link, StoreTimeout) or link.facts.get("is_transient") for link in faults)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what caused it, at most eight exceptions."""
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _code_of(error: BaseException) -> str:
    response = getattr(error, "response", None)
    code = None
    if isinstance(response, dict):
        code = response.get("Error", {}).get("Code")
    code = code or getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))  # Azure's codes are members of an enumeration


def _by_name(error: BaseException) -> FaultKind | None:
    if _has(error, _NO_LOGIN_TEXTS):
        return FaultKind.NO_CREDENTIALS
    if _has(error, _UNTRUSTED_TEXTS):
        return FaultKind.UNTRUSTED
    for base in type(error).__mro__:
        if base.__module__ == "builtins":
            break
        if base.__name__ in _BY_NAME:
            return _BY_NAME[base.__name__]
    return None


def _status_of(error: BaseException) -> str:
    response = getattr(error, "response", None)
    status: Any = None
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif response is not None:
        status = getattr(response, "status_code", None)
    for name in ("status_code", "status", "code"):
        status = status or getattr(error, name, None)
    return str(status or "")


def _by_status(error: BaseException) -> FaultKind | None:
    try:
        number = int(_status_of(error))
    except ValueError:
        return None
    return _BY_STATUS.get(number, FaultKind.TRANSIENT if number >= 500 else None)


def _by_builtin(error: BaseException) -> FaultKind | None:
    if str(error).startswith("Forbidden:"):
        return FaultKind.REFUSED  # gcsfs raises a bare OSError for a 403
    return next((kind for builtin, kind in _BY_BUILTIN.items() if isinstance(error, builtin)), None)
