"""The version of a remote set that this machine opened last: a hint in the cache folder, which saves a round trip.

The newest version is always looked up in the store. The hint says which header to request at the same time as the index
file; a wrong, lost or damaged hint costs that round trip and nothing else.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from smalti.cache.sources import CacheOptions, detect_cache_folder
from smalti.catalog.header import INDEX
from smalti.regular_files import read_regular_text
from smalti.storage import Store
from smalti.storage.store import temporary_name

FOLDER = ".versions"
_MAX_DIGITS = 18


class LastVersion:
    """The hint for one set; does nothing for a set on this machine, and in a folder that mirrors a set."""

    def __init__(self, store: Store, options: CacheOptions) -> None:
        self._path: Path | None = None
        if store.local_path(INDEX) is None and not options.mirror:
            folder = Path(options.local).expanduser() if options.local else detect_cache_folder()
            self._path = folder / FOLDER / hashlib.sha256(store.url.encode()).hexdigest()[:32]

    def read(self) -> int | None:
        """Return the version that was opened last; None if that is not known."""
        if self._path is not None:
            with suppress(OSError, ValueError):
                text = read_regular_text(self._path, "ascii")
                if text.isdecimal() and len(text) <= _MAX_DIGITS and int(text):
                    return int(text)
        return None

    def write(self, version: int) -> None:
        """Record the version that was opened. Best effort, and only where copies of shards lie already."""
        if self._path is not None and version and self._path.parents[1].is_dir() and self.read() != version:
            with suppress(OSError):
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                # A new file in place of the old one: a link there, in a folder that users share, is not followed.
                part = self._path.with_name(temporary_name(self._path.name))
                try:
                    part.write_text(str(version), "ascii")
                    part.replace(self._path)
                finally:
                    part.unlink(missing_ok=True)
