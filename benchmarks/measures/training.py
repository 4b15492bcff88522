"""Training: whole runs under each launcher, the loader beside memory, and policies by which torch's threads wait."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.task import Figures, Task
from benchmarks.training.paired import paired
from benchmarks.training.sets import configuration

_BATCH = 32
_STEPS = 4  # of one turn
_POLICIES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin-300": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300"},
    "spin-1000": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"},
    "spin-3000": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"},
    "spin-10000": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"},
}


def measure_training(task: Task) -> Figures:
    """Train with the trainer's defaults and return the seconds of the call, the process start included."""
    from smalti.torch.train import train

    with _spark(task):
        config = configuration(task, task.scratch / "run", epochs=task.options["epochs"])
        begin = time.perf_counter()
        result = train(config)
        seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "images_per_s": result.images_per_second,
        "accuracy": result.accuracy,
        "data_share": result.history[-1]["data_fraction"],
    }


def measure_paired(task: Task) -> Figures:
    """Time the same steps over batches of the loader and of memory, in turn."""
    from smalti.torch.train import launch

    with _spark(task):
        config = configuration(task, task.scratch / "inner")
        argument = {"train": {**config.public_json(), "launcher": "inline", "num_processes": 1}}
        found: Figures = launch(
            paired,
            {**argument, "rounds": task.options["rounds"]},
            data=config.data,
            run_dir=str(task.scratch / "run"),
            device="cpu",
            launcher=config.launcher,
            num_processes=config.num_processes,
        )
    return found


def measure_threads(task: Task) -> Figures:
    """Time steps of processes that differ in threads and policy, by turns; alone and beside a process that computes."""
    kinds = {(name, threads): each for name, each in _POLICIES.items() for threads in (2, 1) if threads > 1 or not each}
    figures: Figures = {}
    with ExitStack() as stack:
        processes = {kind: stack.enter_context(_stepping(kind[1], set_to)) for kind, set_to in kinds.items()}
        for load in ("quiet", "busy"):
            if load == "busy":
                stack.enter_context(_ended([sys.executable, "-c", "while True: pass"], {}))
            seconds: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
            for _ in range(task.options["rounds"]):
                for kind, process in processes.items():
                    seconds[kind].append(_ask(process))
            for (name, threads), found in seconds.items():
                key = f"{load}_{name}_{threads}t"
                figures[f"{key}_images_per_s"] = _BATCH * _STEPS / statistics.median(found)
    return figures


def _ask(process: "subprocess.Popen[str]") -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{_STEPS}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


@contextmanager
def _stepping(threads: int, policy: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    with _ended([sys.executable, "-m", "benchmarks.training.stepping", str(threads)], policy) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            if process.poll() is not None:
                raise RuntimeError(f"the process with {threads} threads and {dict(policy)} ended: {process.returncode}")
        yield process


@contextmanager
def _ended(command: list[str], policy: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    rest = {name: value for name, value in os.environ.items() if name not in {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}}
    process = subprocess.Popen(
        command, env={**rest, **policy}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _spark(task: Task) -> Iterator[Any]:
    """Hold a session, if the launcher needs one: its start is not counted."""
    if not str(task.options["launcher"]).startswith("spark"):
        yield None
        return
    from smalti.spark import SparkOptions, build_session

    session = build_session(SparkOptions(master="local[2]", conf={"spark.local.dir": str(task.scratch)}))
    try:
        yield session
    finally:
        session.stop()
