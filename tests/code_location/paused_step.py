"""A run worker that pauses its step within a transaction, and reports the end of its run: for `test_run_worker`.

It is a process of its own, because a run worker pauses all processes that it has started.
"""

import sqlite3
import subprocess
import sys
import time

import dagster as dg
import psutil

from smalti_dagster.runs import worker as run_worker

SECONDS = 60.0


def claim(path: str) -> None:
    """Hold the lock of a SQLite file for a tenth of a second, as far as this process is not paused; then wait."""
    connection = sqlite3.connect(path)
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    for _ in range(20):
        time.sleep(0.005)
    connection.commit()
    time.sleep(600)


def report(home: str, run_id: str, path: str) -> None:
    """Report a run as lost while its step holds the lock; print whether that was done, and the state of the step."""
    done: list[str] = []
    with dg.DagsterInstance.local_temp(home) as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None

        def report_lost() -> None:
            run_worker.report_lost(instance, run, "its code server has died")
            done.append("reported")

        with subprocess.Popen([sys.executable, "-m", __spec__.name, path], stdout=subprocess.PIPE, text=True) as step:
            assert step.stdout is not None
            assert step.stdout.readline() == "locked\n"
            try:
                [paused] = run_worker._pause_steps(report_lost)
                deadline = time.monotonic() + SECONDS
                while paused.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
                    time.sleep(0.01)
                print(*done, paused.status())
            finally:
                step.kill()


if __name__ == "__main__":
    (report if len(sys.argv) > 2 else claim)(*sys.argv[1:])
