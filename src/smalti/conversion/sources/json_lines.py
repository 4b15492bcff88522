"""JSON Lines (JSONL, NDJSON), plain or compressed: one object a line; types declared, or learned from all lines.

Texts stay texts, also those that look like dates. A key that some lines lack is a column with nulls. A line that is no
object, or has a value of another type, is an error with file and line. Files are read in pieces, side by side.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as pt

from smalti.conversion.files import SourceFiles
from smalti.conversion.source import SourceOptions
from smalti.conversion.sources.lines import LineRange, declared_types, line_blocks, line_ranges
from smalti.conversion.sources.source_file import each_file, find_files, without_compression
from smalti.errors import FormatError, SchemaError
from smalti.sources.listing import LeftOut

_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")
_ROW = re.compile(r" in row (\d+)")
_MAX_EXACT = 1 << 53
_LONG_NUMBER = re.compile(rb"[:\[,]\s*-?[0-9]{16,}\s*[,\]}]")


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are files of JSON lines."""
    return any(without_compression(name).endswith(_ENDINGS) for name in names)


def open_source(place: Any, options: SourceOptions) -> "JsonLinesSource":
    """Return the objects of the files at a place: a file, or a folder of them.

    `settings`: `types` by column (Arrow types or their names).

    Raises:
        StoreNotFound: There are no files.
        FormatError: A line is no JSON object.
        SchemaError: The values of a column have types that do not go together.
    """
    given = dict(options.settings)
    types = declared_types(given.pop("types", {}))
    if given:
        raise ValueError(f"the `settings` of JSON lines are types, found {sorted(given)}")
    named = isinstance(place, str) and without_compression(place).endswith(".json")
    endings = (*_ENDINGS, ".json") if named else _ENDINGS
    found = find_files(place, options, lambda name: without_compression(name).endswith(endings))
    ranges = tuple(piece for file in each_file(found) for piece in line_ranges(file))
    wanted = options.columns
    if wanted is not None and set(wanted) <= set(types):
        schema = pa.schema([(name, types[name]) for name in wanted])
    else:
        try:
            learned = _learned(ranges, types)
        except RecursionError as error:
            raise FormatError(f"{found.url}: values are nested too deeply") from error
        unknown = [name for name in (*types, *(wanted or ())) if name not in learned.names]
        if unknown:
            raise SchemaError(f"{found.url}: there are no columns {unknown}: {', '.join(learned.names)}")
        schema = learned if wanted is None else pa.schema([learned.field(name) for name in wanted])
    return JsonLinesSource(found, ranges, schema)


