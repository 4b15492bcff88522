"""The order in which files of tests are handed to the workers of xdist: those that take longest come first.

A file that begins last and takes minutes would be waited for alone. Files that share something expensive go to one
worker, one after the other, so that it is started once. How long a file takes is read from `durations.json`, which
`make test-durations` writes anew; a file that is not in it is estimated by its number of tests.
"""

import functools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
DURATIONS = Path(__file__).with_name("durations.json")
SESSIONS = {"tests/spark/": r"spark", "tests/code_location/": r"spark|session", "tests/": r"spark"}
"""By the first folder that fits: fixtures of Spark, whose session one worker starts for all tests that have it."""
SECONDS_EACH = 0.1
"""Of a test in a file of which nothing is known."""


@functools.cache
def unit_of(file: str) -> str:
    """Return what goes to one worker as a whole: the file itself, or what it shares with others."""
    fixtures = next(names for folder, names in SESSIONS.items() if file.startswith(folder))
    if re.search(rf"\bdef \w+\([^)]*\b({fixtures})\b(?!: (?!Any))", (ROOT / file).read_text(encoding="utf-8")):
        return "spark" if file.startswith("tests/spark/") else "spark elsewhere"
    return file


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the time that their unit takes; tests of one file stay together, and in order."""
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    seconds: Counter[str] = Counter()
    counts = Counter(file_of(item.nodeid) for item in items)
    for file, count in counts.items():
        seconds[unit_of(file)] += known.get(file, SECONDS_EACH * count)
    items.sort(key=lambda item: (-seconds[unit_of(file_of(item.nodeid))], unit_of(file_of(item.nodeid))))


def file_of(nodeid: str) -> str:
    """Return the path of a test's file."""
    return nodeid.split("::", 1)[0]


class LongestFirst(LoadFileScheduling):
    """Units in the order in which the workers have collected them, which `sort_longest_first` decides."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(file_of(nodeid))


class Stopwatch:
    """Writes down how long each file takes; registered where the reports of all workers come to."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        told = {file: round(seconds) for file, seconds in sorted(self.seconds.items()) if seconds >= 1}
        DURATIONS.write_text(json.dumps(told, indent=0) + "\n")
