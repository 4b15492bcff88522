"""System calls per sample, counted by strace: of a long read less those of a short one, which pay for the start."""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import Unsupported
from benchmarks.task import Figures, Task

_TIMEOUT_SECONDS = 150


def measure_system_calls(task: Task) -> Figures:
    """Calls per sample over `batches` batches, in all threads and processes."""
    if shutil.which("strace") is None:
        raise Unsupported("strace is not installed")
    short, long = 20, 20 + int(task.options["batches"])
    few, many = (_least(replace(task, measure="drain", options={"batches": batches})) for batches in (short, long))
    return {"calls_per_sample": max(0, many - few) / ((long - short) * task.kind.batch_size)}


def _least(task: Task) -> int:
    """The smaller count of two: threads that wait for each other at the start add a few thousand, now and then."""
    return min(_count(task) for _ in range(2))


def _count(task: Task) -> int:
    with tempfile.TemporaryDirectory(dir=task.scratch) as scratch:
        report, result = Path(scratch, "strace.txt"), Path(scratch, "result.json")
        child = [sys.executable, "-m", "benchmarks.child", json.dumps(task.to_json()), str(result)]
        subprocess.run(
            ["strace", "-f", "-c", "-o", str(report), *child], check=True, timeout=_TIMEOUT_SECONDS, capture_output=True
        )
        return _total(report.read_text())


def _total(table: str) -> int:
    """The calls of the last line of strace's table: `100.00  seconds  usecs/call  calls [errors] total`."""
    for line in reversed(table.splitlines()):
        fields = line.split()
        if fields and fields[-1] == "total":
            return int(fields[3])
    raise ValueError("strace printed no total")
