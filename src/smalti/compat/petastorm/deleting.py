"""Removing what a converter wrote: when asked to, and when the program ends."""

import atexit
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smalti.compat.petastorm.sources import ArrowSource, StoreSource, open_place
from smalti.storage import LocalStore

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_at_exit: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
"""Folders that this program removes at its end, with the process that wrote them and its options."""


def register_delete_dir_handler(handler: Callable[[str], None] | None) -> None:
    """Makes `handler(url)` remove the folders of converters from now on; None for our own way."""
    _handlers[:] = [] if handler is None else [handler]


def delete_folder(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Removes a folder and all that is in it; nothing happens when it is not there.

    Raises:
        StoreError: it could not be removed.
    """
    with _lock:
        _at_exit.pop(url, None)
    _remove(url, options)


def delete_at_exit(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Has the folder removed when this process ends; a failure is then a warning in the log."""
    with _lock:
        if not _at_exit:
            atexit.unregister(_delete_all)
            atexit.register(_delete_all)
        _at_exit[url] = (os.getpid(), options)


_handlers: list[Callable[[str], None]] = []


def _remove(url: str, options: Mapping[str, Any] | None) -> None:
    if _handlers:
        _handlers[0](url)
        return
    source = open_place(url, options).source
    if isinstance(source, ArrowSource):
        source.filesystem.delete_dir(source.root)
    elif isinstance(source, StoreSource) and isinstance(source.store, LocalStore):
        if Path(source.store.root).is_dir():
            shutil.rmtree(source.store.root)
    elif isinstance(source, StoreSource):
        for info in source.list():
            source.store.delete(info.key)


def _delete_all() -> None:
    with _lock:
        folders = list(_at_exit.items())
        _at_exit.clear()
    for url, (pid, options) in folders:
        if pid != os.getpid():  # a fork's copy of the list
            continue
        try:
            _remove(url, options)
        except Exception as error:  # noqa: BLE001 -- the program ends; whoever reads the log can remove it
            _log.warning("could not remove %s, which a converter wrote: %s", url, error)
