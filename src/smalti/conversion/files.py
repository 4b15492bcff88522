"""Files as sources: the files at a path, URL or pattern, their identity, and reading one from any store.

Also here: one file of a source, with where it is, and its bytes as a stream, decompressed where its name shows a
compression; and exports of Smalti as sources, whose record says which files there are. `smalti.exporting` writes the
record, and marks it as complete after the last file. A copy of an export may still lack files, and the names of the
files say how many there were.
"""

import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from smalti.conversion.source import OpenedSource, SourcePart, changed
from smalti.errors import ChecksumMismatch, FormatError, SmaltiError, StoreError, StoreNotFound
from smalti.format import load_strict
from smalti.format.index import MAX_INDEX_BYTES
from smalti.redaction import redact, redact_address
from smalti.regular_files import open_regular
from smalti.sources.listing import OTHER_KIND, LeftOut, list_source
from smalti.storage import ObjectInfo, Place, Store, open_store
from smalti.storage.opening import INSIDE, check_apart, check_secrets, relation_of
from smalti.storage.store import check_key, join_key
from smalti.texts import printable

RECORD = "_smalti_export.json"
NUMBERED = re.compile(
    r"(?P<begin>(?:.*[-./_])?)(?P<number>[0-9]{5,})-of-(?P<count>[0-9]{5,})(?P<ending>\.[^/]*)", re.DOTALL
)
"""Name of a file that has its number, and the number of files, as exports and many programs write."""
_WILDCARD = re.compile(r"[*?]")
_BUFFER_BYTES = 4 << 20
"""Bytes that sequential readers of remote files ask for at once."""
_log = logging.getLogger(__name__)


