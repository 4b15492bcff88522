"""Starting the process that measures, watching its memory, and ending it when it takes too long."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.task import Figures, Task
from benchmarks.trees import tree_rss

ROOT = Path(__file__).resolve().parents[1]
_SAMPLE_SECONDS = 0.05
_GRACE_SECONDS = 5.0  # for a process to end after it has answered
_TAIL_CHARACTERS = 600


@dataclass(frozen=True)
class Outcome:
    """What became of one task."""

    status: str
    """`ok`, `unsupported`, `failed` or `timeout`."""
    figures: Figures
    """Includes `max_rss_mb` of the process and, on Linux, `tree_rss_mb` of it and its children together."""
    detail: str = ""
    """Why there are no figures."""


def run_task(task: Task, timeout: float) -> Outcome:
    """Runs the task in a fresh process; blocks until it has ended or was killed.

    The disk's write-back of earlier tasks is waited for first, so that nobody pays for somebody else.
    """
    shutil.rmtree(task.scratch, ignore_errors=True)
    task.scratch.mkdir(parents=True)
    os.sync()
    try:
        answer, log = task.scratch / "answer.json", task.scratch / "log.txt"
        command = [sys.executable, "-m", "benchmarks.child", json.dumps(task.to_json()), str(answer)]
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, cwd=ROOT, env=_environment(task), stdout=output, stderr=output, start_new_session=True
            )
            try:
                peak, in_time = _watch(child, answer, timeout, task.aside_file)
            finally:
                _end_group(child)
        if answer.exists():
            return _outcome(json.loads(answer.read_text()), peak)
        tail = log.read_text(errors="replace")[-_TAIL_CHARACTERS:]
        if in_time:
            return Outcome("failed", {}, f"ended with status {child.returncode} and no answer: {tail}")
        return Outcome("timeout", {}, f"no answer after {timeout:.0f} s: {tail}")
    finally:
        shutil.rmtree(task.scratch)


def _outcome(answer: dict[str, Any], peak: int) -> Outcome:
    if "unsupported" in answer:
        return Outcome("unsupported", {}, answer["unsupported"])
    if "error" in answer:
        return Outcome("failed", {}, f"{answer['error']}\n{answer['traceback'][-_TAIL_CHARACTERS:]}")
    memory = {"max_rss_mb": answer["max_rss_mb"]}
    if peak:
        # The sampling can miss a peak of the process itself, which the kernel does not.
        memory["tree_rss_mb"] = max(peak / 1e6, answer["max_rss_mb"])
    return Outcome("ok", {**answer["figures"], **memory})


def _watch(child: "subprocess.Popen[bytes]", answer: Path, timeout: float, aside: Path) -> tuple[int, bool]:
    """Largest resident memory of the tree seen, bytes, and whether the child ended (or answered) in time."""
    peak, begin = 0, time.monotonic()
    answered: float | None = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_SAMPLE_SECONDS)
            return peak, True
        peak = max(peak, tree_rss(child.pid, _number_in(aside)))
        now = time.monotonic()
        if answered is None and answer.exists():
            answered = now
        if answered is not None and now - answered > _GRACE_SECONDS:
            return peak, True
        if now - begin > timeout:
            return peak, False


def _number_in(file: Path) -> int | None:
    """The process that the file names, as soon as it does."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _end_group(child: "subprocess.Popen[bytes]") -> None:
    """Ends the child and the workers that it may have left; the group is its own, made for this."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _environment(task: Task) -> dict[str, str]:
    """Ours, with caches in the work folder and nothing that asks the network."""
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(task.work / "hf"),
        "LITDATA_DISABLE_VERSION_CHECK": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "1000",
    }
    return {**os.environ, **quiet}
