"""Tar files of WebDataset: each sample is a run of members with one key, each column an ending.

1. A member `a/b/0017.image.jpg` has the key `a/b/0017` and the ending `image.jpg`, in lower case, as `webdataset` reads
   it; other members (folders, names without an ending or with `__meta__`) are left out.
2. The ending's last part decides the type: jpg and png images, cls whole numbers, txt text, json, npy arrays; other
   contents stay bytes. Pickles are never unpickled. The first sample has the columns, unless the tar files were
   exported by Smalti, whose record has them with their types.
3. A sample without one of the columns, or with another ending, is an error that names it. The setting `missing` of
   "null" makes absent members nulls; `columns` chooses endings, and others are then left out.
4. Members of a sample are neighbours: a key that returns in a file is an error, and so is a file whose last
   sample continues in the next file. Nothing is unpacked to disk; links and sparse members are refused.
"""

import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from smalti.conversion.files import SourceFiles
from smalti.conversion.source import SourceOptions
from smalti.conversion.sources.members import MemberType, exported_types, member_type
from smalti.conversion.sources.source_file import (
    SourceFile,
    each_file,
    find_files,
    read_exactly,
    read_some,
    without_compression,
)
from smalti.errors import FormatError, SchemaError, StoreNotFound
from smalti.sources.listing import LeftOut

_ENDINGS = (".tar", ".tgz")
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:$|/)")
_MAX_MEMBER = (1 << 32) - 1
_MAX_EXTENDED = 1 << 20
"""Longest extended header that is read: names of a megabyte are damage or malice."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 10_000
Sample = dict[str, bytes]
"""Ending to content."""


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are tar files."""
    return any(without_compression(name).endswith(_ENDINGS) for name in names)


def open_source(place: Any, options: SourceOptions) -> "WebDatasetSource":
    """Return the samples of the tar files at a place: a tar file, or a folder of them.

    Raises:
        StoreNotFound: There are none.
        SchemaError: The first sample has no usable columns.
        FormatError: The first file is no tar file.
    """
    found = find_files(place, options, lambda name: without_compression(name).endswith(_ENDINGS))
    given = dict(options.settings)
    missing = given.pop("missing", "error")
    if given:
        raise ValueError(f"the `settings` of tar files are missing, found {sorted(given)}")
    if missing not in ("error", "null"):
        raise ValueError(f"`missing`: expected 'error' or 'null', found {missing!r}")
    types = exported_types(found.store)
    is_exported = types is not None
    if types is None:
        types = _types_of_first(each_file(found))
    if options.columns is not None:
        unknown = set(options.columns) - {each.field.name for each in types}
        if unknown:
            raise SchemaError(f"there are no columns {sorted(unknown)}: {[each.field.name for each in types]}")
        types = [each for each in types if each.field.name in options.columns]
    if missing == "null":
        types = [each.nullable() for each in types]
    layout = _Layout(tuple(types), is_closed=options.columns is None and not is_exported)
    return WebDatasetSource(found, layout)


@dataclass(frozen=True)
class _Layout:
    """The columns of the samples."""

    types: tuple[MemberType, ...]
    is_closed: bool
    """True if a member that is no column is an error."""


@dataclass(frozen=True)
class WebDatasetSource:
    """The samples of tar files."""

    found: SourceFiles
    layout: _Layout

    @property
    def url(self) -> str:
        """Place of the files."""
        return self.found.url

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return pa.schema([each.field for each in self.layout.types])

    def parts(self) -> list["TarPart"]:
        """Return one part for each file."""
        files = each_file(self.found)
        followers = (*files[1:], None)
        return [TarPart(file, after, self.layout) for file, after in zip(files, followers, strict=True)]

    def identity(self) -> Any:
        """Return a digest of the files as they are now."""
        return self.found.identity()

    @property
    def left_out(self) -> LeftOut:
        """Files at the place that are not read."""
        return self.found.left_out


