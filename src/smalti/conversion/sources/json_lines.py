"""JSON Lines (JSONL, NDJSON), plain or compressed: one object a line; types declared, or learned from all lines.

Texts stay texts, also those that look like dates. A key that some lines lack is a column with nulls. A line that is no
object, or has a value of another type, is an error with file and line. Files are read in pieces, side by side.

Lines are checked on their bytes, before and after the parser, which is native code. Before: the parser ends the process
on a line `null` and on deeply nested values, so neither reaches it; and it reads several objects of one line, or an
object of several lines, which is no JSON Lines. After: numbers that a float does not hold. Lines that look suspicious
are read again by `json`, which decides.
"""

import bisect
import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as pt

from smalti.conversion.files import without_compression
from smalti.conversion.source import OpenedPart, OpenedSource, SourceOptions, check_columns
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
from smalti.writer.tables.values import replace_leaves

_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")
_HADOOP_PART = re.compile(r"(?:.*/)?part-[^/]*\.json")
_ROW = re.compile(r" in row \d+")
_CHANGED = re.compile(r"Column\(/(.*)\) changed from (.*) to (.*)")
_MAX_CELLS = 1 << 24
_MAX_DEPTH = 64
_MAX_EXACT = 1 << 53
_NOT_OBJECT = re.compile(rb"\n[ \t\r]*[^{ \t\r\n]")
_BLANK = re.compile(rb"\n[ \t\r]*\n")
_NULL = re.compile(rb"\}[ \t\r]*null")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{\n"))
_NOT_NESTING = bytes(set(range(256)) - set(b"[{]}"))
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_TEXT = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?', re.DOTALL)
_TOKEN = re.compile(_TEXT.pattern + rb"|[\[\]{}]", re.DOTALL)
_LONG_RUN = re.compile(rb'[^"]{65536,}')
_KEY_END = re.compile(rb'"\s*:')
_MAX_SAMPLED = 32
_MAX_SHOWN = 40  # characters of a number
_LONG_NUMBER = re.compile(rb"[:\[,]\s*-?[0-9]{16,}\s*[,\]}]")
_TINY_NUMBERS = (re.compile(rb"e-0*[1-9][0-9]{2}"), re.compile(rb"E-0*[1-9][0-9]{2}"))
_ZEROS = b"0" * 300


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
        lambda kind: _read(b'{"x": null}\n', {"x": kind}, "ignore"),
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
        OpenedPart(piece.name, piece.num_bytes, partial(_rows_of, piece, schema, is_checked=is_learned))
        for piece in ranges
    ]
    return found.source(schema, parts)


def _wire(kind: pa.DataType) -> pa.DataType:
    """Return the type as which the parser reads values of a type: it has no dates."""
    return replace_leaves(kind, lambda each: pa.string() if pt.is_date(each) else each)


