"""The search for secrets while something runs: in the command lines of all processes, and in its files."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

SECONDS = 0.2
"""Between two looks at the processes."""
_LOOKS_PER_SEARCH = 5
"""Files are searched less often: reading them takes longer."""


@contextlib.contextmanager
def watching(secrets, *folders):
    """Yield the set of the command lines that are seen while the body runs, and that of files with a secret."""
    commands, files, is_over = set(), set(), threading.Event()

    def watch():
        looks = 0
        while not is_over.wait(SECONDS):
            commands.update(_commands())
            looks += 1
            if looks % _LOOKS_PER_SEARCH == 0:
                files.update(files_with(secrets, *folders))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield commands, files
    finally:
        is_over.set()
        thread.join(60)
        files.update(files_with(secrets, *folders))


def paths_below(folder: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder that programs may change meanwhile, at which `rglob` would fail."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent) / name for name in (*folders, *files))


def files_with(secrets, *folders) -> list[Path]:
    """Return the files below the folders whose content or name has a secret."""
    found = []
    for file in (file for folder in folders for file in paths_below(Path(folder))):
        with contextlib.suppress(OSError):  # removed meanwhile
            content = file.read_bytes() if file.is_file() else b""
            if any(secret in file.name or secret.encode() in content for secret in secrets):
                found.append(file)
    return found


def has_secret(secrets, commands) -> list[bytes]:
    """Return the command lines that contain a secret."""
    return [command for command in commands if any(secret.encode() in command for secret in secrets)]


def _commands():
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            yield file.read_bytes()
