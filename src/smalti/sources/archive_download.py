"""The bytes of an archive: its source as an open local file, and downloads from any store, http(s) servers included.

A download has one deadline over the whole transfer, within which the store retries and continues broken connections.
Errors and descriptions contain no secrets of the address.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from smalti.errors import FormatError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout
from smalti.regular_files import open_regular
from smalti.storage import Store, open_store
from smalti.storage.redact import (
    address_secrets,
    has_login,
    raise_clean,
    redact,
    redact_address,
    unsigned_address,
)
from smalti.storage.retry import TransferDeadline

_NOT_ENCODED = "!#$%&'()*+,/:;=?@[]~"  # characters of an address; "%" because it may be encoded already
SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip")
_ADDRESSES = re.compile(r"^(?:cannot read )?\S+://\S+: ")
"""Begin of the messages of stores, whose address is shown already."""
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
        secrets = address_secrets(self.address) if _is_web(self.address) else ()
        with scratch.open("xb") as out:

            def check(chunk: bytes) -> None:
                deadline.progress(len(chunk))
                if out.tell() + len(chunk) > max_bytes:
                    raise too_large(self.shown, max_bytes)

            try:
                deadline.progress(0)
                store, key = self._store(download_timeout)
                store.fetch(key, out, on_chunk=check)
            except StoreError as error:
                raise_clean(_fetch_error(error, self.shown, secrets, deadline), error, secrets)

    def _store(self, download_timeout: float) -> tuple[Store, str]:
        """Return the store of the archive, and its key there."""
        if not _is_web(self.address):
            parent, _, name = self.address.rpartition("/")
            return open_store(f"{parent}/"), name
        address = _encoded(self.address.partition("#")[0])
        server = "/".join(_path_of(self.address).split("/", 3)[:3])
        options = {
            "exact_address": address,
            "request_timeout": download_timeout,
            "client_kwargs": {"trust_env": True},  # proxies
        }
        return open_store(server, options), PurePosixPath(_path_of(address)).name


def _encoded(address: str) -> str:
    """Return the address with its path and query in ASCII, as a browser sends it."""
    scheme, _, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{quote(path, safe=_NOT_ENCODED)}"


def _fetch_error(error: StoreError, shown: str, secrets: tuple[str, ...], deadline: TransferDeadline) -> StoreError:
    """Return the error of a download for a person who gave only an address, without its secrets."""
    if isinstance(error, StoreTimeout):
        return deadline.error()
    if isinstance(error, StoreNotFound):
        return StoreNotFound(f"{shown}: there is no such file; check the address", source=shown)
    if isinstance(error, StoreAuthError):
        return StoreAuthError(
            f"{shown}: the server refuses access; a signed address may have expired: sign it again",
            source=shown,
        )
    detail = _ADDRESSES.sub("", " ".join(redact(error.message, secrets).split()))[:400]
    return StoreError(
        f"{shown} cannot be fetched ({detail}); check the address and the network, or download the file by other means "
        "and give its path",
        source=shown,
    )


def too_large(shown: str, max_bytes: int) -> FormatError:
    """Return the error for an archive that is larger than its limit."""
    return FormatError(
        f"{shown} is larger than the limit of {max_bytes:,} bytes; raise `ArchiveLimits.max_bytes` if it should be",
        source=shown,
    )
