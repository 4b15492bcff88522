"""The row hash of a version: a multiset hash of its samples (`smalti.format.row_hash`), as text in its header."""

from collections.abc import Iterable

from smalti.format.row_hash import MODULUS, hash_each, hash_rows

__all__ = ["add_row_hashes", "hash_each", "hash_rows", "row_hash_text"]


def row_hash_text(total: int) -> str:
    """The sum as it stands in headers: 32 hex digits."""
    return f"{total % MODULUS:032x}"


def add_row_hashes(parts: Iterable[tuple[str, int]]) -> str:
    """The row hash of all parts together, each a (row hash, number of samples).

    Empty if that of a part with samples is not known.
    """
    known = [(text, rows) for text, rows in parts if rows]
    return "" if any(not text for text, _ in known) else row_hash_text(sum(int(text, 16) for text, _ in known))
