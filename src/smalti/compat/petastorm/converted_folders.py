"""Folders of converted DataFrames: where they are, which folder holds which DataFrame, and when they are removed.

Within a process, equal DataFrames are recognised by Spark's own comparison of plans. With `keep=True`, a note beside
the folders lets a later program find them by a hash of what the DataFrame was computed from.
"""

import atexit
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from smalti.compat.petastorm.reading.parquet import ArrowSource, open_folder
from smalti.errors import StoreError, StoreNotFound
from smalti.storage import LocalStore
from smalti.storage.store import delete_own

_log = logging.getLogger(__name__)

PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"
OUR_CONF = "smalti.converter.cacheDir"


def parent_folder(session: Any) -> str:
    """Return the folder for converted DataFrames from the session's current settings.

    Raises:
        ValueError: neither setting is set, or the address has no scheme.
    """
    for name in (OUR_CONF, PARENT_CACHE_DIR_URL_CONF):
        url = str(session.conf.get(name, None) or "").rstrip("/")
        if not url:
            continue
        parts = urlsplit(url)
        if not parts.scheme:
            raise ValueError(f"{name} is {url!r}, an address without a scheme: prepend file:// for a local folder.")
        is_shared = parts.scheme != "file" or parts.path.startswith(("/dbfs/", "/Volumes/"))
        if _on_databricks() and not is_shared:
            # Read only here: a session may raise an error for this setting.
            is_local = str(session.conf.get("spark.master", "")).strip().lower().startswith("local")
            if not is_local:
                _log.warning(
                    "%s is %s, a folder of one machine, and this cluster has several: give 'file:/dbfs/...' or "
                    "'/Volumes/...', unless a shared disk is mounted there on all of them.",
                    name,
                    url,
                )
        return url
    raise ValueError(
        f"set the Spark setting {PARENT_CACHE_DIR_URL_CONF} or {OUR_CONF} to a folder for converted DataFrames that "
        f'the driver, the executors and the trainers can read: spark.conf.set("{PARENT_CACHE_DIR_URL_CONF}", '
        '"file:///dbfs/tmp/converted").'
    )


def databricks_path(url: str) -> str:
    """Return the address of a user's Parquet files in a form that all machines of a Databricks cluster can read.

    Raises:
        ValueError: on Databricks, the address is local to one machine.
    """
    if not _on_databricks():
        return url
    for prefix in ("dbfs:///Volumes/", "dbfs:/Volumes/", "file:///Volumes/", "file:/Volumes/", "/Volumes/"):
        if url.startswith(prefix):
            return f"file:/Volumes/{url[len(prefix) :]}"
    if url.startswith("dbfs:/") and (url.startswith("dbfs:///") or not url.startswith("dbfs://")):
        return f"file:/dbfs/{url.removeprefix('dbfs:').lstrip('/')}"
    if url.startswith(("file:/dbfs/", "file:///dbfs/")):
        return url
    raise ValueError(
        f"{url}: on Databricks a path of Parquet files must be readable on all machines: 'file:/dbfs/...', "
        "'dbfs:/...' or '/Volumes/...'."
    )


def _on_databricks() -> bool:
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


Files = frozenset[tuple[str, int]]
"""Names and sizes in bytes."""


@dataclass(frozen=True)
class Conversion:
    """A DataFrame's plan and how it is written, kept without the DataFrame so that cached input can be freed."""

    parent: str
    """Folder of the folders."""
    settings: tuple[Any, ...]
    """Options that must be equal for the files of an earlier conversion to be reused."""
    source: Any
    """Identity of the source files: equal plans over changed files are not equal."""
    application: str
    """Identifier of the Spark application; plans of different applications cannot be compared."""
    is_connect: bool
    plan: Any = field(compare=False)
    """The analysed plan on a classic session; with Spark Connect, where a plan is only a message, the DataFrame."""

    @classmethod
    def of(cls, df: Any, source: Any, parent: str, settings: tuple[Any, ...]) -> "Conversion":
        """Return the conversion of a DataFrame."""
        session = df.sparkSession
        if hasattr(df, "_jdf"):
            plan = df._jdf.queryExecution().analyzed()
            return cls(parent, settings, source, str(session.sparkContext.applicationId), is_connect=False, plan=plan)
        application = session.conf.get("spark.app.id", None) or session.session_id
        return cls(parent, settings, source, str(application), is_connect=True, plan=df)

    def equals(self, other: "Conversion") -> bool:
        """Return whether the options are equal, and Spark finds that both plans give the same rows."""
        is_same = "sameSemantics" if self.is_connect else "sameResult"
        return self == other and bool(getattr(self.plan, is_same)(other.plan))


