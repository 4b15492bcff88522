"""The client of a Databricks workspace: one per process, renewed once per request, with Python's classes of errors.

The SDK finds credentials (by its unified authentication) and sends the requests. This module limits its waits: by
default it waits 300 s for a dead host, in each call and before the first, and obeys any Retry-After.
"""

import errno
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from smalti.errors import SmaltiError, StoreAuthError
from smalti.process import PerProcess
from smalti.redaction import redact, secret_values
from smalti.storage.redact import detect_secrets, safe_cause
from smalti.storage.retry import READ_SECONDS
from smalti.storage.schemes import detect, load_extra

T = TypeVar("T")

RETRY_SECONDS = 20
"""Time limit of retries of a throttled or dropped request, for callers that use the file system without a store."""
NO_LOGIN_SECONDS = 0.5
"""Time limit to connect without a login, and again for the answer: 3 s with the SDK's pause of 1 to 2 s."""
MAX_PAUSE_SECONDS = 30.0
"""Longest pause by a Retry-After of the server."""

_PYTHON: dict[str, tuple[type[OSError], int]] = {
    "NotFound": (FileNotFoundError, errno.ENOENT),
    "AlreadyExists": (FileExistsError, errno.EEXIST),
    "ResourceAlreadyExists": (FileExistsError, errno.EEXIST),
    "Unauthenticated": (PermissionError, errno.EACCES),
    "PermissionDenied": (PermissionError, errno.EACCES),
}
_LOGIN_SETTINGS = {"profile", "config_file", "auth_type"}
_LOGIN_ELSEWHERE = (
    "DATABRICKS_RUNTIME_VERSION", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SYSTEM_ACCESSTOKEN", "DATABRICKS_OIDC_TOKEN_FILE"
)  # fmt: skip
"""Variables of platforms that log programs in: notebooks, GitHub, Azure DevOps; the last is an alias of the SDK's."""
_LOGIN = ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_ID", "DATABRICKS_CONFIG_PROFILE")


@dataclass(frozen=True)
class Client:
    """The SDK's objects for requests to a workspace."""

    config: Any
    """`databricks.sdk.core.Config`."""
    api: Any
    """`databricks.sdk.core.ApiClient`."""


class Workspace:
    """Requests to one workspace. Thread-safe, picklable; each process connects on first use.

    Args:
        settings: Arguments of the SDK's `Config`. A pickle contains them, a token too, but no credentials that the SDK
            found.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._clients: PerProcess[Client] = PerProcess(partial(_connect, settings))

    def run(self, work: Callable[[Client], T], path: str) -> T:
        """Return the result of `work`, repeated once with new credentials if they were refused as expired.

        Raises:
            FileNotFoundError, FileExistsError, PermissionError: the server's answer about `path`.
            StoreAuthError: there are no credentials.
            OSError: any other error of the SDK.
        """
        client = self._clients.get()
        renewed: Client | None = None
        try:
            return work(client)
        except Exception as error:
            if is_login_refused(error):
                # Credentials other than the refused ones, if there are others.
                before = client.config.authenticate()
                self._clients.renew(client)
                renewed = self._clients.get()
            if renewed is None or renewed.config.authenticate() == before:
                raise _builtin_error(error, path) from error
        try:
            return work(renewed)
        except Exception as error:
            raise _builtin_error(error, path) from error

    def request(self, method: str, address: str, path: str, **arguments: Any) -> Any:
        """Return the answer to one request."""
        return self.run(lambda client: client.api.do(method, address, **arguments), path)


class BoundedClock:
    """A clock for the SDK that limits its pauses."""

    def __init__(self, max_pause: float = MAX_PAUSE_SECONDS) -> None:
        self._max_pause = max_pause

    def time(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, but not longer than the limit."""
        time.sleep(min(seconds, self._max_pause))


def is_login_refused(error: BaseException) -> bool:
    """Return whether a newer token could help: after a 401, and a 403 for an invalid token."""
    name = type(error).__name__
    return name == "Unauthenticated" or (name == "PermissionDenied" and "invalid access token" in str(error).lower())


