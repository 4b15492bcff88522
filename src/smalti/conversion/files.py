"""Files as sources: the files at a path, URL or pattern, their identity, and reading one from any store.

Also here: one file of a source, with where it is, and its bytes as a stream, decompressed where its name shows a
compression.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from smalti.conversion.exported import check_numbers, exported_files, read_export
from smalti.conversion.source import OpenedSource, SourcePart, changed
from smalti.errors import FormatError, SmaltiError, StoreError, StoreNotFound
from smalti.format import load_strict
from smalti.format.index import MAX_INDEX_BYTES
from smalti.redaction import redact, redact_address
from smalti.regular_files import open_regular, printable
from smalti.sources.listing import OTHER_KIND, LeftOut, list_source
from smalti.storage import ObjectInfo, Place, Store, open_store
from smalti.storage.opening import INSIDE, check_apart, check_secrets, relation_of
from smalti.storage.store import join_key

_WILDCARD = re.compile(r"[*?]")
_BUFFER_BYTES = 4 << 20
"""Bytes that sequential readers of remote files ask for at once."""


class Files(Protocol):
    """Readable files by key: a store, or a file system of pyarrow."""

    url: str

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a file; fewer if it ends before."""

    def locate(self, key: str) -> str:
        """Return the full address of a file, for messages."""

    def local_path(self, key: str) -> Path | None:
        """Return the file's path if it is on a local disk, else None."""


class _PatternState(dict[str, "_PatternState"]):
    """A state of the search for a pattern; the next character leads to the next state, which is made when needed.

    It is a set of places in the pattern, so that one pass over a key decides, whatever the pattern is. Place 2n is
    before piece n, and 2n + 1 within a folder of a piece `**/`.
    """

    def __init__(
        self, pieces: Sequence[str], places: frozenset[int], states: "dict[frozenset[int], _PatternState]"
    ) -> None:
        self._pieces, self._places, self._states = pieces, places, states
        self.is_match = 2 * len(pieces) in places
        """True if the characters so far match the pattern."""

    def __missing__(self, char: str) -> "_PatternState":
        after: set[int] = set()
        for place in self._places:
            number, is_inside = divmod(place, 2)
            piece = self._pieces[number] if number < len(self._pieces) else None
            if piece == "**/" and char != "/":
                after.add(2 * number + 1)
            elif piece == "**/" and is_inside:
                after.add(2 * number)
            elif piece == "**" or (piece == "*" and char != "/"):
                after.add(place)
            elif piece == char or (piece == "?" and char != "/"):
                after.add(place + 2)
        places = _with_empty(self._pieces, after)
        self[char] = self._states.setdefault(places, _PatternState(self._pieces, places, self._states))
        return self[char]


