"""Quotes of CSV files: where rows end if values may contain line ends, and whether quotes are well-formed.

A quote opens a value only at the start of a field, is doubled within it, and is closed at the end of the field
(RFC 4180). Within a field that does not begin with one, it is a character like any other. The parser accepts text after
a closing quote, and removes the quote; so that no value is altered, such text is an error here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smalti.conversion.sources.lines import (
    MAX_LINE_BYTES,
    Block,
    LineRange,
    line_blocks,
    too_long,
)
from smalti.errors import FormatError

_NEWLINE, _RETURN = 10, 13
_MAX_QUOTES = 1 << 24
_MAX_HEADER_BYTES = 16 << 20
_LINE_END = re.compile(rb"\r?\n|\r")
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Marks:
    """The delimiter and the quote of a file; an empty quote for none."""

    delimiter: str
    quote: str

    def are_in(self, data: bytes) -> bool:
        """Return whether there is a quote."""
        return bool(self.quote) and self.quote.encode() in data


class _MalformedQuoteError(Exception):
    """Text follows a closing quote at this place."""

    def __init__(self, place: int) -> None:
        self.place = place


def row_blocks(piece: LineRange, marks: Marks) -> Iterator[Block]:
    """Yield blocks of whole rows; their quotes are well-formed.

    Raises:
        FormatError: A quote is malformed or not closed, or a row is longer than `MAX_LINE_BYTES`.
    """
    rest, at = b"", 0
    for lines in line_blocks(piece):
        data = rest + lines.data if rest else lines.data
        block = Block(piece, data, at)
        if len(data) > _MAX_QUOTES and marks.quote and data.count(marks.quote.encode()) > _MAX_QUOTES:
            raise too_long(block, f"row (with more than {_MAX_QUOTES} quotes)")
        try:
            cut = _end_of_rows(data, marks)
        except _MalformedQuoteError as error:
            raise _malformed(block, error.place, marks) from None
        rest = data[cut:]
        if cut:
            yield block if cut == len(data) else Block(piece, data[:cut], at)
            at += cut
        if len(rest) > MAX_LINE_BYTES:
            raise too_long(Block(piece, b"", at), "row (is a quote not closed?)")
    if rest:
        codes = np.frombuffer(rest, np.uint8)
        *_, place = _open_and_close(rest, np.flatnonzero(codes == ord(marks.quote)), marks)
        raise Block(piece, rest, at).error(
            FormatError,
            place,
            f"a quote ({marks.quote}) is opened and not closed. Close it; or if the file has values that begin with "
            "such a character and no quoted values, give settings={'quote': ''}",
        )


def first_row_end(data: bytes, marks: Marks) -> int:
    """Return the place behind the first row of a block whose quotes are well-formed; 0 if the row is too long."""
    first = _LINE_END.search(data)
    if first is not None and not marks.are_in(data[: first.end()]):
        return first.end()
    ends = row_ends(data[: data.rfind(b"\n", 0, _MAX_HEADER_BYTES) + 1], marks)
    return int(ends[0]) if len(ends) else 0


def row_ends(data: bytes, marks: Marks) -> Places:
    """Return the places behind the ends of the rows of a block whose quotes are well-formed; also of empty rows."""
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE)
    returns = np.flatnonzero(codes == _RETURN)
    if len(returns):
        ends = np.sort(np.concatenate([ends, returns[codes[np.minimum(returns + 1, len(codes) - 1)] != _NEWLINE]]))
    if marks.are_in(data):
        ends = ends[np.searchsorted(_structural(data, marks), ends) % 2 == 0]
    return ends + 1


def _end_of_rows(data: bytes, marks: Marks) -> int:
    """Return the place behind the last whole row of whole lines."""
    if not marks.are_in(data):
        return len(data)
    quotes = _structural(data, marks)
    if len(quotes) % 2 == 0:
        return len(data)
    place = data.rfind(b"\n", 0, int(quotes[-1]))
    while place >= 0:
        quotes_before = int(np.searchsorted(quotes, place))
        if quotes_before % 2 == 0:
            break
        place = data.rfind(b"\n", 0, int(quotes[quotes_before - 1]))
    return place + 1


def _structural(data: bytes, marks: Marks) -> Places:
    """Return the places of the quotes that open and close, in turn; both quotes of a doubled one may be among them."""
    codes = np.frombuffer(data, np.uint8)
    quote = ord(marks.quote)
    places = np.flatnonzero(codes == quote)
    is_edge = np.zeros(256, bool)
    is_edge[[ord(marks.delimiter), _NEWLINE, _RETURN, quote]] = True
    opening, closing = places[0::2], places[1::2]
    if opening[0] == 0:
        opening = opening[1:]
    # Every second quote opens: so it is if each one stands at the edge of a field or beside another quote.
    if is_edge[codes[opening - 1]].all() and is_edge[codes[closing + 1]].all():
        return places
    return np.array(list(_open_and_close(data, places, marks)), np.int64)


def _open_and_close(data: bytes, places: Places, marks: Marks) -> Iterator[int]:
    """Yield the places of quotes that open and close; slow, for blocks with quotes within fields without quotes.

    Raises:
        _MalformedQuoteError: Text follows a closing quote.
    """
    quote, edges = ord(marks.quote), {ord(marks.delimiter), _NEWLINE, _RETURN}
    is_open, doubled = False, -1
    for place in places.tolist():
        if is_open:
            if place == doubled:
                continue
            if data[place + 1] == quote:
                doubled = place + 1
                continue
            if data[place + 1] not in edges:
                raise _MalformedQuoteError(place)
            is_open = False
            yield place
        elif not place or data[place - 1] in edges:
            is_open = True
            yield place


def _malformed(block: Block, place: int, marks: Marks) -> Exception:
    shown = block.data[max(0, place - 10) : place + 10].decode("utf-8", "replace").splitlines()
    return block.error(
        FormatError,
        place,
        f"text follows a closing quote, as in {' '.join(shown)!r}. Write a quote within a value as "
        f"{marks.quote * 2}; Spark does so with .option('escape', '\"'). If quotes have no meaning in this file, give "
        "settings={'quote': ''}",
    )
