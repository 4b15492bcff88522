"""The ranks of a run: joining their process group, exchanging values, and measures of one while it trains.

Every wait has a deadline.
"""

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not in torch's __all__

from smalti.cache import CacheStats
from smalti.errors import MissingDependency, SmaltiError, TrainingError
from smalti.torch.ranks import gather_world
from smalti.torch.train.config import RunConfig
from smalti.torch.train.threads import detect_cores
from smalti.world import World, detect_world

T = TypeVar("T")
_LOST_RANK = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "is gone or late",
    "Timed out waiting",
)  # fmt: skip
"""Texts of errors of gloo, of torch's store and of `Ranks` about a rank that does not answer."""
_FIRST_BEAT, _BEAT_SECONDS = 0.05, 5.0
"""Seconds between two exchanges of ranks that wait for one which works; their deadline is longer."""
_MB = 2**20


@dataclass(frozen=True)
class Ranks:
    """The training processes of a run, seen from one of them. All methods are collective."""

    world: World
    device: torch.device
    group: Any = None
    """The process group; None: torch's default group."""

    def apart(self, timeout_seconds: float) -> "Ranks":
        """Return the same ranks with a group of their own, for another thread: collectives of one group have one order.

        Each of its waits takes `timeout_seconds` at most.
        """
        if self.num_ranks == 1:
            return self
        return replace(self, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds)))

    @property
    def rank(self) -> int:
        """Global number of this process."""
        return self.world.rank

    @property
    def num_ranks(self) -> int:
        """Number of training processes."""
        return self.world.num_ranks

    @property
    def is_first(self) -> bool:
        """True on rank 0, which writes."""
        return self.world.rank == 0

    def share(self, value: T, what: str) -> T:
        """Return rank 0's `value` on every rank."""
        return self.gather(value, what)[0]

    def gather(self, value: T, what: str) -> list[T]:
        """Return the values of all ranks, in order of rank."""
        if self.num_ranks == 1:
            return [value]
        box: list[Any] = [None] * self.num_ranks
        with self._waiting(what):
            dist.all_gather_object(box, value, group=self.group)
        return box

    def total(self, numbers: list[float], what: str) -> list[float]:
        """Return the sum of each number over all ranks, in double precision."""
        if self.num_ranks == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64)
        with self._waiting(what):
            dist.all_reduce(tensor, group=self.group)
        return [float(number) for number in tensor]

    def run_on_first(self, act: Callable[[], T], what: str) -> T:
        """Call `act` on rank 0 and return its result on every rank; a SmaltiError is raised on every rank."""
        return self.run_on_all(lambda: act() if self.is_first else None, what)[0]  # type: ignore[return-value]  # rank 0's

    def run_long(self, act: Callable[[], T], what: str) -> T:
        """Call `act` on every rank, and return what it returns there; a SmaltiError of one rank is raised on all.

        `act` may take longer than one wait of the ranks for each other: they exchange every few seconds whether all are
        done. With other ranks, it is called in a thread; its own waits must have deadlines.
        """
        if self.num_ranks == 1:
            return act()
        work = Future[T]()

        def run() -> None:
            try:
                work.set_result(act())
            except BaseException as error:  # noqa: BLE001 - raised below
                work.set_exception(error)

        threading.Thread(target=run, name="smalti-rank-work", daemon=True).start()
        seconds = _FIRST_BEAT
        while True:
            wait([work], timeout=seconds)
            seconds = min(2 * seconds, _BEAT_SECONDS)
            fault = work.exception() if work.done() else None
            told = (
                fault
                if fault is None or isinstance(fault, SmaltiError)
                else TrainingError(
                    f"rank {self.rank} could not {what}: {type(fault).__name__}: {fault}", rank=self.rank
                )
            )
            states = self.gather((work.done(), told), what)
            for _, found in states:
                if found is not None:
                    raise (fault or found) if found is told else found
            if all(is_done for is_done, _ in states):
                return work.result()

    def run_long_on_first(self, act: Callable[[], T], what: str) -> T:
        """Call `act` on rank 0 as `run_long` does, and return its result on every rank."""
        return self.share(self.run_long(lambda: act() if self.is_first else None, what), what)  # type: ignore[return-value]  # rank 0's

    def run_on_all(self, act: Callable[[], T], what: str) -> list[T]:
        """Call `act` on every rank and return the results in order of rank; a SmaltiError of one is raised on all."""
        outcome: tuple[Any, SmaltiError | None]
        try:
            outcome = (act(), None)
        except SmaltiError as error:
            outcome = (None, error)
        outcomes: list[tuple[Any, SmaltiError | None]] = self.gather(outcome, what)
        for _, fault in outcomes:
            if fault is not None:
                raise fault
        return [value for value, _ in outcomes]

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise TrainingError(
                f"rank {self.rank} of {self.num_ranks} waited for the other ranks to {what}, and one is "
                f"gone or late: {error}",
                rank=self.rank,
                what=what,
            ) from error


