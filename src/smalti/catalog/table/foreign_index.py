"""Fast reading of large index files of other writers, as columns, by one regular expression.

The entries in files of MosaicML's writer differ in names, sizes, hashes and counts only. Parsed as JSON, 10^5 entries
take seconds. A file that does not match the pattern, or is invalid, is left to `parse_index`, which explains the fault.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.catalog.table.columns import Columns, Numbers, RowParser, Texts, Words, canonical
from smalti.catalog.table.screening import screen
from smalti.catalog.table.shard_table import ShardTable, TableContent, check_shards
from smalti.errors import SmaltiError
from smalti.format import ShardInfo, parse_index

_HEAD, _TAIL = '{"shards": [', '], "version": 2}'
_FILE = r'\{"basename": "([^"]+)", "bytes": (\d+), "hashes": (\{[^{}]*\})\}'
_ENTRY = re.compile(rf'(.*, "raw_data": ){_FILE}, "samples": (\d+)(, .*"zip_data": )(?:null|{_FILE})\}}')
_NUMBER, _NAME, _DIGEST = "(0|[1-9][0-9]{0,14})", "([A-Za-z0-9._/=-]+)", re.compile(r': "([0-9a-f]+)"')
_ONCE = ('"raw_data"', '"samples"', '"zip_data"', '"format": "mds"')


@dataclass(frozen=True)
class RegularIndex:
    """The content of such a file, which has no further top-level keys."""

    shards: ShardTable
    digest: str
    """Equal to `digest_of(shards)`."""


def read_regular(data: bytes, *, where: str) -> RegularIndex | None:
    """Return the shards of an index file, checked as by `parse_index`; None if its entries are not regular."""
    try:
        text = data.decode("ascii").rstrip(" \t\r\n")
        end = text.find("}, {", len(_HEAD)) + 1
        if not (end and text.startswith(_HEAD) and text.endswith(_TAIL)) or "\\" in text[:end]:
            return None
        entry = text[len(_HEAD) : end]
        first = _ENTRY.fullmatch(entry)
        if first is None or any(entry.count(key) != 1 for key in _ONCE):
            return None
        (shard,), _ = parse_index(f"{_HEAD}{entry}{_TAIL}".encode(), where=where)
        if not _matches_shard(first, shard):
            return None
        begin, end = len(_HEAD), len(text) - len(_TAIL)
        rows = re.compile(_pattern(first)).findall(text, begin, end)
        kept = len(entry) - sum(map(len, filter(None, _variable_parts(first)))) + len(", ")
        # The matches cover the whole text: their total length is that of the list.
        found = list(zip(*rows, strict=True))
        if sum(len("".join(texts)) for texts in found) + kept * len(rows) != end - begin + len(", "):
            return None
        del text
        return _build(found, shard, where)
    except (SmaltiError, ValueError):
        return None


def _variable_parts(entry: re.Match[str]) -> tuple[str | None, ...]:
    """Return name, bytes, hashes and samples, then name, bytes and hashes of the compressed file."""
    _, *raw, samples, _, name, num_bytes, hashes = entry.groups()
    return (*raw, samples, name, num_bytes, hashes)


def _pattern(entry: re.Match[str]) -> str:
    """Return a pattern of entries that differ from this one in the variable parts only."""
    head, _, _, raw_hashes, _, middle, _, _, zip_hashes = entry.groups()
    zipped = "null" if zip_hashes is None else _file_pattern(zip_hashes)
    return f'{re.escape(head)}{_file_pattern(raw_hashes)}, "samples": {_NUMBER}{re.escape(middle)}{zipped}}}(?:, |\\Z)'


def _file_pattern(hashes: str) -> str:
    texts = _DIGEST.split(hashes)
    found = "".join(
        f': "[0-9a-f]{{{len(part)}}}"' if number % 2 else re.escape(part) for number, part in enumerate(texts)
    )
    return rf'\{{"basename": "{_NAME}", "bytes": {_NUMBER}, "hashes": ({found})\}}'


def _matches_shard(entry: re.Match[str], shard: ShardInfo) -> bool:
    """Return whether the variable parts are those of the parsed entry, with hashes sorted as in a digest."""
    name, num_bytes, hashes, samples, *packed = _variable_parts(entry)
    texts = [(name, num_bytes, hashes), tuple(packed)] if packed[0] is not None else [(name, num_bytes, hashes)]
    files = [file for file in (shard.raw, shard.zip) if file is not None]
    return str(shard.samples) == samples and texts == [
        (
            file.basename,
            str(file.num_bytes),
            "{" + ", ".join(f'"{name}": "{digest}"' for name, digest in sorted(file.hashes.items())) + "}",
        )
        for file in files
    ]


def _build(found: list[tuple[str, ...]], shard: ShardInfo, where: str) -> RegularIndex:
    count = len(found[0])
    schema = {
        "names": list(shard.schema.names),
        "encodings": list(shard.schema.encodings),
        "sizes": list(shard.schema.sizes),
    }
    samples = _numbers(found[3])
    columns = Columns.from_dict(
        {
            "schema": Numbers(_repeat(np.int64(0), count), _repeat(np.False_, count)),
            "partition": Words(_repeat(np.int32(-1), count), []),
            "samples": samples,
            **_file_columns("raw", found[:3], count),
            **_file_columns("zip", found[4:], count),
            "compression": _word(shard.compression, count),
            "hash_names": _word(",".join(shard.hash_names), count),
            "size_limit": Numbers(
                _repeat(np.int64(shard.size_limit or 0), count), _repeat(np.bool_(shard.size_limit is None), count)
            ),
        }
    )
    content = TableContent(columns, RowParser([schema], where), np.zeros(1, np.int64))
    suspects = screen(columns, count, lambda: None).suspects.tolist()
    check_shards([content.read(row, row + 1)[0] for row in suspects], shard.schema)
    return RegularIndex(ShardTable(content), _digest(found, shard))


def _digest(found: list[tuple[str, ...]], shard: ShardInfo) -> str:
    head = canonical([shard.schema.names, shard.schema.encodings, shard.schema.sizes]) + "[null,"
    tail = "," + canonical((shard.compression, shard.hash_names, shard.size_limit))[1:-1] + "]\n"
    raw = _file_texts(found[:3])
    packed = _file_texts(found[4:]) if shard.zip is not None else ["null"] * len(raw)
    digest = hashlib.sha256(b"smalti-manifest-1\n")
    rows = [f"{head}{n},{a},{b}{tail}" for n, a, b in zip(found[3], raw, packed, strict=True)]
    digest.update("".join(rows).encode("ascii"))
    return digest.hexdigest()


def _file_texts(found: Sequence[tuple[str, ...]]) -> list[str]:
    names, sizes, hashes = found
    # All at once: a pair of replacements for each text takes as long as parsing the file.
    short = "\n".join(hashes).replace('": "', '":"').replace('", "', '","').split("\n")
    return [f'["{name}",{size},{text}]' for name, size, text in zip(names, sizes, short, strict=True)]


def _file_columns(part: str, found: Sequence[tuple[str, ...]], count: int) -> dict[str, Numbers | Texts]:
    if not found:
        nothing = Texts(np.zeros(count + 1, np.int32), np.zeros(0, np.uint8), _repeat(np.True_, count))
        return {
            f"{part}_name": nothing,
            f"{part}_bytes": Numbers(_repeat(np.int64(0), count), _repeat(np.True_, count)),
            f"{part}_hashes": nothing,
        }
    names, sizes, hashes = found
    return {f"{part}_name": _texts(names), f"{part}_bytes": _numbers(sizes), f"{part}_hashes": _texts(hashes)}


def _texts(values: Sequence[str]) -> Texts:
    offsets = np.zeros(len(values) + 1, np.int32)
    offsets[1:] = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    data = np.frombuffer("".join(values).encode("ascii"), np.uint8)
    return Texts(offsets, data, _repeat(np.False_, len(values)))


def _numbers(values: Sequence[str]) -> Numbers:
    return Numbers(np.fromiter(map(int, values), np.int64, len(values)), _repeat(np.False_, len(values)))


def _word(word: str | None, count: int) -> Words:
    return Words(_repeat(np.int32(-1 if word is None else 0), count), [word])


def _repeat(value: Any, count: int) -> NDArray[Any]:
    return np.broadcast_to(value, (count,))
