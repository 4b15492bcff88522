"""Tar files of WebDataset: each sample is a run of members with one key, each column an ending.

1. A member `a/b/0017.image.jpg` has the key `a/b/0017` and the ending `image.jpg`, in lower case, as `webdataset` reads
   it. Members that are no part of a sample (names without an ending, hidden or in `__meta__/`, metadata of macOS and
   Windows) are left out, counted and logged.
2. The ending's last part decides the type: jpg and png images, cls whole numbers, txt text, json, npy arrays; other
   contents stay bytes. Pickles are never unpickled. The first sample has the columns, unless the tar files were
   exported by Smalti, whose record has them with their types.
3. A sample without one of the columns, or with another ending, is an error that names it. The setting `missing` of
   "null" makes absent members nulls; `columns` chooses endings, and others are then left out.
4. Members of a sample are neighbours: a key that returns in a file is an error, and so is a file whose last
   sample continues in the next file. Nothing is unpacked to disk; links are refused.

Also here: the types of tar members, from the content of a member to a value of its column.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from smalti.conversion.files import RECORD, StoredFile, damaged_record, list_files, without_compression
from smalti.conversion.source import OpenedPart, OpenedSource, SourceOptions, check_columns
from smalti.errors import ArgumentError, FormatError, SchemaError, SmaltiError, StoreNotFound
from smalti.format import parse_encoding
from smalti.format.encodings.numbers import DTYPE_CODES, NdArray
from smalti.format.npy import read_npy
from smalti.format.reading.arrow import LOGICAL, STORED_AS, decode_schema, fixed_lists_of
from smalti.sources.archive_members import Member, is_system_file, read_members
from smalti.sources.listing import LeftOut

_ENCODINGS = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "json": "json", "jsn": "json"}
_PLAIN = dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), (pa.int64(), "int")) | dict.fromkeys(
    ("txt", "text", "transcript"), (pa.string(), "text")
)
"""By the last part of an ending: type and form."""
Contents = Sequence[bytes | None]
_UNFIT = (ValueError, ArithmeticError, pa.ArrowException)


@dataclass(frozen=True)
class MemberType:
    """A column, and the members that hold it."""

    field: pa.Field
    ending: str
    """The name after the key and a dot, in lower case."""
    form: str
    """The way in which a member's content is read: bytes, text, int, json, scalar, npy or stack."""
    encoding: str | None = None
    """Encoding of the arrays of npy members."""

    def array(self, contents: Contents) -> pa.Array:
        """Return the values of members; None where there is no member.

        Raises:
            ValueError, ArithmeticError, pa.ArrowException: A content is no such value.
        """
        if self.form == "stack":
            return _stack(self, contents)
        values = [None if content is None else self._value(content) for content in contents]
        is_number = self.form == "json" and pt.is_duration(self.field.type)
        written = pa.string() if self.form == "text" else pa.int64() if is_number else self.field.type
        return pa.array(values, written).cast(self.field.type)

    def holds(self, content: bytes | None) -> bool:
        """Return whether a content is such a value."""
        try:
            self.array([content])
        except _UNFIT:
            return False
        return True

    def _value(self, content: bytes) -> Any:
        """Return the value of a member's content.

        Raises:
            ValueError, ArithmeticError: It is no such value.
        """
        if self.form == "bytes":
            return content
        if self.form == "text":
            return content.decode("utf-8")
        if self.form == "json":
            return json.loads(content)
        if self.form == "int":
            text = content.strip()
            if not text.lstrip(b"+-").isdigit() or len(text) > 20:
                raise ValueError("expected the digits of a whole number")
            return int(text)
        array = read_npy(content)
        if self.form == "scalar":
            if array.ndim or _type_of(array) != self.field.type:
                raise ValueError(f"expected one {self.field.type}, found {array.dtype} of shape {array.shape}")
            return array[()]
        codec = parse_encoding(str(self.encoding))
        if array.dtype.kind in "bmM":  # logical types are stored as their numbers
            array = array.view(np.uint8 if array.dtype.kind == "b" else np.int64)
            array = array.astype(codec.dtype) if isinstance(codec, NdArray) and codec.dtype is not None else array
        return codec.encode(array)


