"""Progress lines: one that is redrawn on a terminal, several in a log, none for short work."""

import io

import pytest

from smalti.writer import progress
from smalti.writer.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def without_pauses(monkeypatch):
    for name in ("TERMINAL_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(progress, name, 0.0)


def test_a_terminal_has_one_line_that_covers_the_longer_one_before(without_pauses):
    line = ProgressLine(stream := Terminal())
    line.show("10 of 12")
    line.show("2 of 2")
    line.close()
    assert stream.getvalue() == "\r10 of 12\r2 of 2  \n"


def test_a_log_has_one_line_for_each_state(without_pauses):
    line = ProgressLine(stream := io.StringIO())
    for text in ("a", "b"):
        line.show(text)
    line.close("c")
    assert stream.getvalue() == "a\nb\nc\n"


def test_states_in_quick_succession_are_left_out_but_not_the_last():
    line = ProgressLine(stream := io.StringIO())
    for text in ("a", "b", "c"):
        line.show(text)
    assert line.wait_seconds > 1
    line.close("d")
    assert stream.getvalue() == "a\nd\n"


def test_short_work_shows_nothing():
    line = ProgressLine(stream := Terminal(), silent_seconds=60)
    line.show("a")
    line.close("b")
    assert stream.getvalue() == ""


def test_nothing_is_shown_after_the_line_is_closed(without_pauses):
    line = ProgressLine(stream := io.StringIO())
    line.close("a")
    line.show("b")
    line.close("c")
    assert stream.getvalue() == "a\n"
