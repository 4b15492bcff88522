"""A cancellation that comes at a bad moment waits for a better one."""

import signal
import threading
from collections.abc import Iterator

import pytest

from resources.signals import held_signals


class Cancelled(BaseException):
    """What Dagster's own handler raises."""


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
    thread.join(timeout=10)
    assert not faults