def _with_empty(pieces: Sequence[str], places: set[int]) -> frozenset[int]:
    """Return the places with those behind pieces that match nothing at all."""
    found = set(places)
    for place in range(0, 2 * len(pieces), 2):
        if place in found and pieces[place // 2] in {"*", "**", "**/"}:
            found.add(place + 2)
    return frozenset(found)


@dataclass(frozen=True)
class Pattern:
    """The keys of a source: all, one, or those of a pattern.

    `*` and `?` stay within a folder, `**/` is any number of folders, and `**` any characters.
    """

    text: str = ""
    is_key: bool = False
    """True if the text is a key, whose characters have no other meaning."""

    def __bool__(self) -> bool:
        """Return whether there is a pattern: without one, all keys match."""
        return bool(self.text)

    def predicate(self) -> Callable[[str], bool]:
        """Return the function that says whether a key matches; it takes time that is linear in the key's length."""
        pieces = re.findall(r"\*\*/|\*\*|.", self.text, re.DOTALL)
        first = _PatternState(pieces, _with_empty(pieces, {0}), {})

        def matches(key: str) -> bool:
            state = first
            for char in key:
                state = state[char]
            return state.is_match

        return self.text.__eq__ if self.is_key else matches


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source at one moment."""

    store: Store
    """Store that has the files."""
    files: tuple[ObjectInfo, ...]
    """Sorted by key; hidden files are left out."""
    url: str
    """Address that was asked for, without secrets."""
    pattern: "Pattern" = field(default_factory=Pattern)
    """Pattern that the keys match."""
    export: Mapping[str, Any] | None = None
    """Record of the export that these files are; None if they are none."""
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)
    """Files that were left out, such as hidden ones."""
    is_wanted: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    """Predicate of the keys of the source's files; None for all files."""

    def wanted(self, is_wanted: Callable[[str], bool], *, what: str) -> "SourceFiles":
        """Return the files whose keys are wanted; all of them where a pattern chose them. Others count as left out.

        Raises:
            StoreNotFound: There is none; or some of those with numbers in their names are missing.
            FormatError: Numbers in their names are too large.
        """
        if self.pattern:
            return self
        chosen = tuple(file for file in self.files if is_wanted(file.key))
        if not chosen:
            raise StoreNotFound(f"{self.url}: {what}", url=self.url)
        check_numbers((file.key for file in chosen), self.store.locate)
        for file in self.files:
            if not is_wanted(file.key):
                self.left_out.add(OTHER_KIND, file.key)
        before = self.is_wanted
        both = is_wanted if before is None else lambda key: before(key) and is_wanted(key)
        return replace(self, files=chosen, is_wanted=both)

    def each(self) -> list["StoredFile"]:
        """Return the files one by one."""
        return [StoredFile(self.store, file.key, file.num_bytes) for file in self.files]

    def source(self, schema: pa.Schema, parts: Sequence[SourcePart]) -> OpenedSource:
        """Return the source whose rows these files have."""
        return OpenedSource(self.url, schema, parts, self.identity, self.left_out)

    def identity(self) -> dict[str, Any]:
        """Return number, bytes and digest of the files, which are listed again.

        Raises:
            SmaltiError: Files were added, removed or changed since they were listed.
        """
        now = _list(self.store, self.pattern)[0]
        if tuple(file for file in now if self.is_wanted is None or self.is_wanted(file.key)) != self.files:
            raise changed(self.url)
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.key}\0{file.num_bytes}\0{file.modified}\n".encode())
        num_bytes = sum(file.num_bytes for file in self.files)
        return {"files": len(self.files), "num_bytes": num_bytes, "digest": digest.hexdigest()}


def list_files(place: Place, storage_options: Mapping[str, Any] | None = None) -> SourceFiles:
    """Return the files at a place: of a file itself, of a folder and all below it, or of a pattern with `*`, `**`, `?`.

    Files are left out if they or a folder of theirs begin with `.` or `_`, as Spark does. Symbolic links are followed;
    `smalti.sources.listing` says what else is left out.

    Raises:
        StoreNotFound: There is no file, or one of an export by Smalti is missing.
        FormatError: It is an export by Smalti that is not complete, or a file of it has another size.
        StoreError: The store cannot be listed.
    """
    store, pattern, shown = _locate(place, storage_options)
    files, left_out = _list(store, pattern)
    if not files:
        without = f"; left out: {left_out}" if left_out.counts else ""
        raise StoreNotFound(
            f"{shown}: there are no files; expected a file, a folder of files or a pattern{without}", url=shown
        )
    export = read_export(store)
    chosen = exported_files(store, files, export, is_all=not pattern)
    is_wanted = None if export is None else frozenset(file.key for file in chosen).__contains__
    return SourceFiles(store, chosen, shown, pattern, export, left_out, is_wanted)


def check_target(place: Place, storage_options: Mapping[str, Any] | None, target: Store) -> None:
    """Return only if a set can be written to a place without changing its source.

    Raises:
        CatalogError: The source and the set are one place, or one lies inside the other.
    """
    store, pattern, shown = _locate(place, storage_options)
    source = store.child(pattern.text) if pattern.is_key else store
    if pattern and relation_of(source, target) == INSIDE:
        inside, inner = store.local_path("any"), target.local_path("any")
        base, below = store.url, target.url
        if inside is not None and inner is not None:
            base, below = os.path.realpath(inside.parent), os.path.realpath(inner.parent)
        prefix = below[len(base.rstrip("/")) + 1 :]
        matches = pattern.predicate()
        if not any(matches(f"{prefix}/{key}") for key in ("index.json", "0/0/shard.00000.mds")):
            return
    check_apart(source, target, advice=f"choose another place, such as a folder beside {shown}")


