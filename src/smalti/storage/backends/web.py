"""Files on a web server, read only, through fsspec's client with correct errors and ranges.

fsspec's own client reports every refused HEAD as "not found", and returns the whole body if a server ignores the range.
Whole files are streams of one request, which is continued by a range after a broken connection.
"""

import functools
import importlib
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from fsspec.asyn import sync

from smalti.errors import StoreError
from smalti.process import PerProcess
from smalti.redaction import redact_address
from smalti.storage.backends.bodies import CHUNK_BYTES, PARTIAL, bound_responses
from smalti.storage.object_store import Body, ChangedError, FsspecReader
from smalti.storage.options import parameters_of
from smalti.storage.retry import CONNECT_SECONDS, READ_SECONDS
from smalti.storage.schemes import Address, load_extra

PIECE_BYTES = 1 << 20
"""Most bytes of a piece of a stream."""
PLAIN = "/:@!$&'()*+,;=-._~"
"""Characters of a path that are not percent-encoded."""
_OWN_HEADERS = frozenset({"Accept-Encoding", "Range", "If-Range"})
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
    """Make a file system for http and https addresses.

    With the option `exact_address`, every request goes to that address, as it is written: for one file whose address
    is signed. Its query may be secret.
    """
    exact_address = options.pop("exact_address", None)
    filesystem = web_class()(**settings(options))
    filesystem.exact_address = exact_address
    return filesystem


def settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with time limits, and without fsspec's caches."""
    aiohttp = load_extra("aiohttp")
    limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check_redirect)
    client = dict(options.get("client_kwargs") or {})
    client["trace_configs"] = [*client.get("trace_configs", ()), trace]
    settings = {"timeout": limits, "skip_instance_cache": True, "use_listings_cache": False, **options}
    return settings | {"client_kwargs": client}


async def _check_redirect(session: Any, context: Any, redirect: Any) -> None:  # noqa: ARG001 -- aiohttp's
    """Remove the caller's headers from a redirect to another server; aiohttp itself removes `Authorization`.

    Raises:
        StoreError: the server redirects from https to http.
    """
    target = redirect.response.headers.get("Location", "")
    if redirect.url.scheme == "https" and target.lower().startswith("http:"):
        redirect.response.close()
        raise StoreError(
            f"{redact_address(str(redirect.url))}: the server redirects from https:// to {redact_address(target)}, "
            "which is not followed; give the address of the file itself",
            url=redact_address(str(redirect.url)),
        )
    if not is_same_server(str(redirect.url), target):
        for name in set(redirect.headers) - _OWN_HEADERS:
            redirect.headers.popall(name)


