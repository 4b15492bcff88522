"""Modification times in listings, in the forms of all client libraries."""

from datetime import datetime, timedelta, timezone

import pytest

from smalti.storage import LocalStore
from smalti.storage.store import time_of
from tests.stores import MemoryStore

MOMENT = 1_717_755_072.0  # 2024-06-07 10:11:12 UTC


@pytest.mark.parametrize(
    "info",
    [
        {"LastModified": datetime(2024, 6, 7, 10, 11, 12, tzinfo=timezone.utc)},
        {"LastModified": datetime(2024, 6, 7, 12, 11, 12, tzinfo=timezone(timedelta(hours=2)))},
        {"last_modified": datetime(2024, 6, 7, 10, 11, 12)},  # noqa: DTZ001 -- a naive time of a store is UTC
        {"last_modified": "1717755072000"},
        {"last_modified": "Fri, 07 Jun 2024 10:11:12 GMT"},
        {"updated": "2024-06-07T10:11:12Z"},
        {"updated": "2024-06-07T10:11:12.000Z"},
        {"mtime": 1717755072},
        {"last_modified": "", "created": datetime(2024, 6, 7, 10, 11, 12, tzinfo=timezone.utc)},
    ],
)
def test_every_form_of_a_time_gives_the_same_seconds(info):
    assert time_of(info) == MOMENT


@pytest.mark.parametrize("info", [{}, {"LastModified": None}, {"mtime": "yesterday"}, {"mtime": 0}, {"mtime": True}])
def test_invalid_and_missing_times_are_none(info):
    assert time_of(info) is None


def test_a_memory_store_has_its_own_clock():
    now = [100.0]
    store = MemoryStore(clock=lambda: now[0])
    store.put("a", b"")
    now[0] = 250.0
    store.put_if_absent("b", b"")
    store.put("a", b"")
    assert [(info.key, info.changed) for info in store.list()] == [("a", 250.0), ("b", 250.0)]


def test_a_folder_lists_the_times_of_its_files(tmp_path):
    import os

    store = LocalStore(tmp_path)
    store.put("a", b"1")
    os.utime(tmp_path / "a", (MOMENT, MOMENT))
    assert [info.changed for info in store.list()] == [MOMENT]
