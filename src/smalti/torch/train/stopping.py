"""The wish to end: SIGTERM, as preemption and cancellation send it, as a flag that the loop reads after each step."""

import signal
import threading
from types import FrameType, TracebackType


class StopSignal:
    """While entered, SIGTERM sets `requested` instead of ending the process.

    Only where nobody else handles SIGTERM (Dagster does, by an exception that ends the loop at once), and only in the
    main thread: elsewhere Python cannot.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> "StopSignal":
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._request)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as signal handlers are called
        self.requested = True
