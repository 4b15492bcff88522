"""The progress display of a Spark write: when it is shown, where, and what it counts."""

import io
import re

import pytest

from smalti.catalog import publish
from smalti.catalog.manifest import Draft
from smalti.format import Schema
from smalti.spark.writing import progress
from smalti.spark.writing.progress import Reporter
from smalti.writer import progress as display
from tests.stores import MemoryStore


class Stream(io.StringIO):
    """An error stream, which may be a terminal."""

    def __init__(self, *, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def text(self):
        """Return what was shown, with all seconds replaced by 0 because they depend on the machine."""
        return re.sub(r"\d+ s\b", "0 s", self.getvalue())


@pytest.fixture
def without_delays(monkeypatch):
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    for name in ("TERMINAL_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(display, name, 0.0)


def run_line(stream, counts):
    """Run a progress line over these counts, one after the other, and return it."""
    left = iter(counts)

    def count():
        found = next(left, None)
        if found is None:
            reporter.is_stopped.set()
            return (0, 0)
        return found

    reporter = Reporter("s3://b/set", count, stream)
    reporter.watch()
    return reporter


def test_a_log_gets_a_line_for_each_state(without_delays):
    stream = Stream(is_terminal=False)
    run_line(stream, [(0, 0), (0, 4), (3, 4)])
    assert stream.text().splitlines()[:3] == [
        "s3://b/set: 0 s",
        "s3://b/set: 0 of 4 tasks done, 0 s",
        "s3://b/set: 3 of 4 tasks done, 0 s",
    ]


def test_a_terminal_gets_one_line_that_is_updated_and_ended(without_delays):
    stream = Stream(is_terminal=True)
    reporter = run_line(stream, [(10, 400), (1, 4)])
    reporter.line.close()
    text = stream.text()
    assert text == "\rs3://b/set: 10 of 400 tasks done, 0 s\rs3://b/set: 1 of 4 tasks done, 0 s   \n"


def test_the_last_line_reports_what_was_published(without_delays):
    stream = Stream(is_terminal=False)
    manifest = publish(MemoryStore(), Draft("20260101-abcd", Schema.from_columns({"x": "int"}), []))
    Reporter("s3://b/set", lambda: (0, 0), stream).finish(manifest, [])
    assert stream.text() == "s3://b/set: version 1, 0 rows in 0 shards of 0.0 MB, 0 s\n"


def test_a_write_of_less_than_three_seconds_shows_nothing():
    stream = Stream(is_terminal=True)
    manifest = publish(MemoryStore(), Draft("20260101-abcd", Schema.from_columns({"x": "int"}), []))
    reporter = Reporter("s3://b/set", lambda: (0, 0), stream)
    reporter.finish(manifest, [])
    reporter.watch()
    reporter.line.close()
    assert stream.getvalue() == ""


def test_nothing_is_shown_after_the_last_line(without_delays):
    """The write ends while its tasks are being counted."""
    stream = Stream(is_terminal=False)
    manifest = publish(MemoryStore(), Draft("20260101-abcd", Schema.from_columns({"x": "int"}), []))

    def count():
        reporter.finish(manifest, [])
        return (4, 4)

    reporter = Reporter("s3://b/set", count, stream)
    reporter.watch()
    assert stream.text() == "s3://b/set: version 1, 0 rows in 0 shards of 0.0 MB, 0 s\n"
