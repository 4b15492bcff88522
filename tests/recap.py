"""The last words of a run: the tests that failed, by name, with their last line.

Where a worker of xdist dies the run may end in an internal error, without pytest's own summary; and whoever keeps only
the end of a log keeps this.
"""

import sys

import pytest

from tests import seeds

MOST = 12


class Recap:
    def __init__(self) -> None:
        self.failed: list[str] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith(("E ", "worker ", "Failed"))]
            self.failed.append(f"{report.nodeid} [{report.when}]: {(lines or ['?'])[0][:150]}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
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