_written_folders: dict[str, tuple[Conversion, Files]] = {}
"""Conversion and files of each folder that this process wrote or found."""
_lock = threading.RLock()
_NOTES_FOLDER = "_kept"


def reuse_or_write(
    conversion: Conversion, key: str | None, write: Callable[[], str], options: Mapping[str, Any] | None
) -> str:
    """Return the folder of an equal DataFrame whose files are unchanged, or else the result of `write()`.

    With a key, an earlier program may have kept the folder, and a note about this one is written beside the folders.
    Thread-safe: of several threads that convert equal DataFrames, one writes.

    Raises:
        StoreError: the note could not be written.
    """
    parent = conversion.parent
    with _lock:
        for url, (earlier, files) in list(_written_folders.items()):
            if earlier.equals(conversion):
                if _files_of(url, options) == files:
                    return url
                _written_folders.pop(url, None)  # removed or changed since
        kept = None if key is None else find_kept_folder(parent, key, options)
        if kept is not None and _files_of(kept[0], options) == kept[1]:
            url, files = kept
        else:
            url = write()
            files = _files_of(url, options)
            if key is not None:
                source = open_folder(parent, options)
                if isinstance(source, ArrowSource):
                    raise StoreError(
                        f"{parent}: `keep=True` needs a folder that Smalti's stores can write; HDFS is not supported.",
                        url=parent,
                    )
                note = {"folder": url.rpartition("/")[2], "files": sorted(files)}
                source.put(f"{_NOTES_FOLDER}/{key}.json", json.dumps(note).encode())
        _written_folders[url] = (conversion, files)
        return url


def _files_of(url: str, options: Mapping[str, Any] | None) -> Files:
    return frozenset((info.key, info.num_bytes) for info in open_folder(url, options).list())


def find_kept_folder(parent: str, key: str, options: Mapping[str, Any] | None) -> tuple[str, Files] | None:
    """Return the noted folder of this DataFrame and its files; None without a readable note."""
    source = open_folder(parent, options)
    name = f"{_NOTES_FOLDER}/{key}.json"
    try:
        data = source.get_range(name, 0, source.size(name))
    except StoreNotFound:
        return None
    try:
        note = json.loads(data)
        folder, files = note["folder"], frozenset((str(name), int(size)) for name, size in note["files"])
        if not isinstance(folder, str) or "/" in folder or folder in {"", ".", ".."}:
            raise ValueError(f"not a folder's name: {folder!r}")
    except (ValueError, TypeError, KeyError) as error:
        _log.warning("%s is damaged and not used: %s", source.locate(name), error)
        return None
    return f"{parent}/{folder}", files


_at_exit: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
"""Folders to remove at the end of the program, with the id of the process that wrote them and its options."""
_handlers: list[Callable[[str], None]] = []


def register_delete_dir_handler(handler: Callable[[str], None] | None) -> None:
    """Remove the folders of converters by a function of your own from now on.

    Args:
        handler: Called with the URL of a folder; None restores the default.

    Examples:
        >>> register_delete_dir_handler(lambda url: print("would remove", url))
        >>> register_delete_dir_handler(None)
    """
    _handlers[:] = [] if handler is None else [handler]


def delete_folder(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Remove a folder and its contents, so that an equal DataFrame is written again; a no-op if it does not exist.

    Raises:
        StoreError: the folder could not be removed.
    """
    _written_folders.pop(url, None)
    _at_exit.pop(url, None)
    if _handlers:
        _handlers[0](url)
        return
    source = open_folder(url, options)
    if isinstance(source, ArrowSource):
        source.filesystem.delete_dir(source.root)
    elif isinstance(source, LocalStore):
        if Path(source.root).is_dir():
            shutil.rmtree(source.root)
    else:
        for info in source.list():
            delete_own(source, info.key)


def delete_at_exit(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Remove the folder when this process ends, before what was registered until now; a failure is then a warning."""
    if not _at_exit:
        atexit.unregister(_delete_all)
        atexit.register(_delete_all)
    _at_exit[url] = (os.getpid(), options)


def _delete_all() -> None:
    for url, (pid, options) in list(_at_exit.items()):
        if pid != os.getpid():  # inherited by a fork
            continue
        try:
            delete_folder(url, options)
        except Exception as error:  # noqa: BLE001 -- best effort at exit; the log names the folder
            _log.warning("could not remove %s, which a converter wrote: %s", url, error)
