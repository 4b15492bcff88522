"""The rule that decides when a watched folder counts as changed."""

from pipelines.automation.debounce import Verdict, WatchState, judge


def look(watch: WatchState, digest: str, now: float, known: str = "old", *, running: bool = True) -> Verdict:
    return judge(watch, digest, known=known, running=running, now=now, quiet_seconds=60)


def test_unchanged_content_asks_for_nothing() -> None:
    verdict = look(WatchState(), "old", 0)
    assert verdict.run_key is None
    assert verdict.watch == WatchState()
    assert "nothing changed" in verdict.reason


def test_a_change_is_asked_for_once_after_a_quiet_minute() -> None:
    first = look(WatchState(), "new", 100)
    assert first.run_key is None
    second = look(first.watch, "new", 159.9)
    assert second.run_key is None
    third = look(second.watch, "new", 160)
    assert third.run_key == "reshard:1:new"
    assert look(third.watch, "new", 1000).run_key is None


def test_each_further_change_starts_the_quiet_minute_again() -> None:
    watch = WatchState()
    for now in range(0, 300, 30):
        verdict = look(watch, f"upload {now}", float(now))
        assert verdict.run_key is None
        watch = verdict.watch
    assert look(watch, "upload 270", 330).run_key == "reshard:1:upload 270"


def test_the_same_tick_evaluated_twice_gives_the_same_run_key() -> None:
    watch = look(WatchState(), "new", 0).watch
    assert look(watch, "new", 60).run_key == look(watch, "new", 61).run_key == "reshard:1:new"


def test_going_back_to_an_earlier_content_is_a_change_with_its_own_run_key() -> None:
    """A run key is used up for ever, so the digest alone would drop the third of A, B, A, B."""
    keys, watch, known, now = [], WatchState(), "A", 0.0
    for digest in ("B", "A", "B"):
        watch = look(watch, digest, now, known).watch
        verdict = look(watch, digest, now + 60, known)
        keys.append(verdict.run_key)
        watch, known, now = verdict.watch, digest, now + 100
    assert keys == ["reshard:1:B", "reshard:2:A", "reshard:3:B"]


def test_a_change_that_is_taken_back_while_waiting_asks_for_nothing() -> None:
    watch = look(WatchState(), "new", 0).watch
    assert look(watch, "old", 61).run_key is None


def test_a_content_that_was_requested_is_requested_again_after_the_folder_went_back() -> None:
    """A, B, A before the run that B asked for has read anything, then B again."""
    watch = look(look(WatchState(), "B", 0, "A").watch, "B", 60, "A").watch
    assert watch.requested == "B"
    watch = look(watch, "A", 90, "A").watch
    watch = look(watch, "B", 120, "A").watch
    assert look(watch, "B", 180, "A").run_key == "reshard:2:B"


def test_a_content_is_requested_again_when_its_run_ended_without_reading_it() -> None:
    """The same, with no look at the folder while it was back at A; also a run that failed before it read anything."""
    watch = look(look(WatchState(), "B", 0, "A").watch, "B", 60, "A").watch
    assert look(watch, "B", 500, "A", running=True).run_key is None
    waiting = look(watch, "B", 500, "A", running=False)
    assert waiting.run_key is None
    assert look(waiting.watch, "B", 560, "A", running=False).run_key == "reshard:2:B"


def test_after_three_requests_in_vain_the_message_says_what_to_do() -> None:
    keys, watch = [], WatchState()
    for now in range(0, 1200, 60):
        verdict = look(watch, "B", float(now), "A", running=False)
        keys += [verdict.run_key] if verdict.run_key else []
        watch = verdict.watch
    assert keys == ["reshard:1:B", "reshard:2:B", "reshard:3:B"]
    assert "requested 3 times" in verdict.reason
    assert "re-execute" in verdict.reason
    assert "reset this sensor's cursor" in verdict.reason
    assert look(look(watch, "C", 1200, "A").watch, "C", 1260, "A").run_key == "reshard:4:C"


def test_the_cursor_keeps_everything_and_a_damaged_one_starts_afresh() -> None:
    watch = WatchState(requested="a", requests=3, tries=2, seen="b", since=12.5)
    assert WatchState.from_cursor(watch.to_cursor()) == watch
    for text in (None, "", "12345", "{", '{"unknown": 1}', "[]"):
        assert WatchState.from_cursor(text) == WatchState()