class Files(Protocol):
    """Readable files by key: a store, or a file system of pyarrow."""

    url: str

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a file; fewer if it ends before."""

    def locate(self, key: str) -> str:
        """Return the full address of a file, for messages."""

    def local_path(self, key: str) -> Path | None:
        """Return the file's path if it is on a local disk, else None."""


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

        def with_empty(places: set[int]) -> frozenset[int]:
            """Return the places with those behind pieces that match nothing at all."""
            for place in range(0, 2 * len(pieces), 2):
                if place in places and pieces[place // 2] in {"*", "**", "**/"}:
                    places.add(place + 2)
            return frozenset(places)

        # A state of the search is a set of places in the pattern, so that one pass over a key decides, whatever the
        # pattern is. Place 2n is before piece n, and 2n + 1 within a folder of a piece `**/`.
        @cache
        def step(places: frozenset[int], char: str) -> frozenset[int]:
            after: set[int] = set()
            for place in places:
                number, is_inside = divmod(place, 2)
                piece = pieces[number] if number < len(pieces) else None
                if piece == "**/" and char != "/":
                    after.add(2 * number + 1)
                elif piece == "**/" and is_inside:
                    after.add(2 * number)
                elif piece == "**" or (piece == "*" and char != "/"):
                    after.add(place)
                elif piece == char or (piece == "?" and char != "/"):
                    after.add(place + 2)
            return with_empty(after)

        first, last = with_empty({0}), 2 * len(pieces)

        def matches(key: str) -> bool:
            return last in reduce(step, key, first)

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


def read_export(store: Store) -> Mapping[str, Any] | None:
    """Return the record of a complete export; None if the store has none.

    Raises:
        FormatError: The export is not complete, or its record is damaged.
    """
    try:
        data = store.get_limited(RECORD, MAX_INDEX_BYTES)
    except StoreNotFound:
        return None
    loaded: Any = load_strict(data, where=store.locate(RECORD))
    record: dict[str, Any] = loaded if isinstance(loaded, dict) else {}
    if record.get("complete") is False:
        raise FormatError(
            f"{store.url}: this export is not complete; call `smalti export` again with the same arguments first",
            url=store.url,
        )
    files = record.get("files")
    if not isinstance(files, list) or not files or not record.get("complete") or not all(map(_is_entry, files)):
        raise damaged_record(store.locate(RECORD), "names and sizes of its files")
    return record


def damaged_record(where: str, expected: str) -> FormatError:
    """Return the error that the record of an export lacks what is expected."""
    return FormatError(
        f"{where}: expected the record of an export, with {expected}; it is damaged: copy it again, or export again to "
        "another folder",
        key=RECORD,
    )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or type(entry.get("bytes")) is not int:
        return False
    try:
        check_key(entry["name"])
    except StoreError:
        return False
    return True


def exported_files(
    store: Store, files: Sequence[ObjectInfo], export: Mapping[str, Any] | None, *, is_all: bool
) -> tuple[ObjectInfo, ...]:
    """Return the files of an export among those that were listed, after a check that none is missing or cut short.

    Args:
        store: The store that has them.
        files: The files that were listed.
        export: The record of the export; without one, nothing is checked.
        is_all: False if the caller chose some of the files.

    Raises:
        StoreNotFound: Files are missing.
        ChecksumMismatch: A file has another size than it was written with.
    """
    if export is None:
        return tuple(files)
    sizes = {entry["name"]: entry["bytes"] for entry in export["files"]}
    present = {file.key: file for file in files}
    if is_all:
        for name in sizes:
            # Listings leave it out if a name in it begins with `_` or `.`, as names of splits may.
            if name not in present and any(part.startswith(("_", ".")) for part in name.split("/")):
                with suppress(StoreNotFound):
                    present[name] = replace(store.info(name), key=name)
        if missing := [name for name in sizes if name not in present]:
            raise StoreNotFound(
                f"{store.url}: {len(missing)} of the {len(sizes)} files of this export are missing, such as "
                f"{missing[0]}; copy them again, or give a pattern such as 'part-*' to read only those that are there",
                url=store.url,
                key=missing[0],
            )
    for name, size in sizes.items():
        if name in present and present[name].num_bytes != size:
            raise ChecksumMismatch(
                f"{store.locate(name)}: expected {size} bytes, as {RECORD} says; found {present[name].num_bytes}: copy "
                "it again",
                key=name,
            )
    if not is_all:
        return tuple(files)
    endings = {name.rpartition(".")[2] for name in sizes}
    others = [key for key in present if key not in sizes and key.rpartition(".")[2] in endings]
    if others:
        message = "%s: %d files are not of this export by its %s and were left out, such as %s"
        _log.warning(message, store.url, len(others), RECORD, others[0])
    return tuple(present[key] for key in sorted(present.keys() - others))


def check_numbers(keys: Iterable[str], locate: Callable[[str], str]) -> None:
    """Return only if files named `x-00000-of-00002.tar` are all there, and no others with such names.

    Raises:
        StoreNotFound: Some are missing.
        FormatError: A number is larger than the number of files.
    """
    groups: dict[tuple[str, str, str], set[int]] = {}
    for key in keys:
        if match := NUMBERED.fullmatch(key):
            groups.setdefault((match["begin"], match["count"], match["ending"]), set()).add(int(match["number"]))
    for (begin, count, ending), numbers in groups.items():
        total = int(count)
        first = 1 if total in numbers and 0 not in numbers else 0  # some programs count from 1
        expected = range(first, first + total)
        missing = total - sum(number in expected for number in numbers)
        others = sorted(number for number in numbers if number not in expected)
        if missing:
            number = next(number for number in expected if number not in numbers)
            raise StoreNotFound(
                f"{locate(f'{begin}{number:0{len(count)}d}-of-{count}{ending}')}: {missing} of {total} files with such "
                "names are missing; fetch them, or give a pattern of files, which reads those that are there",
                missing=missing,
            )
        if others:
            raise FormatError(
                f"{locate(f'{begin}{others[0]:0{len(count)}d}-of-{count}{ending}')}: {len(others)} files with such "
                f"names have numbers above those of all {total} files; remove them, or give a pattern of files",
            )
