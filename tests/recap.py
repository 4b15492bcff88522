"""The last words of a run: the tests that failed, by name, with their last line, and those that Java ended in.

Where a worker of xdist dies the run may end in an internal error, without pytest's own summary; and whoever keeps only
the end of a log keeps this.
"""

import sys

import pytest

from tests import seeds

MOST = 12
ENDED_JAVA = "ended_java"
"""Property of a test during which it ended: its exit status, negative for a signal."""


def ended_java() -> int | None:
    """Return the exit status of the JVM of this process's Spark session, if it has one, and it has ended."""
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    return None if process is None else process.poll()


class Recap:
    def __init__(self) -> None:
        self.failed: list[str] = []
        self.ended: list[str] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith(("E ", "worker ", "Failed"))]
            self.failed.append(f"{report.nodeid} [{report.when}]: {(lines or ['?'])[0][:150]}")
        if report.when == "teardown":
            self.ended += [f"{report.nodeid}: {value}" for name, value in report.user_properties if name == ENDED_JAVA]

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self.ended:
            print("\nSpark's Java ended during:", *self.ended, sep="\n  ", file=sys.stderr)
        if self.failed:
            more = len(self.failed) - MOST
            print(
                "\nFailed:",
                *self.failed[:MOST],
                *([f"and {more} more"] if more > 0 else []),
                *([seeds.explanation()] if seeds.SEED is not None else []),
                sep="\n  ",
                file=sys.stderr,
            )