def _locate(place: Place, storage_options: Mapping[str, Any] | None) -> tuple[Store, Pattern, str]:
    """Return the store and the pattern of the files of a source, and its address for messages."""
    if isinstance(place, Store):
        return place, Pattern(), redact_address(place.url)
    text = str(place)
    if not text or "\0" in text:
        raise StoreError(f"the place of the source is {text!r}: expected a path, a URL or a pattern", url=text)
    if text.startswith(("file:///", "file://localhost/")):
        text = unquote(urlsplit(text).path)
    is_local = "://" not in text
    # Not resolved: a link is what its owner calls the source.
    text = os.path.abspath(os.path.expanduser(text)) if is_local else text.rstrip("/")  # noqa: PTH100, PTH111
    if not is_local and redact(text) != text:
        check_secrets(text)
    shown = printable(redact_address(text))
    folder, _, name = text.rpartition("/")
    if is_local and _is_file(text):
        return open_store(folder or "/"), Pattern(name, is_key=True), shown
    if _WILDCARD.search(text) and not (is_local and os.path.lexists(text)):
        base = _WILDCARD.split(text, maxsplit=1)[0].rpartition("/")[0]
        return open_store(base or "/", storage_options), Pattern(text[len(base) :].lstrip("/")), shown
    if not is_local and "." in name and not folder.endswith((":/", ":")):
        above_store = open_store(folder, storage_options)
        if above_store.exists(name):
            return above_store, Pattern(name, is_key=True), shown
    return open_store(text, storage_options), Pattern(), shown


def _is_file(path: str) -> bool:
    """Return whether there is a regular file, or a link to one.

    Raises:
        StoreError: There is a pipe, a socket, a device, or a link that leads nowhere.
    """
    try:
        open_regular(path).close()
    except StoreError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        if Path(path).is_symlink():
            raise StoreNotFound(f"{printable(path)} is a symbolic link that leads nowhere", path=path) from error
        return False
    except IsADirectoryError:
        return False
    except OSError as error:
        raise StoreError(f"{printable(path)} cannot be opened: {error.strerror}", path=path) from error
    return True


def _list(store: Store, pattern: Pattern) -> tuple[tuple[ObjectInfo, ...], LeftOut]:
    if pattern.is_key:
        try:
            return (store.info(pattern.text),), LeftOut()
        except StoreNotFound:
            return (), LeftOut()
    return list_source(store, _is_hidden_name, pattern.predicate() if pattern else None)


def is_hidden(key: str) -> bool:
    """Return whether Spark leaves a file out: its name, or a folder's, begins with `.` or `_`, and is no partition."""
    return any(map(_is_hidden_name, key.split("/")))


