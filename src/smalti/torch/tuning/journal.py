"""The journal of a study in any store: each entry is an object that is put exclusively, under the next number.

An entry is there or not, whenever its writer is killed, and two writers never share a number.
"""

import json
from collections.abc import Iterable
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from smalti.errors import StoreExists, StoreNotFound
from smalti.storage import Store
from smalti.storage.store import put_own

FOLDER = "journal"


class StoreJournal(BaseJournalBackend):  # type: ignore[misc]  # Optuna is not analysed
    """A journal for Optuna's `JournalStorage`."""

    def __init__(self, store: Store) -> None:
        store.check_exclusive_puts(FOLDER)
        self._store = store
        self._logs: list[dict[str, Any]] = []
        self._next = 0

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the entries from a number on.

        Raises:
            StoreError: the store cannot be read.
        """
        self._refresh()
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append entries; they are one object.

        Raises:
            StoreError: the store cannot be written.
        """
        data = json.dumps(logs, separators=(",", ":")).encode()
        while True:
            key = self._key()
            try:
                put_own(self._store, key, data)
            except StoreExists:
                self._refresh()
                continue
            return

    def _refresh(self) -> None:
        while True:
            try:
                entry = self._store.get(self._key())
            except StoreNotFound:
                return
            self._logs += json.loads(entry)
            self._next += 1

    def _key(self) -> str:
        return f"{FOLDER}/{self._next:08d}.json"