def _member_type(ending: str, content: bytes) -> MemberType:
    """Return the column of members with this ending, by its last part and the content of the first one.

    Raises:
        SchemaError: An array that cannot be stored.
    """
    last = ending.rpartition(".")[2]
    if last in _ENCODINGS:
        return _encoded(ending, ending, _ENCODINGS[last], nullable=False)
    if last != "npy":
        kind, form = _PLAIN.get(last, (pa.binary(), "bytes"))
        return MemberType(pa.field(ending, kind, nullable=False), ending, form)
    try:
        array = read_npy(content)
    except ValueError as error:
        raise SchemaError(f"the member .{ending} of the first sample is no npy file of numbers: {error}") from error
    if array.dtype.name not in DTYPE_CODES:
        raise SchemaError(f"the member .{ending} of the first sample has type {array.dtype}, which cannot be stored")
    if not array.ndim:
        return MemberType(pa.field(ending, _type_of(array), nullable=False), ending, "scalar")
    return _encoded(ending, ending, f"ndarray:{array.dtype.name}", nullable=False)


def _type_of(array: Any) -> pa.DataType:
    """Return the type of the numbers of an array, in whichever byte order they are."""
    return pa.from_numpy_dtype(array.dtype.newbyteorder("="))


def _encoded(name: str, ending: str, encoding: str, *, nullable: bool, logical: Any = None) -> MemberType:
    """Return the column of members that are stored as an encoding has them."""
    notes = {STORED_AS: encoding.encode()} | ({LOGICAL: json.dumps(logical).encode()} if logical else {})
    form = "npy" if encoding.startswith("ndarray") else "bytes"
    return MemberType(pa.field(name, pa.binary(), nullable=nullable, metadata=notes), ending, form, encoding)


def _exported_types(export: Mapping[str, Any] | None, where: str) -> list[MemberType] | None:
    """Return the columns of tar files that Smalti exported; None without a record of such an export.

    Raises:
        FormatError: The record, whose address is `where`, is damaged.
    """
    if export is None or "members" not in export:
        return None
    members, stored = export["members"], export.get("stored", {})
    try:
        schema = decode_schema(str(export.get("schema")))
        return [_exported(field, members[field.name].lower(), stored.get(field.name, {})) for field in schema]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = error.message if isinstance(error, SmaltiError) else str(error)
        expected = f"the types, members and encodings of all columns ({reason[:200]})"
        raise damaged_record(where, expected) from error


def _exported(field: pa.Field, ending: str, stored: dict[str, Any]) -> MemberType:
    encoding, logical = str(stored.get("encoding")), stored.get("logical")
    if pt.is_binary(field.type):
        return MemberType(field, ending, "bytes")
    if encoding.startswith("ndarray:") and encoding.count(":") == 2:
        return MemberType(field, ending, "stack", encoding)
    if encoding == "json" or encoding.startswith("ndarray"):
        return _encoded(field.name, ending, encoding, nullable=field.nullable, logical=logical)
    if pt.is_boolean(field.type) or pt.is_floating(field.type) or pt.is_duration(field.type):
        return MemberType(field, ending, "json")
    if pt.is_integer(field.type):
        return MemberType(field, ending, "int")
    return MemberType(field, ending, "text")


def _stack(kind: MemberType, contents: Contents) -> pa.Array:
    """Return lists of fixed sizes."""
    codec = parse_encoding(str(kind.encoding))
    if not isinstance(codec, NdArray) or codec.shape is None:
        raise SchemaError(f"{kind.encoding!r} is no encoding of arrays of one shape")
    arrays = [read_npy(content) for content in contents if content is not None]
    for array in arrays:
        codec.encode(array)  # checks type and shape
    block = np.stack(arrays) if arrays else np.empty((0, *codec.shape), codec.dtype)
    is_null = np.array([content is None for content in contents])
    return fixed_lists_of(codec)[1](block).take(pa.array(np.cumsum(~is_null) - 1, pa.int64(), mask=is_null))


_ENDINGS = (".tar", ".tgz", ".tbz2", ".tar.xz", ".txz", ".tzst")
_NAME = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:$|/)")
_MAX_SAMPLE = 1 << 30
"""Most bytes of the members of a sample, which are in memory together."""
_MAX_MEMBERS = 10_000
"""Most members of a sample: each is a column."""
_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 10_000
Sample = dict[str, bytes]
"""Ending to content."""

