"""JSON Lines (JSONL, NDJSON), plain or compressed: one object a line; types declared, or learned from all lines.

Texts stay texts, also those that look like dates. A key that some lines lack is a column with nulls. A line that is no
object, or has a value of another type, is an error with file and line. Files are read in pieces, side by side.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as pt

from smalti.conversion.files import without_compression
from smalti.conversion.source import OpenedSource, SourceOptions, check_columns
from smalti.conversion.sources.json_checks import (
    MAX_EXACT,
    check_lines,
    check_rows,
    estimated_columns,
    inexact_line,
    infinite_number,
    leaves,
    lines_of,
    refuse_first_malformed,
    too_many_keys,
)
from smalti.conversion.sources.lines import (
    BATCH_ROWS,
    MAX_COLUMNS,
    Block,
    LineRange,
    declared_types,
    find_text_files,
    line_blocks,
    line_ranges,
)
from smalti.errors import FormatError, SchemaError, StoreNotFound

_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")
_HADOOP_PART = re.compile(r"(?:.*/)?part-[^/]*\.json")
_ROW = re.compile(r" in row \d+")
_CHANGED = re.compile(r"Column\(/(.*)\) changed from (.*) to (.*)")
_MAX_CELLS = 1 << 24


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are JSON lines; `part-*.json` are, as Spark and Hadoop write them."""
    return any(_is_lines(name) for name in names)


def _is_lines(name: str) -> bool:
    name = without_compression(name)
    return name.endswith(_ENDINGS) or _HADOOP_PART.fullmatch(name) is not None


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the objects of the files at a place: a file, or a folder of them.

    `settings`: `types` by column (Arrow types or their names).

    Raises:
        StoreNotFound: There are no files.
        FormatError: A line is no JSON object.
        SchemaError: The values of a column have types that do not go together, or a setting has an unusable value.
    """
    types = declared_types(
        options.settings_of("JSON lines", "types").get("types", {}),
        lambda kind: _read(b'{"x": null}\n', pa.schema([("x", _wire(kind))]), "ignore").column(0).cast(kind),
        files="JSON",
        advice="Declare the type that its values have in JSON, such as 'string' or 'int64', and convert them in "
        "`transform`",
    )
    expected = ".jsonl, .ndjson, .jsonlines or .json"
    try:
        found = find_text_files(place, options, _is_lines, expected)
    except StoreNotFound:  # those that end with `.json`, since the caller named the format
        endings = (*_ENDINGS, ".json")
        found = find_text_files(place, options, lambda name: without_compression(name).endswith(endings), expected)
    ranges = tuple(piece for file in found.each() for piece in line_ranges(file))
    wanted = options.columns
    is_learned = wanted is None or not set(wanted) <= set(types)
    if is_learned:
        learned = _learned(ranges, types)
        check_columns(found.url, (*types, *(wanted or ())), learned.names)
        schema = learned if wanted is None else pa.schema([learned.field(name) for name in wanted])
    else:
        schema = pa.schema([(name, types[name]) for name in wanted or ()])
    parts = [
        JsonLinesPart(piece.file, piece.begin, piece.end, schema=schema, is_checked=is_learned) for piece in ranges
    ]
    return found.source(schema, parts)


def _wire(kind: pa.DataType) -> pa.DataType:
    """Return the type as which the parser reads values of a type: it has no dates."""
    if pt.is_date(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wire(kind.value_type)))
    if pt.is_struct(kind):
        return pa.struct([child.with_type(_wire(child.type)) for child in kind])
    return kind


def _replaced(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with others in place of those that have no fields; nested values may be null."""
    if pt.is_list(kind):
        return pa.list_(_replaced(kind.value_type, leaf))
    if pt.is_struct(kind):
        return pa.struct([(child.name, _replaced(child.type, leaf)) for child in kind])
    return leaf(kind)


def _usable(kind: pa.DataType) -> pa.DataType:
    """Return the type, with text in place of a type of which only nulls were seen."""
    return _replaced(kind, lambda each: pa.string() if pt.is_null(each) else each)


