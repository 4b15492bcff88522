"""Holding back the signals that cancel a run while something is started that could not be cleaned up half-way."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_CANCELLING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """SIGINT and SIGTERM that arrive while the body runs take effect when it has ended; for short bodies.

    Only in the main thread, because only there Python lets handlers be set, and only there signals are handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _CANCELLING}
    replaced = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in replaced:
        signal.signal(number, lambda seen, _: arrived.append(seen))
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
