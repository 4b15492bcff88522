"""Files for cases that last a fraction of a millisecond."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@contextmanager
def scratch_files(contents: Sequence[bytes]) -> Iterator[list[Path]]:
    """Files with these contents, removed afterwards; never written twice, so a map that still lives stays whole."""
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
    # In memory where there is such a place: a disk's speed is not what is tested.
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="smalti-hostile-", dir=memory if memory.is_dir() else None)
    _KEPT.append(made)  # removed when the process ends
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
