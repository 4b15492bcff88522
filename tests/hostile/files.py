"""Temporary files for cases that last a fraction of a millisecond."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@contextmanager
def scratch_files(contents: Sequence[bytes]) -> Iterator[list[Path]]:
    """Write files with these contents, removed afterwards; a name is never written twice while a map of it lives."""
    paths = [_folder() / str(place) for place in range(len(contents))]
    try:
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


@cache
def _folder() -> Path:
    # In memory if possible: the speed of a disk is not tested here.
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="smalti-hostile-", dir=memory if memory.is_dir() else None)
    _FOLDERS.append(made)  # removed when the process ends
    return Path(made.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
