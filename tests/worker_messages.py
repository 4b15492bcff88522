"""Messages that CPython itself prints in a loader's worker that ends while it hands a batch over; they are harmless."""

import re

_TRACEBACK = r"Traceback \(most recent call last\):\n"
_SHARER = re.compile(_TRACEBACK + r"  File .*resource_sharer.*\n(?: .*\n)+ConnectionResetError: .*\n")
"""Printed if the process that takes the batch ended."""
_FOLDER = re.compile(_TRACEBACK + r"(?: .*\n)+?  File .*, in _remove_temp_dir\n(?: .*\n)+OSError: .*'[^']*/pymp-\w+'\n")
"""Printed if the worker ended while a thread of it made the first socket in the folder that is removed at its end."""


def without_harmless(text: str) -> str:
    """Return what a program with worker processes printed to stderr, without those messages."""
    for pattern in (_SHARER, _FOLDER):
        text = pattern.sub("", text)
    return text
