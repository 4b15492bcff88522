"""Downloads by http(s), with one deadline over the whole transfer and Smalti's errors without secrets."""

import io
import socket
from collections.abc import Generator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import (
    AbstractHTTPHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from smalti.errors import FormatError, SmaltiError, StoreAuthError, StoreError, StoreNotFound
from smalti.storage.redact import MASK, address_secrets, raise_clean, redact, redact_address
from smalti.storage.retry import TransferDeadline

_CHUNK_BYTES = 1 << 20
_NOT_ENCODED = "!#$%&'()*+,/:;=?@[]~"  # characters of an address; "%" because it may be encoded already


def download(url: str, *, max_bytes: int, deadline: TransferDeadline) -> Generator[bytes]:
    """Yield the content of an http(s) address.

    Args:
        url: May be signed; no part of its query appears in an error.
        max_bytes: The largest size that is accepted.
        deadline: Deadline of the whole transfer, connecting and redirects included; its size is set here.

    Raises:
        StoreNotFound: the server has no such file.
        StoreAuthError: the server refuses access.
        StoreTimeout: the deadline passed.
        StoreError: no response, a broken one, or a redirect to another protocol.
        FormatError: more than `max_bytes`.
    """
    shown, secrets = redact_address(url), address_secrets(url)
    try:
        request = Request(_encoded(url), headers={"User-Agent": "smalti"})  # noqa: S310 -- http or https
        with closing(_opener(shown, deadline).open(request, timeout=_wait(deadline))) as reply:
            response = cast("HTTPResponse", reply)
            deadline.size = _declared_size(response, shown, secrets)
            yield from _chunks(response, shown, max_bytes, deadline)
    except SmaltiError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        store_error = _store_error(error, shown, secrets, deadline)
        cause: Exception = error
        if isinstance(error, HTTPError):
            error.close()
            cause = RuntimeError(redact(str(error), secrets))  # the error itself contains the target of a redirect
        raise_clean(store_error, cause, secrets)


def _encoded(url: str) -> str:
    """Return the address with its path and query in ASCII, as a browser sends it."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{quote(path, safe=_NOT_ENCODED)}"


def _wait(deadline: TransferDeadline) -> float:
    """Return the timeout for a socket, never 0, which would mean non-blocking."""
    return max(deadline.remaining(), 0.001)


def _chunks(reply: HTTPResponse, shown: str, max_bytes: int, deadline: TransferDeadline) -> Generator[bytes]:
    expected, received = deadline.size, 0
    while True:
        if max(received, expected or 0) > max_bytes:
            raise too_large(shown, max_bytes)
        chunk = reply.read1(_CHUNK_BYTES)
        if not chunk:
            break
        received += len(chunk)
        deadline.progress(len(chunk))
        yield chunk
    if expected not in {None, received}:
        raise StoreError(f"{shown}: expected {expected} bytes, received {received}; try again", source=shown)


def too_large(shown: str, max_bytes: int) -> FormatError:
    """Return the error for an archive that is larger than its limit."""
    return FormatError(
        f"{shown} is larger than the limit of {max_bytes:,} bytes; raise `ArchiveLimits.max_bytes` if it should be",
        source=shown,
    )


def _declared_size(reply: HTTPResponse, shown: str, secrets: tuple[str, ...]) -> int | None:
    if reply.status not in {200, 203}:
        raise StoreError(f"{shown}: expected status 200, found {reply.status}; check the address", source=shown)
    declared = reply.headers.get("Content-Length")
    if declared is None or reply.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return None
    if not (declared.isascii() and declared.isdigit() and len(declared) < 20):
        raise StoreError(
            f"{shown}: the server sent a Content-Length that is not a number ({redact(declared, secrets)[:40]!r}); "
            "try again, or download the file by other means and give its path",
            source=shown,
        )
    return int(declared)


def _store_error(error: Exception, shown: str, secrets: tuple[str, ...], deadline: TransferDeadline) -> StoreError:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, TimeoutError):
        return deadline.error()
    detail = " ".join(redact(str(error) or type(error).__name__, secrets).split())[:400]
    status = error.code if isinstance(error, HTTPError) else None
    if status in {404, 410}:
        return StoreNotFound(f"{shown}: the server has no such file ({detail})", source=shown)
    if status in {401, 403}:
        return StoreAuthError(
            f"{shown}: the server refuses access ({detail}); a signed address may have expired: sign it again",
            source=shown,
        )
    return StoreError(
        f"{shown} cannot be fetched ({detail}); check the address and the network, or download the file by other means "
        "and give its path",
        source=shown,
    )


# ---------------------------------------------------------------- redirects


class _Redirects(HTTPRedirectHandler):
    """A handler that follows redirects to http and https, but not from https to http."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def http_error_302(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any) -> Any:
        """Follow a redirect, or reject it before urllib shows its location, which may contain secrets."""
        fp.close()  # otherwise urllib reads its body, of any size, into memory
        location = urljoin(req.full_url, headers.get("location") or headers.get("uri") or "")
        target = urlsplit(location).scheme
        if target not in {"http", "https"} or (target, req.type) == ("http", "https"):
            shown = redact_address(location) if "://" in location else f"{target}:{MASK}"
            raise StoreError(
                f"{self._shown}: the server redirects from {req.type}:// to {shown}, which is not "
                "followed; give the address of the file itself",
                source=self._shown,
            )
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener(shown: str, deadline: TransferDeadline) -> OpenerDirector:
    """Return an opener for http and https only: urllib's default one also opens files and FTP."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(), UnknownHandler(), _Web(deadline), HTTPDefaultErrorHandler(), _Redirects(shown),
        HTTPErrorProcessor(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


# ---------------------------------------------------------------- deadline


class _TimedConnection(HTTPConnection):
    def __init__(self, host: str, *, deadline: TransferDeadline, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self.sock = cast("socket.socket", TimedSocket(self.sock, self._deadline))


class _SecureTimedConnection(_TimedConnection, HTTPSConnection):
    pass


class _Web(AbstractHTTPHandler):
    def __init__(self, deadline: TransferDeadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(cast("Any", _TimedConnection), request, deadline=self._deadline)

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(cast("Any", _SecureTimedConnection), request, deadline=self._deadline)

    http_request = https_request = AbstractHTTPHandler.do_request_


class TimedSocket:
    """The part of a socket that `http.client` uses, under the deadline of a transfer.

    A timeout of the socket alone would restart with each byte. Only content counts as progress, headers do not, so that
    a server cannot send them without end.
    """

    def __init__(self, inner: socket.socket, deadline: TransferDeadline) -> None:
        self._inner, self._deadline = inner, deadline

    def sendall(self, data: Any) -> None:
        """Send all bytes."""
        self._inner.settimeout(_wait(self._deadline))
        self._inner.sendall(data)

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return a file that reads from the socket."""
        return io.BufferedReader(_TimedReader(self._inner, self._deadline))

    def close(self) -> None:
        """Close the socket, once the files that read from it are closed."""
        self._inner.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, inner: socket.socket, deadline: TransferDeadline) -> None:
        self._inner, self._deadline = inner, deadline
        self._raw = inner.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._deadline.progress(0)
        self._inner.settimeout(_wait(self._deadline))
        try:
            received = self._raw.readinto(buffer) or 0
        except TimeoutError:
            raise self._deadline.error() from None
        self._deadline.progress(0)
        return received

    def close(self) -> None:
        self._raw.close()
        super().close()
