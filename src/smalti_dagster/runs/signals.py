"""The signals that cancel a run, at moments when an exception in the main thread would do harm or not be enough.

While something is started that could not be cleaned up half-way, they wait. While another process computes, such as
Spark's Java, that one is stopped first: an exception that leaves a call half-way has the next call wait for its answer.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

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


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None], kill: Callable[[], None], *, seconds: float = 3.0) -> Iterator[None]:
    """SIGINT and SIGTERM that arrive while the body runs call `stop`, on a thread; they take effect when it has ended.

    If it has not ended after some seconds they take effect in it, and after as many more `kill` is called. Only in the
    main thread, as for `held_signals`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    ended = threading.Event()
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _CANCELLING}
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}

    def escalate(number: int) -> None:
        threading.Thread(target=_best_effort, args=(stop,), daemon=True).start()
        if not ended.wait(seconds):
            os.kill(os.getpid(), number)
            if not ended.wait(seconds):
                _best_effort(kill)

    def handle(number: int, frame: Any) -> None:
        arrived.append(number)
        if len(arrived) == 1:
            threading.Thread(target=escalate, args=(number,), daemon=True).start()
        else:
            replaced[number](number, frame)

    for number in replaced:
        signal.signal(number, handle)
    try:
        yield
    finally:
        ended.set()
        for number, handler in replaced.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def _best_effort(call: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        call()