def _learned(ranges: Sequence[LineRange], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Read all lines, and return the types of the columns."""
    kinds: dict[str, pa.DataType] = {}
    widths: dict[str, int] = {}
    filled: dict[str, int] = {}
    largest: dict[str, int] = {}
    rows = 0
    for block in (block for piece in ranges for block in _blocks(piece)):
        table = _parsed(block, types, "infer")
        rows += table.num_rows
        for name, column in zip(table.schema.names, table.columns, strict=True):
            kind = types.get(name)
            if kind is None:  # texts that look like times are texts
                kind = _replaced(column.type, lambda each: pa.string() if pt.is_temporal(each) else each)
            kinds[name] = _joined(block, name, kinds[name], kind, column) if name in kinds else kind
            widths[name] = _num_leaves(kinds[name])
            filled[name] = filled.get(name, 0) + len(column) - column.null_count
            for path, values in leaves(name, column):
                if pt.is_integer(values.type):
                    ends = pc.min_max(values).as_py()  # whole numbers stay whole: all digits count
                    largest[path] = max(largest.get(path, 0), abs(ends["min"] or 0), abs(ends["max"] or 0))
        if sum(widths.values()) > MAX_COLUMNS:
            raise too_many_keys(block, 0)
    for name, kind in kinds.items():
        fields_in = () if name in types else leaves(name, pa.chunked_array([], kind))
        if any(pt.is_float64(values.type) and largest.get(path, 0) > MAX_EXACT for path, values in fields_in):
            raise SchemaError(f"{ranges[0].file.url}: {_inexact(name)}", column=name)
    fields = [pa.field(name, _usable(kind), nullable=filled[name] < rows) for name, kind in kinds.items()]
    if not fields:
        raise FormatError(
            f'{ranges[0].file.url}: there are no lines with keys. Each line is one object, such as {{"id": 1}}'
        )
    return pa.schema(fields)


def _blocks(piece: LineRange, num_columns: int | None = None, *, is_checked: bool = False) -> Iterator[Block]:
    """Yield checked lines, in blocks with a bounded number of cells, also where each line has keys that others lack.

    `num_columns` is the number of leaves of the columns; by default estimated. `is_checked` is True if these lines were
    read before, to learn types.
    """
    for block in line_blocks(piece):
        if not is_checked:
            check_lines(block)
        yield from block.divided(max(1, _MAX_CELLS // max(1, num_columns or estimated_columns(block.data))))


def _num_leaves(kind: pa.DataType) -> int:
    return sum(map(_num_leaves, (kind.field(place).type for place in range(kind.num_fields)))) or 1


def _read(data: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Return the objects of whole lines that were checked.

    The parser of pyarrow 26 loses nulls at the begin of a list whose type it does not know yet; a second pass has the
    types of the first one.
    """
    table = _parse(data, schema, unexpected)
    try:
        table.validate(full=True)  # the parser does not look whether text is UTF-8
        return table
    except pa.ArrowInvalid:
        kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
        table = _parse(data, pa.schema([(name, _usable(kind)) for name, kind in kinds.items()]), unexpected)
        table.validate(full=True)
    columns = [
        column if column.type == kinds[name] else pa.chunked_array([pa.array(column.to_pylist(), kinds[name])])
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, table.schema.names)


def _parse(data: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    return pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(block_size=len(data) + 1, use_threads=False),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema if schema.names else None, unexpected_field_behavior=unexpected
        ),
    )


