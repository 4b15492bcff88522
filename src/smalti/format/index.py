"""Index files: the list of a shard set's shards, read strictly and within limits, written for MosaicML's reader."""

import gc
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from smalti.errors import IndexFileError
from smalti.format.info import ShardInfo, check_version
from smalti.format.json_fields import Fields, fault, is_deeper_than
from smalti.format.sizes import VERSION

MAX_INDEX_BYTES = 1 << 29
"""Largest index file that is parsed: about a million shards with two hashes each."""
_MAX_DEPTH = 64  # levels of nesting in an index file


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection within the block, for code that makes many objects and no cycles.

    The collector scans a growing number of objects again and again, which takes half the time of parsing a large index.
    It is resumed only by the block that paused it, so threads and nested blocks do not interfere.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def parse_index(data: bytes, *, where: str) -> tuple[list[ShardInfo], dict[str, Any]]:
    """Return the shards of an index file, and its other top-level keys (`"smalti"`, for example).

    Args:
        data: The file's content, at most 512 MiB.
        where: Its name, for messages.

    Raises:
        IndexFileError: Not such a file; the message has the place as a JSON path. Also if this version cannot read an
            encoding, format or compression, so that the error does not come at the first sample.
    """
    return shards_of(load_strict(data, where=where), where=where)


@uncollected()
def shards_of(top: Any, *, where: str) -> tuple[list[ShardInfo], dict[str, Any]]:
    """Return the same from an index file that `load_strict` parsed."""
    fields = Fields(top, f"{where}: $")
    check_version(fields)
    entries = fields.get("shards")
    if not isinstance(entries, list):
        raise fault(fields.at("shards"), "a list", entries)
    shards = [ShardInfo.from_json(entry, where=f"{fields.where}.shards[{i}]") for i, entry in enumerate(entries)]
    _check_distinct(shards, fields.where)
    return shards, {key: value for key, value in top.items() if key not in {"shards", "version"}}


def emit_index(shards: Sequence[ShardInfo], extra: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of an index file that MosaicML's reader opens; it ignores the `extra` top-level keys.

    Raises:
        IndexFileError: `extra` would replace the shards or the version, or cannot be written as strict JSON.
    """
    taken = {"shards", "version"} & set(extra or {})
    if taken:
        raise IndexFileError(f"`extra` may not hold {sorted(taken)}: those are the index file's own keys.")
    obj = {**(extra or {}), "shards": [shard.to_json() for shard in shards], "version": VERSION}
    try:
        return json.dumps(obj, sort_keys=True, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise IndexFileError(f"`extra` cannot be written as strict JSON: {error}.") from error


def load_strict(data: bytes, *, where: str, max_bytes: int = MAX_INDEX_BYTES) -> Any:
    """Parse JSON strictly: UTF-8, no key twice in one object, no NaN, at most 64 levels deep.

    Raises:
        IndexFileError: Anything else.
    """
    if len(data) > max_bytes:
        raise IndexFileError(f"{where}: {len(data)} bytes are more than the {max_bytes} allowed.", where=where)
    try:
        obj = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise IndexFileError(
            f"{where}: not readable JSON ({reason}); it was cut short or damaged. Write it again.", where=where
        ) from error
    if is_deeper_than(obj, _MAX_DEPTH):
        raise IndexFileError(f"{where}: nested more than {_MAX_DEPTH} levels deep.", where=where)
    return obj


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    obj = dict(pairs)
    if len(obj) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return obj


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _check_distinct(shards: Sequence[ShardInfo], where: str) -> None:
    seen: dict[str, int] = {}
    for i, shard in enumerate(shards):
        for name in shard.file_names:
            first = seen.setdefault(name, i)
            if first != i:
                raise IndexFileError(
                    f"{where}.shards[{i}]: file {name!r} is listed by shards[{first}] already; each shard may be "
                    "listed once. Merge the index files again.",
                    where=where,
                    name=name,
                )