@dataclass(frozen=True)
class TarPart:
    """The samples of one tar file."""

    file: SourceFile
    after: SourceFile | None
    """The file that follows, whose first sample must not continue the last one of this file."""
    layout: _Layout

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.file.key

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.file.num_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the samples of the file in order.

        Raises:
            FormatError: It is no whole tar file, or a sample is not as it should be.
            SchemaError: A member's content does not fit its column.
        """
        keys: list[str] = []
        rows: list[list[bytes | None]] = []
        num_bytes = 0
        last = ""
        for key, sample in samples_of(self.file):
            last = key
            keys.append(key)
            rows.append(self._row(key, sample))
            num_bytes += sum(map(len, sample.values()))
            if num_bytes >= _BATCH_BYTES or len(rows) >= _BATCH_ROWS:
                yield self._batch(keys, rows)
                keys, rows, num_bytes = [], [], 0
        if rows:
            yield self._batch(keys, rows)
        self._check_end(last)

    def _row(self, key: str, sample: Mapping[str, bytes]) -> list[bytes | None]:
        row = [sample.get(each.ending) for each in self.layout.types]
        if self.layout.is_closed:
            known = {each.ending for each in self.layout.types}
            for ending in sample:
                if ending not in known:
                    raise FormatError(
                        f"{self.file.url}, sample {key!r:.200}: it has a member .{ending}, which the first sample has "
                        f"not ({', '.join(sorted(known))}); name the wanted ones in `columns`",
                        key=key,
                    )
        for each, content in zip(self.layout.types, row, strict=True):
            if content is None and not each.field.nullable:
                raise FormatError(
                    f"{self.file.url}, sample {key!r:.200}: it has no member .{each.ending}; the sample is incomplete. "
                    'Repair the file, leave the column out, or give missing="null"',
                    key=key,
                    column=each.field.name,
                )
        return row

    def _batch(self, keys: Sequence[str], rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch:
        arrays = []
        for each, contents in zip(self.layout.types, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(each.array(contents))
            except (ValueError, ArithmeticError, pa.ArrowException) as error:  # noqa: PERF203 -- one for each column
                place = _first_bad(each, contents)
                raise SchemaError(
                    f"{self.file.url}, sample {keys[place]!r:.200}: the member .{each.ending} is not of type "
                    f"{each.field.type}: {str(error)[:200]}",
                    key=keys[place],
                    column=each.field.name,
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([each.field for each in self.layout.types]))

    def _check_end(self, last: str) -> None:
        """Refuse a sample whose members continue in the next file."""
        if self.after is None or not last:
            return
        first = next(_groups(self.after), None)
        if (
            first is not None
            and first[0] == last
            and not set(first[1]).issuperset(each.ending for each in self.layout.types)
        ):
            raise FormatError(
                f"{self.file.url}: its last sample {last!r:.200} goes on in {self.after.url}; each sample lies in one "
                "file: write the files again",
                key=last,
            )


def _first_bad(each: MemberType, contents: Sequence[bytes | None]) -> int:
    for place, content in enumerate(contents):
        try:
            each.array([content])
        except (ValueError, ArithmeticError, pa.ArrowException):  # noqa: PERF203 -- after a failure
            return place
    return 0


def samples_of(file: SourceFile) -> Iterator[tuple[str, Sample]]:
    """Yield key and members of each sample of a tar file.

    Raises:
        FormatError: It is no whole tar file, or a key returns.
    """
    seen: set[int] = set()
    for key, sample in _groups(file):
        mark = hash(key)
        if mark in seen:
            raise FormatError(
                f"{file.url}: the key {key!r:.200} returns after another sample; the members of a sample are "
                "neighbours: sort the members by name, or give samples different keys",
                key=key,
            )
        seen.add(mark)
        yield key, sample


def _groups(file: SourceFile) -> Iterator[tuple[str, Sample]]:
    current, sample = "", Sample()
    for name, content in members_of(file):
        match = _NAME.fullmatch(name)
        if match is None or _META.search(name):
            continue
        key, ending = match[1], match[2].lower()
        if sample and key != current:
            yield current, sample
            sample = {}
        current = key
        if ending in sample:
            raise FormatError(f"{file.url}: sample {key!r:.200} has two members .{ending}", key=key)
        sample[ending] = content
    if sample:
        yield current, sample


def members_of(file: SourceFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each regular member of a tar file.

    Raises:
        FormatError: It is no whole tar file, or has members that cannot be read safely.
    """
    with file.open() as stream:
        extended: dict[str, str] = {}
        while (info := _next_header(stream, file)) is not None:
            if info.type in _EXTENDED or info.type in _LONG:
                text = _content(stream, info, file, _MAX_EXTENDED)
                if info.type != tarfile.XGLTYPE:
                    extended |= _extension(info, text, file)
                continue
            name = extended.get("path", info.name)
            info.size = _size_of(extended.get("size"), info.size, file)
            is_sparse = any(key.startswith("GNU.sparse") for key in extended)
            extended = {}
            if info.type == tarfile.DIRTYPE:
                continue
            _check_member(info, name, file, is_sparse=is_sparse)
            yield name, _content(stream, info, file, _MAX_MEMBER)


