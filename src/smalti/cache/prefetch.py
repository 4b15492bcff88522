"""Who is fetching what, in one process: each shard by one thread, others wait; a few threads fetch ahead.

A shard that has no room yet (`NoRoom`) and what was queued behind it wait until somebody queues them again.

A job is queued (wanted soon), running (a consumer or a fetching thread is at it), or failed ahead of time: it is kept,
so that it is not fetched ahead again, and the consumer who asks for the shard tries anew. Threads start with the first
prefetch, are daemons, and end when they have been idle for a while, when a pass is over, or when the cache is dropped.

How many fetches a process has under way at once: as many as the link gains by, found by trying.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

from smalti.cache.eviction import NoRoom

FEWEST = 4
"""At once from the start: enough for large shards, where a round trip is short beside the bytes."""
MOST = 32
"""At once, ever: each holds a thread, a temporary file and some chunks."""
SLICE_SECONDS = 0.5
"""How long a number is tried before it is judged."""
GAIN = 1.1
"""What more fetches at once must bring to be kept."""
HOLD_SLICES = 25
"""How long a number that is good is left alone: links change, but not every second."""


class Pace:
    """Counts what arrives while there is always more to fetch, and grows the number while that makes it faster.

    Many small shards far away need many requests in flight, a few large ones need few, and nobody knows the link
    beforehand. Thread-safe; belongs to one process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.at_once = FEWEST
        """Fetches ahead that may be under way at once."""
        self._clock, self._lock = clock, threading.Lock()
        self._under_way, self._has_begun = 0, False
        self._bytes, self._begin = 0, clock()
        self._before: tuple[int, float] | None = None
        self._hold = 0

    @contextmanager
    def fetch(self) -> Iterator[int]:
        """Around a fetch: in how many parts at once it may come, so that a first shard has the link to itself.

        Later ones come whole: parts wait in memory, which costs half as much time again as reading them.
        """
        with self._lock:
            self._under_way += 1
            parts = 1 if self._has_begun else FEWEST // self._under_way
        try:
            yield max(1, parts)
        finally:
            with self._lock:
                self._under_way -= 1
                self._has_begun = True

    def arrived(self, num_bytes: int) -> None:
        """So many bytes have come."""
        with self._lock:
            self._bytes += num_bytes

    def judge(self, *, is_full: bool) -> None:
        """After a fetch: is the number good? A stretch tells in which all places were taken, and more was wanted."""
        with self._lock:
            now = self._clock()
            if not is_full:
                self._bytes, self._begin = 0, now
                return
            seconds = now - self._begin
            if seconds < SLICE_SECONDS:
                return
            self._decide(self._bytes / seconds)
            self._bytes, self._begin = 0, now

    def _decide(self, rate: float) -> None:
        if self._before is not None and rate < self._before[1] * GAIN:
            self.at_once, self._before, self._hold = self._before[0], None, HOLD_SLICES
        elif self._before is None and self._hold:
            self._hold -= 1
        elif self.at_once < MOST:
            self._before = self.at_once, rate
            self.at_once = min(MOST, self.at_once + self.at_once // 2)
        else:
            self._before, self._hold = None, HOLD_SLICES


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

IDLE_SECONDS = 5.0
FIRST_LOOK_SECONDS, MOST_LOOK_SECONDS = 0.001, 0.01
"""Between two looks at a shard that is on its way."""


class Work(Protocol[T_co]):
    """Brings a shard and returns it."""

    def __call__(self, shard_id: int, *, ahead: bool) -> T_co:
        """The shard; `ahead` where nobody waits for it yet."""


class Job(Generic[T]):
    """One shard on its way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.running = False
        self.result: T | None = None
        self.error: BaseException | None = None


def _looked(early: Callable[[], T | None], job: Job[T], end: float) -> T | None:
    """What `early` gives before the job is done or it is too late."""
    pause = FIRST_LOOK_SECONDS
    while not job.done.wait(min(pause, max(0.0, end - time.monotonic()))) and time.monotonic() < end:
        found = early()
        if found is not None:
            return found
        pause = min(1.5 * pause, MOST_LOOK_SECONDS)
    return None


class Jobs(Generic[T]):
    """The jobs of one process.

    Args:
        work: Brings one shard and returns it; called outside the lock, at most once at a time for each shard.
        pace: How many threads fetch ahead.
    """

    def __init__(self, work: Work[T], pace: Pace) -> None:
        self._work, self._pace = work, pace
        self._lock = threading.Condition()
        self._jobs: dict[int, Job[T]] = {}
        self._queue: deque[int] = deque()
        self._later: list[int] = []
        self._threads = 0
        self._idle = 0
        self._closed = self._rests = False

    def obtain(self, shard_id: int, timeout: float, early: Callable[[], T | None] | None = None) -> T:
        """The shard, brought by this thread unless another one is at it already.

        Args:
            shard_id: Its id.
            timeout: Seconds that another thread may take.
            early: Looked at again and again while another thread brings it: what serves as well, once there is such.

        Raises:
            TimeoutError: the other thread did not finish within `timeout` seconds.
            BaseException: what `work` raised, here or in the thread that was at it.
        """
        end = time.monotonic() + timeout
        while True:
            job, is_mine = self._claim(shard_id)
            if is_mine and (early is None or not self._started(shard_id, job)):
                self._run(shard_id, job, keep_error=False)
            elif early is not None and (found := _looked(early, job, end)) is not None:
                return found
            elif not job.done.wait(max(0.0, end - time.monotonic())):
                raise TimeoutError
            if job.error is None:
                return cast("T", job.result)
            if isinstance(job.error, NoRoom):
                continue  # that was ahead of its turn, which has come now
            self._forget(shard_id, job)  # seen: the next request tries again
            if is_mine or isinstance(job.error, Exception):
                raise job.error
            # The other thread was interrupted (Ctrl-C reaches one thread only); that says nothing about the shard.

    def _started(self, shard_id: int, job: Job[T]) -> bool:
        """Whether a thread of its own is at it now: there may be no memory for one."""
        work = partial(self._run, shard_id, job, keep_error=False)
        try:
            threading.Thread(target=work, name="smalti-fetch", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _claim(self, shard_id: int) -> tuple[Job[T], bool]:
        """The job of a shard, and whether it is the caller's to run."""
        with self._lock:
            job = self._jobs.get(shard_id)
            if job is not None and job.running:
                return job, False
            if job is None or job.done.is_set():
                job = Job()  # a failure ahead of time may have passed by now: it is tried again, in the foreground
            job.running = True
            self._jobs[shard_id] = job
            return job, True

    def _forget(self, shard_id: int, job: Job[T]) -> None:
        with self._lock:
            if self._jobs.get(shard_id) is job:
                del self._jobs[shard_id]

    def ahead(self, shard_ids: list[int]) -> None:
        """Queue shards that nobody is at; returns at once."""
        with self._lock:
            if self._closed:
                return
            for shard_id in shard_ids:
                if shard_id not in self._jobs:
                    self._jobs[shard_id] = Job()
                    self._queue.append(shard_id)
            self._rests = False
            self._start_threads()
            self._lock.notify_all()

    def _start_threads(self) -> None:
        for _ in range(min(len(self._queue) - self._idle, self._pace.at_once - self._threads)):
            try:
                threading.Thread(target=self._serve, name="smalti-ahead", daemon=True).start()
            except RuntimeError:  # no memory for one, or too many: what is not fetched ahead is fetched when needed
                break
            self._threads += 1

    def later(self) -> list[int]:
        """What had no room when it was to be fetched ahead, first needed first; it is the caller's to queue again."""
        if not self._later:
            return []
        with self._lock:
            later, self._later = self._later, []
            return later

    def failed(self) -> list[int]:
        """The shards whose fetch ahead failed and that nobody asked for since."""
        with self._lock:
            return [shard_id for shard_id, job in self._jobs.items() if job.done.is_set()]

    def rest(self) -> None:
        """End threads that have nothing to do, now and until something is queued again."""
        with self._lock:
            self._rests = True
            self._lock.notify_all()

    def close(self) -> None:
        """Forget what is queued; threads end after what they are at."""
        with self._lock:
            self._closed = True
            for shard_id in self._queue:
                job = self._jobs.get(shard_id)
                if job is not None and not job.running:
                    del self._jobs[shard_id]
            self._queue.clear()
            self._later = []
            self._lock.notify_all()

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Do the next job; False where the thread should end. Between jobs it holds no result of any."""
        taken = self._next()
        if taken is None:
            return False
        self._run(*taken, keep_error=True)
        with self._lock:
            self._pace.judge(is_full=bool(self._queue) and self._threads - self._idle >= self._pace.at_once)
            self._start_threads()
        return True

    def _next(self) -> tuple[int, Job[T]] | None:
        """The next queued job that nobody took over; None when this thread should end."""
        end = time.monotonic() + IDLE_SECONDS
        with self._lock:
            while True:
                while self._queue and self._threads <= self._pace.at_once:
                    shard_id = self._queue.popleft()
                    job = self._jobs.get(shard_id)
                    if job is not None and not job.running and not job.done.is_set():
                        job.running = True
                        return shard_id, job
                left = end - time.monotonic()
                if self._closed or self._rests or left <= 0 or self._threads > self._pace.at_once:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._lock.wait(left)
                self._idle -= 1

    def _put_off(self, shard_id: int) -> None:
        """Nothing that is needed later than this one gets room before it."""
        queued = [each for each in self._queue if each in self._jobs and not self._jobs[each].running]
        for each in queued:
            del self._jobs[each]
        self._later = [shard_id, *queued, *self._later]
        self._queue.clear()

    def _run(self, shard_id: int, job: Job[T], *, keep_error: bool) -> None:
        try:
            job.result = self._work(shard_id, ahead=keep_error)
        except BaseException as error:  # noqa: BLE001 -- raised again by every consumer, in its own thread
            job.error = error
        with self._lock:
            job.running = False
            has_no_room = isinstance(job.error, NoRoom)
            if has_no_room:
                self._put_off(shard_id)
            if (job.error is None or has_no_room or not keep_error) and self._jobs.get(shard_id) is job:
                del self._jobs[shard_id]
            job.done.set()
