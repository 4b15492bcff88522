"""Versions that were made from the same rows: found by what their lineage says, and rolled back to."""

from collections.abc import Mapping
from typing import Any

from smalti.catalog import Manifest, rollback
from smalti.catalog.header import Header, read_header
from smalti.catalog.reading import headers_before
from smalti.storage import Store


def find_same(store: Store, newest: Manifest | None, wanted: Mapping[str, Any]) -> Manifest | None:
    """Return the newest version whose lineage has these facts; None if there is none. Needs no Spark.

    If others came after it, it is rolled back to: the same shards and digest under a new number.

    Args:
        store: of the set.
        newest: its newest version.
        wanted: facts of the lineage.

    Raises:
        CatalogError: as for `rollback`.
    """

    def is_wanted(version: Manifest | Header) -> bool:
        return all(version.lineage.get(name) == fact for name, fact in wanted.items())

    if newest is None or is_wanted(newest):
        return newest
    if not newest.version:  # a plain MDS set
        return None
    last = read_header(store, newest.version)
    for header in headers_before(store, last):
        if header.version not in last.expired and is_wanted(header):
            return rollback(store, header.version)
    return None