def _next_header(stream: BinaryIO, file: SourceFile) -> tarfile.TarInfo | None:
    """Return the next header; None at the end of the archive."""
    block = read_some(stream, tarfile.BLOCKSIZE, file.url)
    if not block:
        raise FormatError(f"{file.url}: it has no end mark; it was cut short, or is no tar file: fetch it again")
    if len(block) == tarfile.BLOCKSIZE and not any(block):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise FormatError(f"{file.url}: it is no tar file, or is damaged: {error}") from error


def _content(stream: BinaryIO, info: tarfile.TarInfo, file: SourceFile, limit: int) -> bytes:
    if not 0 <= info.size <= limit:
        raise FormatError(f"{file.url}: member {info.name!r:.200} of {info.size} bytes; at most {limit} are read")
    what = f"{file.url}, member {info.name!r:.200}"
    content = read_exactly(stream, info.size, what)
    read_exactly(stream, -info.size % tarfile.BLOCKSIZE, what)
    return content


def _extension(info: tarfile.TarInfo, text: bytes, file: SourceFile) -> dict[str, str]:
    """Return the fields of an extended header (of POSIX, or GNU's for long names)."""
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if info.type == tarfile.GNUTYPE_LONGLINK:
        return {}
    fields: dict[str, str] = {}
    while text:
        digits, blank, _ = text.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        record = text[len(digits) + 1 : length]
        if not blank or length <= len(digits) + 1 or not record.endswith(b"\n") or b"=" not in record:
            raise FormatError(f"{file.url}: an extended header of a member is damaged")
        key, _, value = record[:-1].partition(b"=")
        fields[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        text = text[length:]
    return fields


def _size_of(text: str | None, size: int, file: SourceFile) -> int:
    if text is None:
        return size
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise FormatError(f"{file.url}: an extended header of a member has a damaged size")
    return int(text)


def _check_member(info: tarfile.TarInfo, name: str, file: SourceFile, *, is_sparse: bool) -> None:
    if info.type not in _REGULAR or is_sparse:
        kind = "a link" if info.type in (tarfile.LNKTYPE, tarfile.SYMTYPE) else "no regular file"
        raise FormatError(
            f"{file.url}: member {name!r:.200} is {kind}; samples are regular members: write the file again with their "
            "contents",
            member=name,
        )
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise FormatError(f"{file.url}: member {name!r:.200} has an unsafe name; do not use this file", member=name)


def _types_of_first(files: Sequence[SourceFile]) -> list[MemberType]:
    """Return the columns of the first sample."""
    for file in files:
        first = next(_groups(file), None)
        if first is not None:
            return [member_type(ending, content) for ending, content in first[1].items()]
    raise StoreNotFound(f"{files[0].store.url}: the tar files have no samples")