async def _response(address: str, request: Any) -> Any:
    """Return the response to a request.

    Raises:
        StoreError: the server redirects to an address that is not followed. The location may be secret, and is neither
            in the message nor in a cause.
    """
    aiohttp = importlib.import_module("aiohttp")
    reason = "to an address that is not http:// or https://, which is not followed"
    with suppress(aiohttp.NonHttpUrlClientError, aiohttp.InvalidURL):
        try:
            return await request
        except aiohttp.TooManyRedirects:
            reason = "too often, perhaps in a loop"
    raise StoreError(
        f"{redact_address(address)}: the server redirects {reason}; give the address that it leads to",
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

        exact_address: str | None = None

        def _address(self, url: str) -> str:
            scheme, _, rest = url.partition("://")
            host, slash, path = rest.partition("/")
            return self.exact_address or f"{scheme}://{host}{slash}{quote(path, safe=PLAIN)}"

        def _login(self) -> dict[str, str]:
            return {}

        async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            begin = start or 0
            ranged = start is not None or end is not None
            headers = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if ranged else {}
            async with await self._request("get", self._address(url), headers) as reply:
                reply.raise_for_status()
                body = bytes(await reply.read())  # of the range alone, also if the server ignored it
                is_part = ranged and reply.status == PARTIAL
                if is_part and not _is_span(reply.headers.get("Content-Range", ""), begin, end, len(body)):
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
                known = _whole_size(reply)
                if known >= 0:
                    return _described(url, known, reply.headers)
            async with await self._request("get", self._address(url), {}) as reply:
                reply.raise_for_status()
                return _described(url, await _count(reply), reply.headers)

        async def _request(self, method: str, address: str, headers: dict[str, str], *, is_own: bool = True) -> Any:
            session = bound_responses(await self.set_session())
            options = {**self.kwargs, "allow_redirects": True}
            # A server that compresses responses would change sizes and ranges.
            logins = {**self._login(), **options.pop("headers", {})}
            sent = {"Accept-Encoding": "identity", **(logins if is_own else {}), **headers}
            request = session.request(method, yarl.URL(address, encoded=True), headers=sent, **options)
            return await _response(address, request)

        async def _find(self, url: str, **_: Any) -> Any:
            raise StoreError(f"{url}: a web server cannot be listed; name the shard set itself", url=url)

    return WebFileSystem


async def _open_body(filesystem: Any, url: str, begin: int, tag: str) -> Any:
    """Return the response with the rest of a file, from byte `begin` on, also of a server that ignores the range."""
    headers = {"Range": f"bytes={begin}-", "If-Range": tag} if begin else {}
    reply = await filesystem._request("get", filesystem._address(url), headers)
    try:
        reply.raise_for_status()
        _check_part(url, reply, begin, tag)
    except BaseException:
        reply.close()
        raise
    return reply


def _check_part(url: str, reply: Any, begin: int, tag: str) -> None:
    """Return only if a response is the file from byte `begin` on, or the whole file, of which the rest is read.

    Raises:
        ChangedError: it is not the content with this tag.
        StoreError: it is another part of the file, or none.
    """
    if begin and tag not in {"", _mark(reply.headers)}:
        raise ChangedError(f"another file than before ({_mark(reply.headers)}, not {tag})")
    if reply.status in {200, 203}:
        return
    if not begin or reply.status != PARTIAL:
        raise StoreError(f"{url}: expected status 200, found {reply.status}; check the address", url=url)
    if not reply.headers.get("Content-Range", f"bytes {begin}-").startswith(f"bytes {begin}-"):
        raise StoreError(f"{url}: the server sent another part of it than was requested", url=url)


class WebReader(FsspecReader):
    """A reader that gets a whole file by one request: a server that ignores ranges sends the file for each of them."""

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """Open the file from byte `begin` on; with a tag only if the content still has it."""
        filesystem = self._connection.get()
        wait = partial(sync, filesystem.loop, timeout=timeout)
        reply = wait(_open_body, filesystem, path, begin, tag)
        close = partial(filesystem.loop.call_soon_threadsafe, reply.close)
        pieces = iter(lambda: bytes(wait(reply.content.read, PIECE_BYTES)), b"")
        return Body(_mark(reply.headers), _whole_size(reply), pieces, close)


def make_reader(options: Mapping[str, Any], connection: PerProcess[Any], timeout: float) -> WebReader:  # noqa: ARG001 -- the registry's signature
    """Return the reader of files on web servers."""
    return WebReader(connection)


def _whole_size(reply: Any) -> int:
    """Return the size of the whole file, bytes; -1 if the response does not say it."""
    total = reply.headers.get("Content-Range", "").rpartition("/")[2]
    if reply.headers.get("Content-Encoding") not in {None, "identity"}:
        return -1  # it was unpacked
    declared = total if reply.status == PARTIAL else reply.headers.get("Content-Length", "")
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 20 else -1


def _mark(headers: Any) -> str:
    return str(headers.get("ETag") or headers.get("Last-Modified") or "")


def _is_span(content_range: str, begin: int, end: int | None, num_bytes: int) -> bool:
    """Return whether a body is the requested span, by its header `bytes <first>-<last>/<total>`. Pure."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if found is None:
        return not content_range  # some servers omit the header
    first, total = found.groups()
    if int(first) != begin or total == "*":
        return int(first) == begin
    return num_bytes >= min(int(total), int(total) if end is None else end) - begin


async def _count(reply: Any) -> int:
    """Return the number of bytes of a body, which is read for that."""
    size = 0
    while piece := await reply.content.read(CHUNK_BYTES):
        size += len(piece)
    return size


def _described(url: str, size: int, headers: Any) -> dict[str, Any]:
    return {"name": url, "size": size, "type": "file", "ETag": _mark(headers)}