def _usable(kind: pa.DataType) -> pa.DataType:
    """Return the type, with text in place of a type of which only nulls were seen."""
    return replace_leaves(kind, lambda each: pa.string() if pt.is_null(each) else each)


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
                kind = replace_leaves(column.type, lambda each: pa.string() if pt.is_temporal(each) else each)
            kinds[name] = _joined(block, name, kinds[name], kind, column) if name in kinds else kind
            widths[name] = _num_leaves(kinds[name])
            filled[name] = filled.get(name, 0) + len(column) - column.null_count
            for path, values in _leaves(name, column):
                if pt.is_integer(values.type):
                    ends = pc.min_max(values).as_py()  # whole numbers stay whole: all digits count
                    largest[path] = max(largest.get(path, 0), abs(ends["min"] or 0), abs(ends["max"] or 0))
        if sum(widths.values()) > MAX_COLUMNS:
            raise _too_many_keys(block, 0)
    for name, kind in kinds.items():
        fields_in = () if name in types else _leaves(name, pa.chunked_array([], kind))
        if any(pt.is_float64(values.type) and largest.get(path, 0) > _MAX_EXACT for path, values in fields_in):
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
            _check_lines(block)
        yield from block.divided(max(1, _MAX_CELLS // max(1, num_columns or _estimated_columns(block.data))))


def _num_leaves(kind: pa.DataType) -> int:
    return sum(map(_num_leaves, (kind.field(place).type for place in range(kind.num_fields)))) or 1


def _read(data: bytes, declared: Mapping[str, pa.DataType], unexpected: str) -> pa.Table:
    """Return the objects of whole lines that were checked; columns that are declared have their types.

    The parser of pyarrow 26 loses nulls at the begin of a list whose type it does not know yet; a second pass has the
    types of the first one.
    """
    table = _parse(data, pa.schema([(name, _wire(kind)) for name, kind in declared.items()]), unexpected)
    names, kinds = table.schema.names, dict(zip(table.schema.names, table.schema.types, strict=True))
    try:
        table.validate(full=True)  # the parser does not look whether text is UTF-8
        columns = table.columns
    except pa.ArrowInvalid:
        table = _parse(data, pa.schema([(name, _usable(kind)) for name, kind in kinds.items()]), unexpected)
        table.validate(full=True)
        columns = [
            column if column.type == kinds[name] else pa.chunked_array([pa.array(column.to_pylist(), kinds[name])])
            for name, column in zip(names, table.columns, strict=True)
        ]
    kinds |= declared
    cast = [
        column if column.type == kinds[name] else column.cast(kinds[name])
        for name, column in zip(names, columns, strict=True)
    ]
    return pa.Table.from_arrays(cast, names)


def _parse(data: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    return pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(block_size=len(data) + 1, use_threads=False),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema if schema.names else None, unexpected_field_behavior=unexpected
        ),
    )


def _parsed(block: Block, declared: Mapping[str, pa.DataType], unexpected: str) -> pa.Table:
    """Return the objects of a block; columns whose types are not declared are inferred or ignored.

    Raises:
        FormatError: A line is no JSON object.
        SchemaError: A value has another type than its column, or is no number that a float holds.
    """
    if block.data.isspace():
        return pa.table({})
    try:
        table = _read(block.data, declared, unexpected)
    except pa.ArrowException as error:
        _refuse_first_malformed(block)
        raise _located(block, declared, unexpected, error) from error
    codes = np.frombuffer(block.data, np.uint8)
    # Each line is one row, and a line that is blank none. Faster than bytes.count.
    is_even = table.num_rows == np.count_nonzero(codes == ord("\n")) and _BLANK.search(b"\n" + block.data) is None
    if not is_even and table.num_rows != sum(1 for _ in _lines_of(block.data)):
        _refuse_first_malformed(block)
    for name, column in zip(table.schema.names, table.columns, strict=True):
        is_declared = name in declared
        offset = _inexact_line(block, name, column, is_declared=is_declared)
        if offset is not None:
            reason = _infinite_number(block, offset) or _inexact(name, is_declared=is_declared)
            raise block.error(reason, offset, SchemaError)
    return table


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
    begins = [offset for offset, _ in _lines_of(block.data)]
    ends = [*begins[1:], len(block.data)]

    def is_refused(number: int) -> bool:
        try:
            _read(block.data[: ends[number]], declared, unexpected)
        except pa.ArrowException:
            return True
        return False

    place = min(bisect.bisect_left(range(len(ends)), 1, key=is_refused), len(ends) - 1)
    if infinite := _infinite_number(block, begins[place]):
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
        offset = next(itertools.islice(_lines_of(block.data), max(0, row), None), (0, b""))[0]
        raise block.error(
            f"the values of {name!r} are {other} from here, and {one} before. Write all values of a key with one type",
            offset,
            SchemaError,
        ) from error


def _rows_of(piece: LineRange, schema: pa.Schema, *, is_checked: bool) -> Iterator[pa.RecordBatch]:
    """Yield the objects of one piece of a file in order; `is_checked` is True if the lines were read before.

    Raises:
        FormatError: A line is no JSON object.
        SchemaError: A value has another type than its column.
    """
    declared = {column.name: column.type for column in schema}
    num_columns = sum(map(_num_leaves, declared.values()))
    for block in _blocks(piece, num_columns, is_checked=is_checked):
        table = _parsed(block, declared, "ignore")
        for batch in table.to_batches(BATCH_ROWS):
            # The parser makes columns of nulls for keys that are missing, so nullability is checked here.
            columns = [batch.column(name) for name in declared]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _check_lines(block: Block) -> None:
    """Return only if the parser can be given these lines.

    Raises:
        FormatError: A line is no object, is not UTF-8, is nested too deeply, or has too many keys.
    """
    data = block.data
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            _refuse_first_malformed(block)
    if _NOT_OBJECT.search(b"\n" + data) or _NULL.search(data):
        for offset, line in _lines_of(data):
            if not line.lstrip().startswith(b"{") or _NULL.search(line):
                _refuse_malformed(block, offset, line)
    brackets = data.translate(None, _NO_BRACKETS)
    if max(map(len, brackets.split(b"\n"))) > _MAX_DEPTH:
        for offset, line in _lines_of(data):
            if _is_deep(line):
                raise block.error(
                    f"values are nested more than {_MAX_DEPTH} levels deep. Store the deep value as text that has JSON",
                    offset,
                )
    step = 2 * MAX_COLUMNS  # a line with more keys, of at least four bytes each, is longer
    if any(data.find(b"\n", begin, begin + step) < 0 for begin in range(0, len(data) - step, step)):
        _refuse_many_keys(block)


def _refuse_first_malformed(block: Block) -> None:
    """Raise an error about the first line that is no JSON object, if there is one.

    Raises:
        FormatError: There is one.
    """
    for offset, line in _lines_of(block.data):
        _refuse_malformed(block, offset, line)


def _lines_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, and where each begins."""
    begin = 0
    for line in data.split(b"\n"):
        if line.strip():
            yield begin, line
        begin += len(line) + 1


def _refuse_malformed(block: Block, offset: int, line: bytes) -> None:
    fault = _fault(line)
    if fault:
        raise block.error(f'{fault}. Each line is one object, such as {{"id": 1}}', offset)


def _fault(line: bytes) -> str | None:
    if _is_deep(line):
        return "values are nested too deeply"
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
    return None if isinstance(value, dict) else f"the line is no object, but a {type(value).__name__}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.100} is there twice")
    return value


def _is_deep(line: bytes) -> bool:
    """Return whether brackets of a line that are not within texts are nested too deeply."""
    if line.count(b"[") + line.count(b"{") <= _MAX_DEPTH:
        return False
    codes = np.frombuffer(line.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    is_outside = np.cumsum(codes == ord('"'), dtype=np.uint8) % 2 == 0  # an even number of quotes is before it
    brackets = codes[is_outside].tobytes().translate(_AS_LISTS, _NOT_NESTING)
    for _ in range(_MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # removes the innermost level
    return b"[" in brackets


def _refuse_many_keys(block: Block) -> None:
    for offset, line in _lines_of(block.data):
        if any(_KEY_END.match(line, run.end()) for run in _LONG_RUN.finditer(line)):
            raise block.error("a key has more than 65536 bytes. Store it as a value", offset)
        if line.count(b":") > MAX_COLUMNS and _has_many_paths(line):
            raise _too_many_keys(block, offset)


def _has_many_paths(line: bytes) -> bool:
    """Return whether a line has keys at too many places; equal keys in the objects of a list are at one place."""
    places: dict[tuple[int, bytes], int] = {}
    place, parents, are_lists = 0, [0], [False]
    for token in _TOKEN.finditer(line):
        mark = token[0][:1]
        if token[2]:
            place = places.setdefault((parents[-1], token[1]), len(places) + 1)
            if len(places) > MAX_COLUMNS:
                return True
        elif mark in b"{[":
            parents.append(parents[-1] if are_lists[-1] else place)
            are_lists.append(mark == b"[")
        elif mark in b"}]" and len(parents) > 1:
            parents.pop()
            are_lists.pop()
            place = parents[-1]
    return False


def _estimated_columns(data: bytes) -> int:
    """Return about how many keys these lines have, by two samples: further keys come at the rate of the second one."""
    num_lines = data.count(b"\n")
    number = min(_MAX_SAMPLED, num_lines // 8)
    if not number:
        return 1
    samples: list[set[bytes]] = []
    for place in range(2):
        begins = (data.find(b"\n", (2 * each + place) * len(data) // (2 * number)) + 1 for each in range(number))
        lines = b"".join(data[begin : data.find(b"\n", begin) + 1] for begin in begins)
        samples.append({name for name, colon in _TEXT.findall(lines) if colon})
    first, second = samples
    return len(first | second) + len(second - first) * num_lines // number


def _too_many_keys(block: Block, offset: int) -> FormatError | SchemaError:
    """Return an error about the line at which there are more keys than columns can be."""
    return block.error(
        f"there are more than {MAX_COLUMNS} different keys. Store values that belong together as one list, or as a "
        "list of objects with a name and a value",
        offset,
    )


def _infinite_number(block: Block, offset: int) -> str | None:
    """Return what is wrong with a number of a line that is larger than all floats; None if there is none."""
    found: list[str] = []

    def read(text: str) -> None:
        if math.isinf(float(text)):
            found.append(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")

    with contextlib.suppress(ValueError, RecursionError):  # of a line that is no JSON
        json.loads(block.data[offset:].split(b"\n", 1)[0], parse_int=read, parse_float=read)
    if not found:
        return None
    return (
        f"the number {found[0]} is larger than all floats. Write null in its place, or write all numbers of the key as "
        "texts, of type 'string'"
    )


def _leaves(path: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the values of a column that are no structs and lists, also those within them, each with its path."""
    if pt.is_struct(column.type):
        for child, values in zip(column.type, column.flatten(), strict=True):
            yield from _leaves(f"{path}.{child.name}", values)
    elif pt.is_list(column.type):
        yield from _leaves(f"{path}[]", pc.list_flatten(column))
    else:
        yield path, column


def _inexact_line(block: Block, name: str, column: pa.ChunkedArray, *, is_declared: bool) -> int | None:
    """Return where the first line begins with a number in this column that a float does not hold; None for none.

    That is a number that becomes infinite; unless the caller declares a float, also one that becomes 0, and a whole
    number that becomes another one.
    """
    floats = [values for _, values in _leaves(name, column) if pt.is_floating(values.type)]
    if not any(_is_suspicious(values, block.data, is_declared=is_declared) for values in floats):
        return None
    for offset, line in _lines_of(block.data):
        try:
            value = json.loads(line, parse_int=_Number, parse_float=_Number).get(name)
        except ValueError:
            _refuse_malformed(block, offset, line)
            raise
        numbers = _float_numbers(value, column.type)
        if any(_is_inexact(number, kind, is_declared=is_declared) for number, kind in numbers):
            return offset
    return None


def _is_suspicious(values: pa.ChunkedArray, data: bytes, *, is_declared: bool) -> bool:
    """Return whether a number among these floats, in the lines of a block, may be inexact."""
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None:
        return False
    largest = max(-bounds["min"], bounds["max"])
    if math.isinf(largest) or is_declared:
        return math.isinf(largest)
    if largest >= _MAX_EXACT and _LONG_NUMBER.search(data):
        return True
    has_zero = bounds["min"] <= 0 <= bounds["max"] and pc.any(pc.equal(values, 0.0)).as_py()
    return has_zero and (any(pattern.search(data) for pattern in _TINY_NUMBERS) or _ZEROS in data)


def _float_numbers(value: Any, kind: pa.DataType) -> Iterator[tuple[_Number, pa.DataType]]:
    """Yield the numbers of a value that are floats in a type."""
    if pt.is_floating(kind) and isinstance(value, _Number):
        yield value, kind
    elif pt.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            yield from _float_numbers(value.get(field.name), field.type)
    elif pt.is_list(kind) and isinstance(value, list):
        for child in value:
            yield from _float_numbers(child, kind.value_type)


def _is_inexact(number: _Number, kind: pa.DataType, *, is_declared: bool) -> bool:
    value = float(number)
    if pt.is_float32(kind):
        value = pa.scalar(value, pa.float64()).cast(pa.float32()).as_py()
    if math.isinf(value):
        return True
    if is_declared:
        return False
    is_whole = number.lstrip("-").isdigit()
    return int(value) != int(number) if is_whole else value == 0 and re.match("[^eE]*[1-9]", number) is not None