_log = logging.getLogger(__name__)


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are tar files."""
    return any(map(_is_wanted, names))


def _is_wanted(name: str) -> bool:
    return without_compression(name).endswith(_ENDINGS)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the samples of the tar files at a place: a tar file, or a folder of them; one part for each file.

    Raises:
        StoreNotFound: There are none.
        SchemaError: The first sample has no usable columns.
        FormatError: The first file is no tar file.
    """
    missing = options.settings_of("tar files", "missing").get("missing", "error")
    if missing not in ("error", "null"):
        raise ArgumentError(f"`missing`: expected 'error' or 'null', found {missing!r}")
    found = list_files(place, options.storage_options).wanted(_is_wanted, what="there are no files of this format")
    files = found.each()
    exported = _exported_types(found.export, found.store.locate(RECORD))
    types = _types_of_first(files) if exported is None else exported
    if options.columns is not None:
        check_columns(found.url, options.columns, [each.field.name for each in types])
        types = [each for each in types if each.field.name in options.columns]
    if missing == "null":
        types = [replace(each, field=each.field.with_nullable(True)) for each in types]  # noqa: FBT003 -- pyarrow's
    is_closed = options.columns is None and exported is None
    followers = (*files[1:], None)
    readers = [TarReader(file, after, tuple(types), is_closed) for file, after in zip(files, followers, strict=True)]
    parts = [OpenedPart(each.file.key, each.file.num_bytes, each.batches, each.origin) for each in readers]
    return found.source(pa.schema([each.field for each in types]), parts)