@contextlib.contextmanager
def joined_ranks(config: RunConfig, meeting_port: int | None = None) -> Iterator[Ranks]:
    """Join the ranks of the run: an existing process group, a new one as the environment describes, or a single rank.

    A group that is created here is destroyed at the end. With the port of a `meeting_store` on this machine, the ranks
    meet there; otherwise as the environment says.

    Raises:
        MissingDependency: a CUDA device is requested, and there is none.
    """
    here = detect_world()
    device = _pick_device(config, here)
    is_own_group = here.num_ranks > 1 and not dist.is_initialized()
    if is_own_group:
        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=config.timeout_seconds),
            store=None if meeting_port is None else meeting_store(meeting_port, config, here.num_ranks),
            rank=here.rank,
            world_size=here.num_ranks,
        )
    threads = torch.get_num_threads()
    try:
        world = gather_world()
        # The ranks of a host share its cores; a single rank keeps OMP_NUM_THREADS, or torch's setting if it fits.
        share = max(1, detect_cores() // world.ranks_on_host)
        if world.num_ranks > 1 or ("OMP_NUM_THREADS" not in os.environ and threads > share):
            torch.set_num_threads(share)
        yield Ranks(world=world, device=device)
    finally:
        torch.set_num_threads(threads)
        if is_own_group:
            dist.destroy_process_group()


def has_lost_rank(error: BaseException) -> bool:
    """Return whether an error only says that another rank did not answer, which is then the one that failed first."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError | TrainingError) and any(words in str(error) for words in _LOST_RANK)


def meeting_store(port: int | None, config: RunConfig, num_ranks: int) -> TCPStore:
    """Return the store at which ranks on this machine meet: a new one on a free port, or the one at `port`."""
    return TCPStore(
        "127.0.0.1",
        port or 0,
        world_size=num_ranks,
        is_master=port is None,
        wait_for_workers=False,
        timeout=timedelta(seconds=config.timeout_seconds),
    )


def _pick_device(config: RunConfig, world: World) -> torch.device:
    present = torch.cuda.is_available()
    if config.device == "cuda" and not present:
        raise MissingDependency(
            "`device` is 'cuda', but torch finds no CUDA device in this process; install a CUDA build of torch, mind "
            "CUDA_VISIBLE_DEVICES, or use device='auto'.",
            package="torch",
        )
    if config.device == "cpu" or not present:
        return torch.device("cpu")
    # TorchDistributor gives each process one visible device and LOCAL_RANK 0; torchrun shows all of them to each.
    device = torch.device("cuda", world.host_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def memory_figures(device: torch.device) -> dict[str, float]:
    """Return the largest memory that this process has taken so far, and on a GPU that of torch's tensors."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    figures = {"peak_memory_mb": round(peak / _MB, 1)}
    if device.type == "cuda":
        figures["peak_cuda_memory_mb"] = round(torch.cuda.max_memory_allocated(device) / _MB, 1)
    return figures


def pace_figures(stats: Iterable[CacheStats], num_ranks: int) -> dict[str, float]:
    """Return the samples per second over all ranks, padding included, and the share of waiting for data.

    Args:
        stats: those of this rank's training loaders.
        num_ranks: ranks that take the same number of samples.

    Returns:
        `samples_per_second` and `data_fraction`; empty before the second batch.
    """
    samples = seconds = waited = 0.0
    for loop in stats:
        samples, seconds = samples + loop.loop_samples, seconds + loop.loop_seconds
        waited += loop.loop_wait_seconds
    if not seconds:
        return {}
    return {
        "samples_per_second": round(samples * num_ranks / seconds, 3),
        "data_fraction": round(waited / seconds, 5),
    }
