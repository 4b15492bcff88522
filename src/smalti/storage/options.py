"""The options of stores: the names that each scheme takes, and the form of the URLs of servers and proxies.

Both are checked when a store is opened: client libraries ignore names that they do not know, and take any text for the
address of a server.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from smalti.errors import MissingDependency, StoreError
from smalti.storage.schemes import SCHEMES, Scheme

MAX_ATTEMPTS, MAX_SECONDS = 1000, 604_800
"""Limits of the options of retries."""
RETRY_OPTIONS = ("request_attempts", "request_timeout")
"""Options that every store takes."""
_FSSPEC_OPTIONS = (
    "use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous", "loop",
    "batch_size", "trust_env",
)  # fmt: skip
_URLS = ("proxy", "endpoint_url", "sts_endpoint_url", "endpoint")
"""Options that are the URL of a server, also in `client_kwargs`."""


def check_options(scheme: Scheme, options: Mapping[str, Any]) -> None:
    """Check the names of storage options.

    The client library is imported only if a name is none of the usual ones.

    Raises:
        StoreError: the scheme takes no option of this name.
    """
    known = {*RETRY_OPTIONS, *_FSSPEC_OPTIONS, *scheme.named_options, *scheme.usual_options}
    unknown = [name for name in options if name not in known]
    homes = {name: other.name for other in reversed(SCHEMES) for name in other.named_options}
    for name in unknown:
        if name in homes:
            raise StoreError(
                f"the storage option `{name}` is not one of {scheme.name}://, but of {homes[name]}://", option=name
            )
    if not unknown or not hasattr(scheme.backend, "option_names"):
        return
    try:
        known |= scheme.backend.option_names()
    except MissingDependency:
        return  # the first use of the store raises it
    for name in unknown:
        if name not in known:
            near = difflib.get_close_matches(str(name), sorted(known), n=2)
            advice = (
                f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
                if near
                else "docs/storage.md says which it takes"
            )
            raise StoreError(f"{scheme.name}:// has no storage option `{name!s:.60}`; {advice}", option=str(name))


def check_urls(options: Mapping[str, Any]) -> None:
    """Check the form of the URLs of servers and proxies in storage options.

    Raises:
        StoreError: one is not the URL of a server; the message does not repeat it, because it may hold a password.
    """
    for name, value in _urls_of(options):
        problem = _problem_of(value)
        if problem:
            is_proxy = "prox" in name
            kind = "address of an HTTP proxy" if is_proxy else "URL of a server"
            login = "; a login goes before the host, as user:password@" if is_proxy else ""
            raise StoreError(
                f"the storage option `{name}` is not the {kind}: {problem}; expected http://host:port{login}",
                option=name,
            )


def take_limits(options: dict[str, Any]) -> tuple[int, float]:
    """Remove the limits of operations from storage options, and return the attempts and the seconds of each.

    Raises:
        StoreError: one is not a number, or out of range.
    """
    attempts, timeout = options.pop("request_attempts", 5), options.pop("request_timeout", 60.0)
    if not (isinstance(attempts, int) and 1 <= attempts <= MAX_ATTEMPTS):
        raise StoreError(
            f"the storage option `request_attempts` is {attempts!r:.60}, expected a whole number from 1 to "
            f"{MAX_ATTEMPTS:,}"
        )
    if not (isinstance(timeout, int | float) and 0 < timeout <= MAX_SECONDS):
        raise StoreError(
            f"the storage option `request_timeout` is {timeout!r:.60}, expected seconds above 0, up to {MAX_SECONDS:,}"
        )
    return attempts, float(timeout)


def parameters_of(*functions: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments of functions, and of classes with their bases, without *args and **kwargs."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found: set[str] = set()
    for function in functions:
        parts = (
            [vars(base)["__init__"] for base in inspect.getmro(function) if "__init__" in vars(base)]
            if (inspect.isclass(function))
            else [function]
        )
        for part in parts:
            found |= {each.name for each in inspect.signature(part).parameters.values() if each.kind in named}
    return found - {"self"}


def _urls_of(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    client, config = (options.get(name) or {} for name in ("client_kwargs", "config_kwargs"))
    yield from ((name, options[name]) for name in _URLS if options.get(name))
    if isinstance(client, Mapping) and client.get("endpoint_url"):
        yield "client_kwargs", client["endpoint_url"]
    proxies = config.get("proxies") if isinstance(config, Mapping) else None
    if isinstance(proxies, Mapping):
        yield from (("config_kwargs.proxies", proxy) for proxy in proxies.values() if proxy)


def _problem_of(url: Any) -> str:
    """Return why a value is not the URL of a server; "" if it is one."""
    if not isinstance(url, str):
        return f"found {type(url).__name__}"
    if any(character.isspace() or not character.isprintable() for character in url):
        return "there is a blank or a control character in it"
    try:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            return "it does not begin with http:// or https://"
        if not parts.hostname:
            return "it names no host"
        if parts.port == 0:
            return "its port is 0"
    except ValueError:
        return "its port or its host is malformed; special characters of a password are written as %XX"
    return (
        "it has a query or a fragment; special characters of a password are written as %XX"
        if (parts.query or parts.fragment)
        else ""
    )
