"""The bytes of an archive: its source as an open local file, and downloads by http(s).

A download has one deadline over the whole transfer. Errors and descriptions contain no secrets of the address.
"""

import hashlib
import io
import re
import socket
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast
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
from smalti.regular_files import open_regular
from smalti.storage import open_store
from smalti.storage.redact import (
    MASK,
    address_secrets,
    has_login,
    raise_clean,
    redact,
    redact_address,
    unsigned_address,
)
from smalti.storage.retry import TransferDeadline

_CHUNK_BYTES = 1 << 20
_NOT_ENCODED = "!#$%&'()*+,/:;=?@[]~"  # characters of an address; "%" because it may be encoded already
SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|dbfs:|/Volumes/")


def is_archive(source: str) -> bool:
    """Return whether a path or URL names an archive that `fetch_archive` unpacks."""
    return _path_of(source).lower().endswith(SUFFIXES)


def describe_archive(source: str) -> str:
    """Return the address of an archive without secrets; equal for addresses of the same archive.

    Raises:
        SmaltiError: the address is not one of an archive, or it is refused.
    """
    archive = ArchiveSource.parse(source)
    if not _is_web(source):
        return archive.shown
    place = re.split(r"[?#]", archive.shown, maxsplit=1)[0]
    # The rest of the query may identify the archive, and may be secret.
    return f"{place}?*** ({archive.digest[:12]})" if "?" in unsigned_address(source) else place


def _path_of(source: str) -> str:
    """Return the source without query and fragment; in a path "?" and "#" have no meaning, in a store's key "#"."""
    if _is_web(source):
        return re.split(r"[?#]", source, maxsplit=1)[0]
    return source.split("?", 1)[0] if _ADDRESS.match(source) else source


def _is_web(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


@dataclass(frozen=True)
class ArchiveSource:
    """An archive at a path or URL."""

    address: str = field(repr=False)
    """The full address, which may be signed: only for reading."""
    shown: str
    """The address for messages and notes, without secrets."""
    file: Path | None
    """Its path on this machine; None if it must be downloaded."""

    @classmethod
    def parse(cls, source: str) -> "ArchiveSource":
        """Return the source of a path or URL.

        Raises:
            FormatError: the name is not one of an archive.
            StoreError: the address contains a password, or a query although it is not http(s).
        """
        shown = redact_address(source)
        if not is_archive(source):
            raise FormatError(
                f"{shown} is no archive that can be unpacked: expected a name ending in {SUFFIXES}", source=shown
            )
        if _is_web(source):
            if has_login(source):
                raise StoreError(
                    f"{shown}: no user or password in an address; give a signed address, or download the file by other "
                    "means and give its path",
                    source=shown,
                )
            return cls(source, shown, None)
        if not _ADDRESS.match(source):
            return cls(source, shown, Path(source).expanduser())
        if "?" in source or redact(source) != source:
            raise StoreError(
                f"{shown}: no password, signature or token in an address of a store; set them in the environment",
                source=shown,
            )
        parent, _, name = source.rpartition("/")
        return cls(source, shown, open_store(f"{parent}/").local_path(name))

    @property
    def is_zip(self) -> bool:
        """True for a zip, False for a tar, by its name."""
        return _path_of(self.address).lower().endswith(".zip")

    @property
    def name(self) -> str:
        """Name of the file without its suffixes."""
        return PurePosixPath(_path_of(self.address)).name.split(".", 1)[0]

    @property
    def digest(self) -> str:
        """SHA-256 of the identity of the archive: an unpacked folder with the same digest is reused.

        The identity is the address without its signature, or path, size and modification time of a local file.
        """
        identity = unsigned_address(self.address) if _is_web(self.address) else self.address
        if self.file is not None:
            with suppress(OSError):  # `opened` raises it
                stat = self.file.stat()
                identity = f"{self.file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()

    @contextmanager
    def opened(self, scratch: Path, *, max_bytes: int, download_timeout: float) -> Iterator[BinaryIO]:
        """Open the archive, after a download to `scratch` unless it is on this machine.

        Raises:
            StoreNotFound: no such file or URL.
            StoreTimeout: the download did not end in time.
            StoreError: the source cannot be read.
            FormatError: it is larger than `max_bytes`.
        """
        if self.file is None:
            self._download(scratch, max_bytes, download_timeout)
        with self._open(self.file or scratch) as archive:
            yield archive

    def _open(self, path: Path) -> BinaryIO:
        try:
            return open_regular(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass
        except PermissionError as error:
            raise StoreAuthError(f"{self.shown}: no permission to read it", source=self.shown) from error
        except OSError as error:
            raise StoreError(f"{self.shown} cannot be read: {error.strerror}", source=self.shown) from error
        raise StoreNotFound(f"{self.shown}: there is no such archive; check the path", source=self.shown)

    def _download(self, scratch: Path, max_bytes: int, download_timeout: float) -> None:
        deadline = TransferDeadline(download_timeout, None, what=self.shown, source=self.shown)
        with scratch.open("xb") as out:
            if _is_web(self.address):
                with closing(download(self.address, max_bytes=max_bytes, deadline=deadline)) as chunks:
                    for chunk in chunks:
                        out.write(chunk)
                return

            def check(chunk: bytes) -> None:
                deadline.progress(len(chunk))
                if out.tell() + len(chunk) > max_bytes:
                    raise too_large(self.shown, max_bytes)

            parent, _, name = self.address.rpartition("/")
            open_store(f"{parent}/").fetch(name, out, on_chunk=check)


def download(url: str, *, max_bytes: int, deadline: TransferDeadline) -> Generator[bytes]:
    """Yield the content of an http(s) address; no part of its query, which may be signed, appears in an error.

    The deadline is that of the whole transfer, connecting and redirects included; its size is set here.

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
