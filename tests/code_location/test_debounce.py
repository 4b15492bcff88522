"""The rule that decides when a watched folder counts as changed."""

from smalti.sources.image_folder import PartialListing
from smalti_dagster.automation.debounce import Verdict, WatchState, judge

RUN = "6f1c"


def look(watch: WatchState, digest: str, now: float, known: str = "old", *, running: str = "") -> Verdict:
    return judge(watch, digest, known=known, running=running, now=now, quiet_seconds=60)


def test_unchanged_content_asks_for_nothing() -> None:
    verdict = look(WatchState(), "old", 0)
    assert not verdict.is_due
    assert verdict.watch == WatchState()
    assert "nothing changed" in verdict.reason


def test_a_change_is_asked_for_once_after_a_quiet_minute() -> None:
    first = look(WatchState(), "new", 100)
    assert not first.is_due
    second = look(first.watch, "new", 159.9)
    assert not second.is_due
    third = look(second.watch, "new", 160)
    assert third.is_due
    assert not look(third.watch, "new", 1000, running=RUN).is_due


def test_each_further_change_starts_the_quiet_minute_again() -> None:
    watch = WatchState()
    for now in range(0, 300, 30):
        verdict = look(watch, f"upload {now}", float(now))
        assert not verdict.is_due
        watch = verdict.watch
    assert look(watch, "upload 270", 330).is_due


def test_a_change_waits_for_a_run_that_may_read_it() -> None:
    watch = look(WatchState(), "new", 0, running=RUN).watch
    waiting = look(watch, "new", 60, running=RUN)
    assert not waiting.is_due
    assert f"run {RUN}, which may read it, has not ended" in waiting.reason
    assert look(waiting.watch, "new", 61).is_due


def test_a_change_that_is_taken_back_while_waiting_asks_for_nothing() -> None:
    watch = look(WatchState(), "new", 0).watch
    assert not look(watch, "old", 61).is_due


def test_a_content_that_was_requested_is_requested_again_after_the_folder_went_back() -> None:
    """A, B, A before the run that B asked for has read anything, then B again."""
    watch = look(look(WatchState(), "B", 0, "A").watch, "B", 60, "A").watch
    assert watch.requested == "B"
    watch = look(watch, "A", 90, "A").watch
    watch = look(watch, "B", 120, "A").watch
    assert look(watch, "B", 180, "A").is_due


def test_a_content_is_requested_again_when_its_run_ended_without_reading_it() -> None:
    """The same, with no look at the folder while it was back at A; also a run that failed before it read anything."""
    watch = look(look(WatchState(), "B", 0, "A").watch, "B", 60, "A").watch
    assert not look(watch, "B", 500, "A", running=RUN).is_due
    waiting = look(watch, "B", 500, "A")
    assert not waiting.is_due
    assert look(waiting.watch, "B", 560, "A").is_due


def test_after_three_requests_in_vain_the_message_says_what_to_do() -> None:
    due, watch = 0, WatchState()
    for now in range(0, 1200, 60):
        verdict = look(watch, "B", float(now), "A")
        due += verdict.is_due
        watch = verdict.watch
    assert due == 3
    assert "requested 3 times" in verdict.reason
    assert "re-execute" in verdict.reason
    assert "reset this sensor's cursor" in verdict.reason
    assert look(look(watch, "C", 1200, "A").watch, "C", 1260, "A").is_due


def test_the_cursor_keeps_everything_and_a_damaged_one_starts_afresh() -> None:
    listing = PartialListing("roses/1.jpg", "00ff", count=7)
    watch = WatchState(requested="a", tries=2, seen="b", since=12.5, messages="m", listing=listing)
    assert WatchState.from_cursor(watch.to_cursor()) == watch
    assert WatchState(tries=2).to_cursor() == '{"tries": 2}'
    for text in (None, "", "12345", "{", '{"unknown": 1}', "[]", '{"listing": 3}'):
        assert WatchState.from_cursor(text) == WatchState()