def _is_hidden_name(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def open_random(store: Files, key: str, num_bytes: int) -> pa.NativeFile:
    """Open a file for reading at any place, as Parquet is read; a file that is not local by ranged requests.

    Raises:
        SmaltiError: A local file cannot be opened.
    """
    path = store.local_path(key)
    if path is None:
        return pa.PythonFile(_Ranges(store, key, num_bytes), mode="r")
    with _opening(store, key):
        open_regular(path).close()
        return pa.OSFile(str(path), "rb")


@contextmanager
def _opening(store: Files, key: str) -> Iterator[None]:
    """Raise an error that names the file if a local one cannot be opened."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreNotFound(f"{store.locate(key)} does not exist", key=key) from error
    except OSError as error:
        raise SmaltiError(f"{store.locate(key)} cannot be opened: {error}", key=key) from error


class _Ranges(io.RawIOBase):
    """An object of a store as a file: each read is a ranged request, with the retries and deadlines of the store."""

    def __init__(self, store: Files, key: str, num_bytes: int) -> None:
        super().__init__()
        self._store, self._key, self._size, self._at = store, key, num_bytes, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, and return it."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; fewer than asked for only at the end of the file."""
        end = self._size if size < 0 else min(self._size, self._at + size)
        data = self._store.get_range(self._key, self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer, and return the number of bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


_COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True)
class StoredFile:
    """One file of a source; picklable."""

    store: Store
    key: str
    num_bytes: int

    @property
    def url(self) -> str:
        """Address of the file, for messages."""
        return self.store.locate(self.key)

    @property
    def compression(self) -> str | None:
        """Compression that the file's name shows; None for none."""
        return _COMPRESSIONS.get(Path(self.key).suffix.lower())

    def open(self) -> BinaryIO:
        """Return the file's bytes, decompressed, as a stream.

        Raises:
            SmaltiError: The file cannot be opened.
        """
        if self.compression is not None and not self.num_bytes:
            raise FormatError(
                f"{self.url}: the file is empty, so it is no {self.compression} file; it was cut short. Write it again",
                key=self.key,
            )
        raw = self.open_stored()
        if self.compression is None:
            return raw
        return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), self.compression))

    def open_stored(self) -> BinaryIO:
        """Return the file's bytes as stored, as a stream that is read forward, as CSV and tar are, and can be moved.

        Raises:
            SmaltiError: The file cannot be opened.
        """
        path = self.store.local_path(self.key)
        if path is not None:
            with _opening(self.store, self.key):
                return open_regular(path)
        return io.BufferedReader(_Ranges(self.store, self.key, self.num_bytes), _BUFFER_BYTES)


def marks_of(files: Sequence[StoredFile]) -> Any:
    """Return names, sizes and marks of files as they are now (JSON)."""
    infos = [file.store.info(file.key) for file in files]
    return [[info.key, info.num_bytes, info.modified] for info in infos]


def without_compression(key: str) -> str:
    """Return a file's name in lower case, without the ending of a compression."""
    name = key.lower()
    ending = Path(name).suffix
    return name.removesuffix(ending) if ending in _COMPRESSIONS and ending != ".tgz" else name


def read_object(store: Store, key: str) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        StoreNotFound: There is no such file.
        FormatError: It is no object.
    """
    value = load_strict(store.get_limited(key, MAX_INDEX_BYTES), where=store.locate(key))
    if not isinstance(value, dict):
        raise FormatError(f"{store.locate(key)}: expected an object", key=key)
    return value


def files_named(store: Store, index: str, names: Iterable[Any]) -> list[StoredFile]:
    """Return the files beside an index, by the names that it gives.

    Raises:
        FormatError: A name is no text, leads elsewhere, or is there twice.
        StoreNotFound: There is no such file.
    """
    where, files = store.locate(index), dict[str, StoredFile]()
    for name in names:
        if not isinstance(name, str) or name in {"", ".", ".."} or re.search("[/\ud800-\udfff]", name):  # no UTF-8
            raise FormatError(f"{where}: {name!r:.100} is no name of a file")
        if name in files:
            raise FormatError(f"{where} names {name} twice; write it again", key=name)
        key = join_key(index.rpartition("/")[0], name)
        try:
            files[name] = StoredFile(store, key, store.size(key))
        except StoreNotFound as error:
            raise StoreNotFound(f"{store.locate(key)}: {where} names this file, which is missing", key=key) from error
    return list(files.values())


def read_some(stream: BinaryIO, num_bytes: int, what: str) -> bytes:
    """Return the next bytes of a stream; fewer at its end.

    Raises:
        FormatError: They cannot be read or decompressed.
    """
    try:
        return stream.read(num_bytes)
    except (OSError, EOFError, pa.ArrowException) as error:
        if isinstance(error, SmaltiError):
            raise
        raise FormatError(f"{what}: cannot be read: {str(error)[:200]}") from error
