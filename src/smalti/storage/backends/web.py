"""Files on a web server, read only, through fsspec's client with correct errors and ranges.

fsspec's own client reports every refused HEAD as "not found", and returns the whole body if a server ignores the range.
"""

import functools
import importlib
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from smalti.errors import StoreError
from smalti.storage.options import parameters_of
from smalti.storage.redact import redact_address
from smalti.storage.retry import CONNECT_SECONDS, READ_SECONDS
from smalti.storage.schemes import Address, load_extra

PLAIN = "/:@!$&'()*+,;=-._~"
"""Characters of a path that are not percent-encoded."""
_OWN_HEADERS = frozenset({"Accept-Encoding", "Range"})
"""Headers that this module adds; they contain no login."""


def parse_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address https://host:port/path; the path may be percent-encoded. Pure."""
    url = f"{scheme}://{host}/{unquote(prefix)}".rstrip("/")
    return Address(scheme, url, url, options)


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the interface of all schemes
    """Return the server's address. Pure."""
    return root


def option_names() -> set[str]:
    """Return the names of all options of fsspec's file system and of a request of aiohttp."""
    aiohttp = load_extra("aiohttp")
    return parameters_of(web_class(), aiohttp.ClientSession._request)


def make(options: dict[str, Any]) -> Any:
    """Make a file system for http and https addresses."""
    return web_class()(**settings(options))


def settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with time limits, and without fsspec's caches."""
    aiohttp = load_extra("aiohttp")
    limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_remove_logins)
    client = dict(options.get("client_kwargs") or {})
    client["trace_configs"] = [*client.get("trace_configs", ()), trace]
    settings = {"timeout": limits, "skip_instance_cache": True, "use_listings_cache": False, **options}
    return settings | {"client_kwargs": client}


async def _remove_logins(session: Any, context: Any, redirect: Any) -> None:  # noqa: ARG001 -- aiohttp's
    """Remove the caller's headers from a redirect to another server; aiohttp itself removes `Authorization`."""
    if not is_same_server(str(redirect.url), redirect.response.headers.get("Location", "")):
        for name in set(redirect.headers) - _OWN_HEADERS:
            redirect.headers.popall(name)


async def _response(address: str, request: Any) -> Any:
    """Return the response to a request.

    Raises:
        StoreError: the server redirects to an address that is not followed. The location may be secret, and is neither
            in the message nor in a cause.
    """
    aiohttp = importlib.import_module("aiohttp")
    with suppress(aiohttp.NonHttpUrlClientError, aiohttp.InvalidURL):
        return await request
    raise StoreError(
        f"{redact_address(address)}: the server redirects to an address that is not http:// or https://, which is not "
        "followed; give the address of the set itself",
        url=redact_address(address),
    )


def is_same_server(address: str, target: str) -> bool:
    """Return whether a target, which may be relative, has the same scheme, host and port. Pure."""
    url = importlib.import_module("yarl").URL
    try:
        return bool(url(address).join(url(target)).origin() == url(address).origin())
    except ValueError:  # not an address
        return False


@functools.cache
def web_class() -> Any:
    """Return the class of file systems for the web; imports aiohttp on the first call."""
    load_extra("aiohttp")
    web = importlib.import_module("fsspec.implementations.http")
    yarl = importlib.import_module("yarl")  # a dependency of aiohttp

    class WebFileSystem(web.HTTPFileSystem):  # type: ignore[misc, name-defined]
        """Ranged reads and sizes; no listing, because web servers have no reliable one."""

        def _address(self, url: str) -> str:
            scheme, _, rest = url.partition("://")
            host, slash, path = rest.partition("/")
            return f"{scheme}://{host}{slash}{quote(path, safe=PLAIN)}"

        def _login(self) -> dict[str, str]:
            return {}

        async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            begin = start or 0
            ranged = start is not None or end is not None
            headers = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if ranged else {}
            async with await self._request("get", self._address(url), headers) as reply:
                reply.raise_for_status()
                body = bytes(await reply.read())
                if ranged and reply.status != 206:
                    return body[begin:end]  # the server ignored the range
                if ranged and not _is_span(reply.headers.get("Content-Range", ""), begin, end, len(body)):
                    raise StoreError(f"{url}: the server sent another part of it than was requested", url=url)
                return body

        async def _info(self, url: str, **_: Any) -> dict[str, Any]:
            async with await self._request("head", self._address(url), {}) as reply:
                if reply.status not in {405, 501}:
                    reply.raise_for_status()
                    size = reply.headers.get("Content-Length")
                    if size is not None:
                        return _described(url, int(size), reply.headers)
            async with await self._request("get", self._address(url), {"Range": "bytes=0-0"}) as reply:
                reply.raise_for_status()
                total = reply.headers.get("Content-Range", "").rpartition("/")[2]
                if reply.status == 206 and total.isdigit():
                    return _described(url, int(total), reply.headers)
                return _described(url, len(await reply.read()), reply.headers)

        async def _request(self, method: str, address: str, headers: dict[str, str], *, is_own: bool = True) -> Any:
            session = await self.set_session()
            options = {**self.kwargs, "allow_redirects": True}
            # A server that compresses responses would change sizes and ranges.
            logins = {**self._login(), **options.pop("headers", {})}
            sent = {"Accept-Encoding": "identity", **(logins if is_own else {}), **headers}
            request = session.request(method, yarl.URL(address, encoded=True), headers=sent, **options)
            return await _response(address, request)

        async def _find(self, url: str, **_: Any) -> Any:
            raise StoreError(f"{url}: a web server cannot be listed; name the shard set itself", url=url)

    return WebFileSystem


def _is_span(content_range: str, begin: int, end: int | None, num_bytes: int) -> bool:
    """Return whether a body is the requested span, by its header `bytes <first>-<last>/<total>`. Pure."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if found is None:
        return not content_range  # some servers omit the header
    first, total = found.groups()
    if int(first) != begin or total == "*":
        return int(first) == begin
    return num_bytes >= min(int(total), int(total) if end is None else end) - begin


def _described(url: str, size: int, headers: Any) -> dict[str, Any]:
    mark = headers.get("ETag") or headers.get("Last-Modified") or ""
    return {"name": url, "size": size, "type": "file", "ETag": mark}
