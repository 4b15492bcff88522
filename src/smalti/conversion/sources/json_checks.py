"""Checks of JSON lines on their bytes, before and after the parser, which is native code.

Before: the parser ends the process on a line `null` and on deeply nested values, so neither reaches it; and it reads
several objects of one line, or an object of several lines, which is no JSON Lines. After: numbers that a float does not
hold. Lines that look suspicious are read again by `json`, which decides.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.conversion.sources.lines import MAX_COLUMNS, Block
from smalti.errors import FormatError, SchemaError

MAX_DEPTH = 64
MAX_EXACT = 1 << 53
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


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def check_lines(block: Block) -> None:
    """Return only if the parser can be given these lines.

    Raises:
        FormatError: A line is no object, is not UTF-8, is nested too deeply, or has too many keys.
    """
    data = block.data
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            refuse_first_malformed(block)
    if _NOT_OBJECT.search(b"\n" + data) or _NULL.search(data):
        for offset, line in lines_of(data):
            if not line.lstrip().startswith(b"{") or _NULL.search(line):
                _refuse_malformed(block, offset, line)
    brackets = data.translate(None, _NO_BRACKETS)
    if max(map(len, brackets.split(b"\n"))) > MAX_DEPTH:
        for offset, line in lines_of(data):
            if _is_deep(line):
                raise block.error(
                    f"values are nested more than {MAX_DEPTH} levels deep. Store the deep value as text that has JSON",
                    offset,
                )
    step = 2 * MAX_COLUMNS  # a line with more keys, of at least four bytes each, is longer
    if any(data.find(b"\n", begin, begin + step) < 0 for begin in range(0, len(data) - step, step)):
        _refuse_many_keys(block)


def check_rows(block: Block, rows: int) -> None:
    """Return only if each line was one row.

    Raises:
        FormatError: A line has several objects, or an object has several lines.
    """
    codes = np.frombuffer(block.data, np.uint8)
    # Faster than bytes.count; a line that is blank has no row.
    if rows == np.count_nonzero(codes == ord("\n")) and _BLANK.search(b"\n" + block.data) is None:
        return
    if rows != sum(1 for _ in lines_of(block.data)):
        refuse_first_malformed(block)


def refuse_first_malformed(block: Block) -> None:
    """Raise an error about the first line that is no JSON object, if there is one.

    Raises:
        FormatError: There is one.
    """
    for offset, line in lines_of(block.data):
        _refuse_malformed(block, offset, line)


def lines_of(data: bytes) -> Iterator[tuple[int, bytes]]:
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
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    codes = np.frombuffer(line.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    is_outside = np.cumsum(codes == ord('"'), dtype=np.uint8) % 2 == 0  # an even number of quotes is before it
    brackets = codes[is_outside].tobytes().translate(_AS_LISTS, _NOT_NESTING)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # removes the innermost level
    return b"[" in brackets


def _refuse_many_keys(block: Block) -> None:
    for offset, line in lines_of(block.data):
        if any(_KEY_END.match(line, run.end()) for run in _LONG_RUN.finditer(line)):
            raise block.error("a key has more than 65536 bytes. Store it as a value", offset)
        if line.count(b":") > MAX_COLUMNS and _has_many_paths(line):
            raise too_many_keys(block, offset)


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


def estimated_columns(data: bytes) -> int:
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


def too_many_keys(block: Block, offset: int) -> FormatError | SchemaError:
    """Return an error about the line at which there are more keys than columns can be."""
    return block.error(
        f"there are more than {MAX_COLUMNS} different keys. Store values that belong together as one list, or as a "
        "list of objects with a name and a value",
        offset,
    )


def infinite_number(block: Block, offset: int) -> str | None:
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


def leaves(path: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the values of a column that are no structs and lists, also those within them, each with its path."""
    if pt.is_struct(column.type):
        for child, values in zip(column.type, column.flatten(), strict=True):
            yield from leaves(f"{path}.{child.name}", values)
    elif pt.is_list(column.type):
        yield from leaves(f"{path}[]", pc.list_flatten(column))
    else:
        yield path, column


def inexact_line(block: Block, name: str, column: pa.ChunkedArray, *, is_declared: bool) -> int | None:
    """Return where the first line begins with a number in this column that a float does not hold; None for none.

    That is a number that becomes infinite; unless the caller declares a float, also one that becomes 0, and a whole
    number that becomes another one.
    """
    floats = [values for _, values in leaves(name, column) if pt.is_floating(values.type)]
    if not any(_is_suspicious(values, block.data, is_declared=is_declared) for values in floats):
        return None
    for offset, line in lines_of(block.data):
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
    if largest >= MAX_EXACT and _LONG_NUMBER.search(data):
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
