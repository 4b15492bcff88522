"""From the name of a compression to the compression: the list of what MDS knows. Knows no shard layout."""

from smalti.errors import SchemaError
from smalti.format.compression_base import Compression
from smalti.format.compression_blocks import Snappy, Zstandard
from smalti.format.compression_streams import Brotli, Bzip2, Gzip

__all__ = ["COMPRESSION_NAMES", "Compression", "parse_compression"]

_FAMILIES: tuple[type[Compression], ...] = (Brotli, Bzip2, Gzip, Snappy, Zstandard)
_NAMED: dict[str, Compression] = {
    **{kind.extension: kind(kind.extension, kind.default_level) for kind in _FAMILIES},
    **{
        f"{kind.extension}:{level}": kind(f"{kind.extension}:{level}", level)
        for kind in _FAMILIES
        for level in kind.levels
    },
}

COMPRESSION_NAMES = frozenset(_NAMED)
"""Every compression that can stand in an index file."""


def parse_compression(text: str | None) -> Compression | None:
    """The compression called `text`; None for None and the empty text.

    Args:
        text: `"br"` (level 11), `"bz2"` (9), `"gz"` (9), `"snappy"` or `"zstd"` (3), or with a level: `"br:0"` to
            `"br:11"`, `"bz2:1"` to `"bz2:9"`, `"gz:0"` to `"gz:9"`, `"zstd:1"` to `"zstd:22"`.

    Raises:
        SchemaError: Any other text.
    """
    if not text:
        return None
    found = _NAMED.get(text)
    if found is None:
        raise SchemaError(
            f"unknown compression {text!r:.80}: expected one of {', '.join(map(_describe, _FAMILIES))}, or none.",
            compression=text,
        )
    return found


def _describe(kind: type[Compression]) -> str:
    name = f'"{kind.extension}"'
    return f'{name} with a level from ":{kind.levels[0]}" to ":{kind.levels[-1]}" or none' if kind.levels else name