def is_about_the_request(error: BaseException) -> bool:
    """Return whether the server rejected the request in general terms: for a range past the end, or for a folder."""
    return type(error).__name__ in {"DatabricksError", "BadRequest", "InvalidParameterValue"}


def empty_range(rejection: OSError, stat: Callable[[str], Mapping[str, Any]], path: str, begin: int) -> bytes:
    """Return b"" if a read was rejected because it begins after the end of the file.

    Not for use in an `except` block: the rejection would become the context of the error, by which stores classify it.

    Raises:
        IsADirectoryError: the path is a folder.
        OSError: the rejection, if it has any other reason.
    """
    if is_about_the_request(rejection):
        entry = stat(path)
        if entry["type"] == "directory":
            raise IsADirectoryError(21, "is a folder", path)
        if entry["size"] <= begin:
            return b""
    raise rejection


def _builtin_error(error: Exception, path: str) -> Exception:
    if isinstance(error, SmaltiError):
        return error
    for base in type(error).__mro__:
        if base.__name__ in _PYTHON and base.__module__ != "builtins":
            kind, number = _PYTHON[base.__name__]
            return kind(number, redact(str(error), detect_secrets()), path)
    return error


def _connect(settings: dict[str, Any]) -> Client:
    load_extra("databricks.sdk")
    core = importlib.import_module("databricks.sdk.core")
    limits = {"retry_timeout_seconds": RETRY_SECONDS, "http_timeout_seconds": READ_SECONDS} | settings
    try:
        config = core.Config(**({"clock": BoundedClock()} | limits | login_limits(core.Config.attributes(), settings)))
        config.retry_timeout_seconds = limits["retry_timeout_seconds"]
        config.http_timeout_seconds = limits["http_timeout_seconds"]
        return Client(config, core.ApiClient(config))
    except ValueError as error:
        secrets = (*secret_values(settings), *detect_secrets())
        reason = redact(str(error).split(". Config:")[0], secrets)
        raise StoreAuthError(_no_login(reason, settings), host=settings.get("host")) from safe_cause(error, secrets)


def login_limits(attributes: Iterable[Any], settings: Mapping[str, Any]) -> dict[str, float]:
    """Return limits for the search for credentials: short ones if there is no sign of a login, else none.

    Before it looks for credentials, the SDK asks the host for its properties, which logins by a program (`az`) do not
    need.
    """
    login = [each for each in attributes if each.auth or each.name in _LOGIN_SETTINGS]
    has_login = any(settings.get(each.name) or (each.env and os.environ.get(each.env)) for each in login)
    if has_login or settings.get("credentials_strategy") or detect(*_LOGIN_ELSEWHERE) or _profiles().is_file():
        return {}
    # An integer: the SDK reads less than 1 as 300. Its first pause takes as long, so that there is one attempt.
    return {"http_timeout_seconds": NO_LOGIN_SECONDS, "retry_timeout_seconds": 1}


def _profiles() -> Path:
    return Path(os.environ.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg").expanduser()


def _no_login(reason: str, settings: dict[str, Any]) -> str:
    """Return the message of an error: the places that were searched, what was found, and how to log in."""
    found = [name for name in _LOGIN if os.environ.get(name)]
    profiles = _profiles()
    options = sorted(name for name in ("host", "token", "client_id", "profile") if settings.get(name))
    return (
        f"cannot log in to Databricks ({reason}). Found in this process: the storage options {options}, the variables "
        f"{found}, {'the file' if profiles.is_file() else 'no file'} {profiles}. Set DATABRICKS_HOST and "
        "DATABRICKS_TOKEN, or DATABRICKS_HOST, DATABRICKS_CLIENT_ID and DATABRICKS_CLIENT_SECRET (OAuth), or name a "
        "profile of ~/.databrickscfg in DATABRICKS_CONFIG_PROFILE, or pass the storage options `host` and `token`. "
        "Loader workers, training worker processes and Spark executors need them too: a notebook's login is not "
        "inherited; set the variables on the cluster (spark.executorEnv.DATABRICKS_HOST and so on), or pass storage "
        "options, which travel with a dataset"
    )