def _learned(ranges: Sequence[LineRange], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Read all lines, and return the types of the columns."""
    kinds: dict[str, pa.DataType] = {}
    nullable: set[str] = set()
    seen: set[str] = set()
    largest: dict[str, float] = {}
    declared = pa.schema(list(types.items()))
    rows = 0
    for piece in ranges:
        for first_block_line, block in _numbered(piece):
            table = _parsed(piece, first_block_line, block, declared, "infer")
            if not table.num_rows:
                continue
            for name, column in zip(table.schema.names, table.columns, strict=True):
                kind = _plain(column.type) if name not in types else types[name]
                kinds[name] = _joined(piece, name, kinds[name], kind) if name in kinds else kind
                if column.null_count or (rows and name not in seen):
                    nullable.add(name)
                seen.add(name)
                _largest_integers(name, column, largest)
                if name not in types:
                    _check_precision(piece, first_block_line, name, column, block)
            nullable.update(set(kinds) - set(table.schema.names))
            rows += table.num_rows
    for name, kind in kinds.items():
        if name not in types and any(largest.get(path, 0) > _MAX_EXACT for path in _float_paths(name, kind)):
            raise SchemaError(
                f"{ranges[0].file.url}: column {name!r} has floats, and whole numbers beyond 2^53, which floats do not "
                "hold; declare its type",
                column=name,
            )
    fields = [pa.field(name, _usable(name, kind), nullable=name in nullable) for name, kind in kinds.items()]
    if not fields:
        raise FormatError(f"{ranges[0].file.url}: there are no lines with keys")
    return pa.schema(fields)


def _numbered(piece: LineRange) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of lines, and how many lines of the piece are before each."""
    before = 0
    for block in line_blocks(piece):
        yield before, block
        before += block.count(b"\n")


def _parsed(piece: LineRange, before: int, block: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    if not block.strip():
        return pa.table({})
    try:
        table = pajson.read_json(
            pa.BufferReader(block),
            read_options=pajson.ReadOptions(block_size=len(block) + 1, use_threads=False),
            parse_options=pajson.ParseOptions(
                explicit_schema=schema if schema.names else None, unexpected_field_behavior=unexpected
            ),
        )
        table.validate(full=True)  # the parser does not look whether text is UTF-8
        return table
    except pa.ArrowException as error:
        raise _located(piece, before, block, error) from error


def _located(piece: LineRange, before: int, block: bytes, error: Exception) -> FormatError | SchemaError:
    """Return the error with file and line: of the first line that is no object, or that the parser names."""
    url, first = piece.file.url, piece.first_line() + before
    lines = block.split(b"\n")
    for number, line in enumerate(lines):
        fault = _fault(line)
        if fault:
            return FormatError(f"{url}, line {first + number}: {fault}", line=first + number, key=piece.file.key)
    match = _ROW.search(str(error))
    filled = [number for number, line in enumerate(lines) if line.strip()]
    reason = _ROW.sub("", str(error)).removeprefix("JSON parse error: ")[:200]
    if match is None or int(match[1]) >= len(filled):
        return SchemaError(f"{url}, after line {first}: {reason}", key=piece.file.key)
    number = first + filled[int(match[1])]
    return SchemaError(f"{url}, line {number}: {reason}; declare a type that fits all", line=number, key=piece.file.key)


def _fault(line: bytes) -> str | None:
    if not line.strip():
        return None
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
    return None if isinstance(value, dict) else f"expected an object, found {type(value).__name__}"


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type in which texts that look like times are texts."""
    if pt.is_temporal(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(each.name, _plain(each.type)) for each in kind])
    return kind


def _joined(piece: LineRange, name: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both."""
    if one == other:
        return one
    if not (pt.is_null(one) or pt.is_null(other)) and pt.is_string(one) != pt.is_string(other):
        raise _unlike(piece, name, one, other)
    try:
        schemas = [pa.schema([(name, one)]), pa.schema([(name, other)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
    except pa.ArrowException as error:
        raise _unlike(piece, name, one, other) from error


def _unlike(piece: LineRange, name: str, one: pa.DataType, other: pa.DataType) -> SchemaError:
    return SchemaError(
        f"{piece.file.url}: the values of {name!r} are {one} in some lines and {other} in others; declare a type, or "
        "make them alike",
        column=name,
    )


def _usable(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type, with text in place of a type of which only nulls were seen."""
    if pt.is_null(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(_usable(name, kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(each.name, _usable(name, each.type)) for each in kind])
    return kind


def _leaves(column: pa.ChunkedArray, is_wanted: Callable[[pa.DataType], bool]) -> Iterator[pa.ChunkedArray]:
    """Yield the values of this type, also those within structs and lists."""
    if is_wanted(column.type):
        yield column
    elif pt.is_struct(column.type):
        for each in column.flatten():
            yield from _leaves(each, is_wanted)
    elif pt.is_list(column.type):
        yield from _leaves(pc.list_flatten(column), is_wanted)


def _largest(column: pa.ChunkedArray) -> float:
    found = pc.min_max(column).as_py()
    largest: float = max(abs(found["min"] or 0), abs(found["max"] or 0))  # a whole number stays one: digits count
    return largest


def _largest_integers(name: str, column: pa.ChunkedArray, largest: dict[str, float]) -> None:
    """Keep the largest whole number of each field of a column, by the field's path."""
    if pt.is_integer(column.type):
        largest[name] = max(largest.get(name, 0), _largest(column))
    elif pt.is_struct(column.type):
        for each, values in zip(column.type, column.flatten(), strict=True):
            _largest_integers(f"{name}.{each.name}", values, largest)
    elif pt.is_list(column.type):
        _largest_integers(f"{name}[]", pc.list_flatten(column), largest)


def _float_paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the paths of the floats in a type."""
    if pt.is_float64(kind):
        yield name
    elif pt.is_struct(kind):
        for each in kind:
            yield from _float_paths(f"{name}.{each.name}", each.type)
    elif pt.is_list(kind):
        yield from _float_paths(f"{name}[]", kind.value_type)


def _check_precision(piece: LineRange, before: int, name: str, column: pa.ChunkedArray, block: bytes) -> None:
    """Refuse long whole numbers in a column of floats, which cannot hold all of their digits."""
    if any(_largest(each) >= _MAX_EXACT for each in _leaves(column, pt.is_float64)) and _LONG_NUMBER.search(block):
        raise SchemaError(
            f"{piece.file.url}, after line {piece.first_line() + before}: column {name!r} has whole numbers beyond 64 "
            "bits, or beyond 2^53 among floats, which a float does not hold; declare its type, as in "
            "types={...: 'float64'} or a decimal",
            column=name,
        )


@dataclass(frozen=True)
class JsonLinesSource:
    """The objects of files of JSON lines."""

    found: SourceFiles
    ranges: tuple[LineRange, ...]
    columns: pa.Schema

    @property
    def url(self) -> str:
        """Place of the files."""
        return self.found.url

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self.columns

    def parts(self) -> list["JsonLinesPart"]:
        """Return a part for each piece of the files."""
        return [JsonLinesPart(piece, self.columns) for piece in self.ranges]

    def identity(self) -> Any:
        """Return a digest of the files as they are now."""
        return self.found.identity()

    @property
    def left_out(self) -> LeftOut:
        """Files at the place that are not read."""
        return self.found.left_out


@dataclass(frozen=True)
class JsonLinesPart:
    """The objects of one piece of a file."""

    piece: LineRange
    schema: pa.Schema = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the file and its bytes."""
        return self.piece.name

    @property
    def num_bytes(self) -> int:
        """Stored size."""
        return self.piece.num_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the objects in order.

        Raises:
            FormatError: A line is no JSON object.
            SchemaError: A value has another type than its column.
        """
        # Nullability is checked below: the parser would fill what is missing.
        schema = pa.schema([(each.name, each.type) for each in self.schema])
        for before, block in _numbered(self.piece):
            table = _parsed(self.piece, before, block, schema, "ignore")
            for batch in table.to_batches():
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=self.schema)