def _wire_schema(types: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([(name, _wire(kind)) for name, kind in types.items()])


def _parsed(block: Block, declared: Mapping[str, pa.DataType], unexpected: str) -> pa.Table:
    """Return the objects of a block; columns whose types are not declared are inferred or ignored.

    Raises:
        FormatError: A line is no JSON object.
        SchemaError: A value has another type than its column, or is no number that a float holds.
    """
    if block.data.isspace():
        return pa.table({})
    try:
        table = _read(block.data, _wire_schema(declared), unexpected)
        names = table.schema.names
        columns = [_cast(column, declared.get(name)) for name, column in zip(names, table.columns, strict=True)]
    except pa.ArrowException as error:
        refuse_first_malformed(block)
        raise _located(block, declared, unexpected, error) from error
    check_rows(block, table.num_rows)
    for name, column in zip(names, columns, strict=True):
        is_declared = name in declared
        offset = inexact_line(block, name, column, is_declared=is_declared)
        if offset is not None:
            reason = infinite_number(block, offset) or _inexact(name, is_declared=is_declared)
            raise block.error(reason, offset, SchemaError)
    return pa.Table.from_arrays(columns, names)


def _cast(column: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    return column if kind is None or kind == column.type else column.cast(kind)


def _inexact(name: str, *, is_declared: bool = False) -> str:
    if is_declared:
        advice = "Declare a wider type in the setting `types`, such as 'float64'"
        return f"column {name!r} has a number beyond its float. {advice}"
    return (
        f"column {name!r} has a number that a float does not hold: a whole number beyond 2^53 among floats, or beyond "
        "64 bits, or one that becomes 0. Declare the type of the column: "
        f"settings={{'types': {{{name!r}: 'float64'}}}} rounds, "
        f"settings={{'types': {{{name!r}: 'decimal128(38, 0)'}}}} keeps whole numbers; nested values need an Arrow type"
    )


def _located(
    block: Block, declared: Mapping[str, pa.DataType], unexpected: str, error: pa.ArrowException
) -> FormatError | SchemaError:
    """Return the error of the parser with file and line: the last of the fewest first lines that it refuses."""
    begins = [offset for offset, _ in lines_of(block.data)]
    ends = [*begins[1:], len(block.data)]

    def is_refused(number: int) -> bool:
        try:
            table = _read(block.data[: ends[number]], _wire_schema(declared), unexpected)
            for name, column in zip(table.schema.names, table.columns, strict=True):
                _cast(column, declared.get(name))
        except pa.ArrowException:
            return True
        return False

    place = min(bisect.bisect_left(range(len(ends)), 1, key=is_refused), len(ends) - 1)
    if infinite := infinite_number(block, begins[place]):
        return block.error(infinite, begins[place], SchemaError)
    reason = _ROW.sub("", str(error)).removeprefix("JSON parse error: ")[:200]
    changed = _CHANGED.search(reason)
    if changed is None:
        advice = (
            "Correct the value, or declare another type in the setting `types`, such as 'float64' for numbers or "
            "'string' for texts"
        )
    elif changed[1].split("/")[0] in declared:
        advice = "Remove the type of the column from the setting `types`, or declare the one that its values have"
    else:
        advice = "Write all values of a key with one type"
    return block.error(f"{reason}. {advice}", begins[place], SchemaError)


def _joined(block: Block, name: str, one: pa.DataType, other: pa.DataType, column: pa.ChunkedArray) -> pa.DataType:
    """Return the type that holds the values before a block, and those of its column.

    Raises:
        SchemaError: There is none.
    """
    if one == other:
        return one
    try:
        if not (pt.is_null(one) or pt.is_null(other)) and pt.is_string(one) != pt.is_string(other):
            raise pa.ArrowTypeError("texts and other values")
        schemas = [pa.schema([(name, one)]), pa.schema([(name, other)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
    except pa.ArrowException as error:
        row = pc.index(column.is_valid(), value=True).as_py()
        offset = next(itertools.islice(lines_of(block.data), max(0, row), None), (0, b""))[0]
        raise block.error(
            f"the values of {name!r} are {other} from here, and {one} before. Write all values of a key with one type",
            offset,
            SchemaError,
        ) from error


@dataclass(frozen=True, kw_only=True)
class JsonLinesPart(LineRange):
    """The objects of one piece of a file."""

    schema: pa.Schema = field(repr=False)
    is_checked: bool
    """True if the lines were read before."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the objects in order.

        Raises:
            FormatError: A line is no JSON object.
            SchemaError: A value has another type than its column.
        """
        declared = {column.name: column.type for column in self.schema}
        num_columns = sum(map(_num_leaves, declared.values()))
        for block in _blocks(self, num_columns, is_checked=self.is_checked):
            table = _parsed(block, declared, "ignore")
            for batch in table.to_batches(BATCH_ROWS):
                # The parser makes columns of nulls for keys that are missing, so nullability is checked here.
                columns = [batch.column(name) for name in declared]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
