"""Versions that were made from the same rows: found by the facts of their lineage, and rolled back to."""

from collections.abc import Mapping
from typing import Any

from smalti.catalog import Manifest, rollback
from smalti.catalog.header import Header, read_header
from smalti.catalog.reading import headers_before
from smalti.storage import Store


def find_same(
    store: Store, newest: Manifest | None, facts: Mapping[str, Any], *, write_id: str = ""
) -> Manifest | None:
    """Return the newest version whose lineage has these facts; None if there is none. Needs no Spark.

    If others came after it, it is rolled back to: the same shards and digest under a new number.

    Args:
        store: Store of the set.
        newest: Its newest version.
        facts: Facts of the lineage, by name.
        write_id: A version that was written under this id is accepted too.

    Raises:
        CatalogError: As for `rollback`.
    """

    def is_same(version: Manifest | Header) -> bool:
        has_facts = all(version.lineage.get(name) == fact for name, fact in facts.items())
        return has_facts or (bool(write_id) and version.write_id == write_id)

    if newest is None or is_same(newest):
        return newest
    if not newest.version:  # a plain MDS set
        return None
    last = read_header(store, newest.version)
    for header in headers_before(store, last):
        if header.version not in last.expired and is_same(header):
            return rollback(store, header.version)
    return None
