"""Pausing Python's garbage collector while a large file becomes many small objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection within the block, for code that makes many objects and no cycles.

    The collector looks at all objects again and again while they become more: half the time of parsing a large index.
    Whoever found it running starts it again, so that threads and nested blocks do not disturb one another.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