@dataclass(frozen=True)
class TarReader:
    """The samples of one tar file."""

    file: StoredFile
    after: StoredFile | None
    """The file that follows, whose first sample must not continue the last one of this file."""
    types: tuple[MemberType, ...]
    is_closed: bool
    """True if a member that is no column is an error."""
    _keys: dict[int, str] = field(default_factory=dict, compare=False, repr=False)
    """Keys of the rows of the batch that was yielded last, by number of the row in this part."""

    def origin(self, row: int) -> str:
        """Return the file and the key of a row of the batch that was yielded last."""
        return f"{self.file.key}, sample {self._keys.get(row, '')!r:.200}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the samples of the file in order.

        Raises:
            FormatError: It is no whole tar file, or a sample is not as it should be.
            SchemaError: A member's content does not fit its column.
        """
        keys: list[str] = []
        rows: list[list[bytes | None]] = []
        num_bytes = 0
        seen: set[int] = set()
        left_out = LeftOut()
        last = ""
        self._keys.clear()
        for key, sample in _samples_of(self.file, left_out):
            if hash(key) in seen:
                raise FormatError(
                    f"{self.file.url}: the key {key!r:.200} returns after another sample; the members of a sample are "
                    "neighbours: sort the members by name, or give samples different keys",
                    key=key,
                )
            last = key
            seen.add(hash(key))
            keys.append(key)
            rows.append(self._row(key, sample))
            num_bytes += sum(map(len, sample.values()))
            if num_bytes >= _BATCH_BYTES or len(rows) >= _BATCH_ROWS:
                yield self._batch(keys, rows)
                keys, rows, num_bytes = [], [], 0
        if left_out.counts:
            _log.warning("%s: left out: %s", self.file.url, left_out)
        if rows:
            yield self._batch(keys, rows)
        if self.after is None or not last:
            return
        first = next(_samples_of(self.after), None)
        if first is not None and first[0] == last and not set(first[1]).issuperset(each.ending for each in self.types):
            raise FormatError(
                f"{self.file.url}: its last sample {last!r:.200} goes on in {self.after.url}; each sample lies in one "
                "file: write the files again",
                key=last,
            )

    def _row(self, key: str, sample: Mapping[str, bytes]) -> list[bytes | None]:
        row = [sample.get(each.ending) for each in self.types]
        if self.is_closed:
            known = {each.ending for each in self.types}
            for ending in sample:
                if ending not in known:
                    raise FormatError(
                        f"{self.file.url}, sample {key!r:.200}: it has a member .{ending}, which the first sample has "
                        f"not ({', '.join(sorted(known))}); name the wanted ones in `columns`",
                        key=key,
                    )
        for each, content in zip(self.types, row, strict=True):
            if content is None and not each.field.nullable:
                raise FormatError(
                    f"{self.file.url}, sample {key!r:.200}: it has no member .{each.ending}; the sample is incomplete. "
                    'Repair the file, leave the column out, or give settings={"missing": "null"}',
                    key=key,
                    column=each.field.name,
                )
        return row

    def _batch(self, keys: Sequence[str], rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch:
        begin = max(self._keys, default=-1) + 1
        self._keys.clear()
        self._keys.update(enumerate(keys, begin))
        arrays = []
        for each, contents in zip(self.types, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(each.array(contents))
            except _UNFIT as error:  # noqa: PERF203 -- one for each column
                place = next((row for row, content in enumerate(contents) if not each.holds(content)), 0)
                raise SchemaError(
                    f"{self.file.url}, sample {keys[place]!r:.200}: the member .{each.ending} is not of type "
                    f"{each.field.type}: {str(error)[:200]}",
                    key=keys[place],
                    column=each.field.name,
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([each.field for each in self.types]))


def _samples_of(file: StoredFile, left_out: LeftOut | None = None) -> Iterator[tuple[str, Sample]]:
    """Yield key and members of each sample of a tar file; members that are no part of one are left out.

    Raises:
        FormatError: It is no whole tar file, or a sample is not as it should be.
    """
    current, sample, num_bytes = "", Sample(), 0
    with file.open_stored() as stream:
        for member in read_members(file.url, stream, is_zip=False):
            if member.is_folder:
                continue
            match = _NAME.fullmatch(member.name)
            if match is None or _META.match(member.name) or is_system_file(member.name):
                if left_out is not None:
                    left_out.add("members that are no part of a sample", member.name)
                continue
            key, ending = match[1], match[2].lower()
            if sample and key != current:
                yield current, sample
                sample, num_bytes = {}, 0
            current = key
            num_bytes += member.num_bytes
            _check_member(file, member, key, ending, num_bytes)
            if ending in sample:
                raise FormatError(f"{file.url}: sample {key!r:.200} has two members .{ending}", key=key)
            if len(sample) == _MAX_MEMBERS:
                raise FormatError(f"{file.url}: sample {key!r:.200} has more than {_MAX_MEMBERS:,} members", key=key)
            sample[ending] = b"".join(member.content or ())
    if sample:
        yield current, sample


def _check_member(file: StoredFile, member: Member, key: str, ending: str, num_bytes: int) -> None:
    """Check a member before its content is read; `num_bytes` are those of the sample so far."""
    name = member.name
    fault = ""
    if member.content is None:
        fault = (
            "is a link or no regular file; samples are regular members: pack the files again with their contents, by "
            "`tar --dereference --hard-dereference`"
        )
    elif name.startswith("/") or ".." in name.split("/") or "\0" in name:
        fault = "has an unsafe name; do not use this file"
    elif not ending:
        fault = "ends with a dot, and has no ending that names its column; rename it"
    elif not ending.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in ending):
        fault = "has an ending that is not UTF-8; rename it and pack it again"
    elif num_bytes > _MAX_SAMPLE:
        fault = (
            f"has {member.num_bytes:,} bytes, and its sample {key!r:.200} {num_bytes:,} so far; at most "
            f"{_MAX_SAMPLE:,} are read: leave this sample out, or divide it"
        )
    if fault:
        raise FormatError(f"{file.url}: member {name!r:.200} {fault}", member=name, key=key)


def _types_of_first(files: Sequence[StoredFile]) -> list[MemberType]:
    """Return the columns of the first sample."""
    for file in files:
        first = next(_samples_of(file), None)
        if first is not None:
            try:
                return [_member_type(ending, content) for ending, content in first[1].items()]
            except SchemaError as error:
                raise SchemaError(f"{file.url}, sample {first[0]!r:.200}: {error}", key=first[0]) from error
    raise StoreNotFound(f"{files[0].store.url}: the tar files have no samples")
