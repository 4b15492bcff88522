"""Row groups that are being read from: loaded once, kept by latest use within a bound of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from typing import Any

from smalti.errors import SmaltiError


class Held:
    """What `load(number)` returned, for the numbers used last. Thread-safe.

    Kept are at most `limit` bytes, or one value where that alone has more; beside them, what callers still use and
    what is being loaded, one for each thread at most. Threads that want the same number wait for the one that loads it.
    """

    def __init__(
        self, load: Callable[[int], Any], num_bytes: Callable[[Any], int], *, limit: int, timeout: float
    ) -> None:
        self._load, self._num_bytes, self._limit, self._timeout = load, num_bytes, limit, timeout
        self._kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._flying: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.bytes_held = 0
        """Bytes kept now."""
        self.most_held = 0
        """Bytes kept at most so far."""
        self.loads = 0
        """Values loaded so far."""

    def get(self, number: int) -> Any:
        """The value; what loading it raised is raised, in every thread that wanted it.

        Raises:
            SmaltiError: another thread loads it, and was not done within the timeout.
        """
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number][0]
            flight = self._flying.get(number)
            if flight is None:
                mine: Future[Any] = Future()
                self._flying[number] = mine
        if flight is None:
            return self._loaded(number, mine)
        try:
            return flight.result(self._timeout)
        except WaitedTooLong as error:
            raise SmaltiError(
                f"row group {number} was not loaded after {self._timeout:g} s: the store hangs, or reading it takes "
                "longer; give the reader a longer `timeout`.",
                row_group=number,
            ) from error

    def _loaded(self, number: int, flight: "Future[Any]") -> Any:
        try:
            value = self._load(number)
            size = self._num_bytes(value)
        except BaseException as error:
            with self._lock:
                del self._flying[number]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._flying[number]
            self._kept[number] = (value, size)
            self.bytes_held += size
            self.loads += 1
            while self.bytes_held > self._limit and len(self._kept) > 1:
                _, (_, gone) = self._kept.popitem(last=False)
                self.bytes_held -= gone
            self.most_held = max(self.most_held, self.bytes_held)
        flight.set_result(value)
        return value

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._kept.clear()
            self.bytes_held = 0
