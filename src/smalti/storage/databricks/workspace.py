"""A Databricks workspace: its client, made by each process and renewed once, and its errors in Python's classes.

The SDK finds the credentials (all of its unified authentication) and speaks HTTP; what it would wait for is bounded
here: by default it gives a dead host 300 s, for each call and once more before the first, and obeys any Retry-After.
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
from smalti.storage.process import PerProcess
from smalti.storage.redact import detect_secrets, redact, safe_cause, secret_values
from smalti.storage.retry import READ_SECONDS
from smalti.storage.schemes import detect, load_extra

T = TypeVar("T")

RETRY_SECONDS = 20
"""Time for one request that is throttled or dropped, for those who use the file system alone."""
NO_LOGIN_SECONDS = 0.5
"""To connect to a host, and again for its answer, where there is no login: 3 s with the SDK's pause of 1 to 2 s."""
PATIENCE_SECONDS = 30.0
"""The longest single pause that a server may ask for with Retry-After."""

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
"""Set where a notebook, GitHub or Azure DevOps runs the program and logs it in; the last is an alias of the SDK's."""
_LOGIN = ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_ID", "DATABRICKS_CONFIG_PROFILE")


@dataclass(frozen=True)
class Client:
    """What the SDK needs to ask a workspace."""

    config: Any
    """`databricks.sdk.core.Config`."""
    api: Any
    """`databricks.sdk.core.ApiClient`."""


class Workspace:
    """Requests to one workspace; thread-safe, picklable, connected on first use in each process.

    A pickle holds the settings that were given, a token among them, and nothing that the SDK found by itself.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._clients: PerProcess[Client] = PerProcess(partial(_connect, settings))

    def run(self, work: Callable[[Client], T], path: str) -> T:
        """What `work` returns; done again, once, with credentials read anew where they were refused as expired.

        Raises:
            FileNotFoundError, FileExistsError, PermissionError: the server's answer about `path`.
            StoreAuthError: there are no credentials.
            OSError: everything else that the SDK raises.
        """
        client = self._clients.get()
        try:
            return work(client)
        except Exception as error:
            renewed = self._renew(client) if is_login_refused(error) else None
            if renewed is None:
                raise _in_python(error, path) from error
        try:
            return work(renewed)
        except Exception as error:
            raise _in_python(error, path) from error

    def ask(self, method: str, address: str, path: str, **request: Any) -> Any:
        """The answer to one request."""
        return self.run(lambda client: client.api.do(method, address, **request), path)

    def _renew(self, client: Client) -> Client | None:
        """A client with other credentials than this one's, if there are any now."""
        before = client.config.authenticate()
        self._clients.renew(client)
        renewed = self._clients.get()
        return None if renewed.config.authenticate() == before else renewed


def fill_options(root: str, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 -- the registry's signature
    """Return the options with a time limit on single requests, which a store cannot cancel: the client blocks."""
    limit = min(READ_SECONDS, float(options.get("request_timeout", READ_SECONDS)))
    return {"http_timeout_seconds": limit} | dict(options)


class PatientClock:
    """The SDK's clock, which does not sleep as long as any server says."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait, within bounds."""
        time.sleep(min(seconds, self._patience))


def is_login_refused(error: BaseException) -> bool:
    """Whether a newer token could help: 401, and the 403 by which a workspace names an invalid one."""
    name = type(error).__name__
    return name == "Unauthenticated" or (name == "PermissionDenied" and "invalid access token" in str(error).lower())


def is_about_the_request(error: BaseException) -> bool:
    """Whether the server called the request wrong, with no class of its own for why: a range past the end, a folder."""
    return type(error).__name__ in {"DatabricksError", "BadRequest", "InvalidParameterValue"}


def _in_python(error: Exception, path: str) -> Exception:
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
    wanted = {"retry_timeout_seconds": RETRY_SECONDS, "http_timeout_seconds": READ_SECONDS} | settings
    try:
        config = core.Config(**({"clock": PatientClock()} | wanted | login_limits(core.Config.attributes(), settings)))
        config.retry_timeout_seconds = wanted["retry_timeout_seconds"]
        config.http_timeout_seconds = wanted["http_timeout_seconds"]
        return Client(config, core.ApiClient(config))
    except ValueError as error:
        secrets = (*secret_values(settings), *detect_secrets())
        said = redact(str(error).split(". Config:")[0], secrets)
        raise StoreAuthError(_no_login(said, settings), host=settings.get("host")) from safe_cause(error, secrets)


def login_limits(attributes: Iterable[Any], settings: Mapping[str, Any]) -> dict[str, float]:
    """Return limits for finding the login: short ones where nothing says that there is any.

    The SDK asks the host what it is before it looks for credentials. Programs that log in (`az`) do not need the
    answer.

    Args:
        attributes: Those of the SDK's `Config`.
        settings: What was given.
    """
    login = [each for each in attributes if each.auth or each.name in _LOGIN_SETTINGS]
    given = any(settings.get(each.name) or (each.env and os.environ.get(each.env)) for each in login)
    if given or settings.get("credentials_strategy") or detect(*_LOGIN_ELSEWHERE) or _profiles().is_file():
        return {}
    # A whole number: the SDK takes less than 1 for 300. Its first pause is as long, so that there is one attempt.
    return {"http_timeout_seconds": NO_LOGIN_SECONDS, "retry_timeout_seconds": 1}


def _profiles() -> Path:
    return Path(os.environ.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg").expanduser()


def _no_login(said: str, settings: dict[str, Any]) -> str:
    """Where credentials were looked for, what was found, and who else needs them."""
    found = [name for name in _LOGIN if os.environ.get(name)]
    profiles = _profiles()
    given = sorted(name for name in ("host", "token", "client_id", "profile") if settings.get(name))
    return (
        f"cannot log in to Databricks ({said}). Found in this process: the storage options {given}, the variables "
        f"{found}, {'the file' if profiles.is_file() else 'no file'} {profiles}. Set DATABRICKS_HOST and "
        "DATABRICKS_TOKEN, or DATABRICKS_HOST, DATABRICKS_CLIENT_ID and DATABRICKS_CLIENT_SECRET (OAuth), or name a "
        "profile of ~/.databrickscfg in DATABRICKS_CONFIG_PROFILE, or pass the storage options `host` and `token`. "
        "Loader workers, training worker processes and Spark executors need them too: a notebook's login is not "
        "inherited; set the variables on the cluster (spark.executorEnv.DATABRICKS_HOST and so on), or pass storage "
        "options, which travel with a dataset"
    )
