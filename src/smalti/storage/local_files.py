"""The objects of a store as local files, for code that reads files."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from smalti.storage.local import LocalStore
from smalti.storage.store import Store, check_key


@contextlib.contextmanager
def local_files(store: Store) -> Iterator[Path]:
    """Yield a local folder with the files of a store: its own folder, or a temporary copy.

    Raises:
        StoreError: the store cannot be read, or has a key that is no name of a file.
    """
    if isinstance(store, LocalStore):
        yield store.root
        return
    with tempfile.TemporaryDirectory(prefix="smalti-run-") as folder:
        for info in store.list():
            path = Path(folder, *check_key(info.key).split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                store.fetch(info.key, file)
        yield Path(folder)
