"""The rule that decides when a watched folder counts as changed."""

from pipelines.debounce import Verdict, Watch, judge


def look(watch: Watch, digest: str, now: float, known: str = "old") -> Verdict:
    return judge(watch, digest, known=known, now=now, quiet_seconds=60)


def test_unchanged_content_asks_for_nothing() -> None:
    verdict = look(Watch(), "old", 0)
    assert verdict.run_key is None
    assert verdict.watch == Watch()
    assert "nothing changed" in verdict.reason


def test_a_change_is_asked_for_once_after_a_quiet_minute() -> None:
    first = look(Watch(), "new", 100)
    assert first.run_key is None
    second = look(first.watch, "new", 159.9)
    assert second.run_key is None
    third = look(second.watch, "new", 160)
    assert third.run_key == "reshard:1:new"
    assert look(third.watch, "new", 1000).run_key is None


def test_each_further_change_starts_the_quiet_minute_again() -> None:
    watch = Watch()
    for now in range(0, 300, 30):
        verdict = look(watch, f"upload {now}", float(now))
        assert verdict.run_key is None
        watch = verdict.watch
    assert look(watch, "upload 270", 330).run_key == "reshard:1:upload 270"


def test_the_same_tick_evaluated_twice_gives_the_same_run_key() -> None:
    watch = look(Watch(), "new", 0).watch
    assert look(watch, "new", 60).run_key == look(watch, "new", 61).run_key == "reshard:1:new"


def test_going_back_to_an_earlier_content_is_a_change_with_its_own_run_key() -> None:
    """A run key is used up for ever, so the digest alone would drop the third of A, B, A, B."""
    keys, watch, known, now = [], Watch(), "A", 0.0
    for digest in ("B", "A", "B"):
        watch = look(watch, digest, now, known).watch
        verdict = look(watch, digest, now + 60, known)
        keys.append(verdict.run_key)
        watch, known, now = verdict.watch, digest, now + 100
    assert keys == ["reshard:1:B", "reshard:2:A", "reshard:3:B"]


def test_a_change_that_is_taken_back_while_waiting_asks_for_nothing() -> None:
    watch = look(Watch(), "new", 0).watch
    assert look(watch, "old", 61).run_key is None


def test_the_cursor_keeps_everything_and_a_damaged_one_starts_afresh() -> None:
    watch = Watch(requested="a", requests=3, seen="b", since=12.5)
    assert Watch.from_cursor(watch.to_cursor()) == watch
    for text in (None, "", "12345", "{", '{"unknown": 1}', "[]"):
        assert Watch.from_cursor(text) == Watch()
