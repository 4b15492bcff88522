"""A cancellation that comes at a bad moment waits for a better one."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from smalti_dagster.runs.signals import held_signals, stopped_by_signals


class Cancelled(BaseException):
    """The error that Dagster's own handler raises."""


@pytest.fixture(autouse=True)
def cancelling() -> Iterator[None]:
    """SIGTERM raises, as in a step of a run."""

    def cancel(number: int, frame: object) -> None:
        raise Cancelled

    before = signal.signal(signal.SIGTERM, cancel)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_takes_effect_when_the_body_has_ended() -> None:
    done = []
    with pytest.raises(Cancelled), held_signals():  # noqa: PT012  the block is what is tested
        signal.raise_signal(signal.SIGTERM)
        done.append("all of it")
    assert done == ["all of it"]


def test_afterwards_signals_are_handled_as_before() -> None:
    with held_signals():
        pass
    with pytest.raises(Cancelled):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with held_signals():
        signal.raise_signal(signal.SIGTERM)


def test_in_another_thread_it_does_nothing() -> None:
    faults: list[BaseException] = []

    def body() -> None:
        try:
            with held_signals():
                pass
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(timeout=60)
    assert not faults


class Elsewhere:
    """A call that another process computes: it comes back when that one was stopped, or killed, or is done."""

    def __init__(self, *, stops: bool = True) -> None:
        self.answered = threading.Event()
        self.calls: list[str] = []
        self.stops = stops

    def stop(self) -> None:
        self.calls.append("stop")
        if self.stops:
            self.answered.set()

    def kill(self) -> None:
        self.calls.append("kill")
        self.answered.set()


def test_what_computes_elsewhere_is_stopped_and_its_call_comes_back_whole() -> None:
    other, whole = Elsewhere(), []
    with pytest.raises(Cancelled), stopped_by_signals(other.stop, other.kill, seconds=10):  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        whole.append(other.answered.wait(60))
    assert whole == [True]
    assert other.calls == ["stop"]


def test_a_body_that_goes_on_is_interrupted_after_some_seconds() -> None:
    other = Elsewhere(stops=False)
    begin = time.monotonic()
    with pytest.raises(Cancelled), stopped_by_signals(other.stop, other.kill, seconds=0.2):  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        time.sleep(300)
    assert 0.2 <= time.monotonic() - begin < 60
    assert other.calls == ["stop"]


def test_what_cannot_be_stopped_is_killed() -> None:
    other = Elsewhere(stops=False)
    with pytest.raises(Cancelled), stopped_by_signals(other.stop, other.kill, seconds=0.2):  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        try:
            time.sleep(300)
        finally:
            other.answered.wait(60)  # a clean-up that asks the other process, which does not answer
    assert other.calls == ["stop", "kill"]


def test_without_a_signal_nothing_is_stopped() -> None:
    other = Elsewhere()
    with stopped_by_signals(other.stop, other.kill, seconds=0.1):
        time.sleep(0.3)
    assert other.calls == []
