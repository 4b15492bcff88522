"""Work done by threads some pieces ahead of its consumer, delivered in order; every wait has a deadline."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as WaitedTooLong
from typing import Any

from smalti.errors import SmaltiError


def done_ahead(
    work: Iterator[Any], do: Callable[[Any], Any], pool: Executor | None, *, ahead: int, timeout: float
) -> Iterator[Any]:
    """`do(piece)` for each piece of the work, in order; `ahead` pieces are begun before they are asked for.

    What doing a piece raised is raised when its turn comes. Without a pool, all is done in the caller's thread.

    Raises:
        SmaltiError: a piece was not done within `timeout` seconds.
    """
    if pool is None:
        yield from map(do, work)
        return
    begun: deque[Future[Any]] = deque()
    try:
        for piece in work:
            begun.append(pool.submit(do, piece))
            if len(begun) > ahead:
                yield _result(begun.popleft(), timeout)
        while begun:
            yield _result(begun.popleft(), timeout)
    finally:
        for future in begun:
            future.cancel()


def _result(future: "Future[Any]", timeout: float) -> Any:
    try:
        return future.result(timeout)
    except WaitedTooLong as error:
        if future.done():  # the work itself raised it
            raise
        raise SmaltiError(
            f"the next batch was not ready after {timeout:g} s: reading or transforming it takes longer. Give the "
            "reader a longer `timeout`, or find what hangs.",
            timeout=timeout,
        ) from error
