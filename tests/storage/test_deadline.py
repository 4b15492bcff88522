"""How long a transfer may take, by a clock that the tests move."""

import pytest

from smalti.errors import StoreTimeout
from smalti.storage.deadline import TransferDeadline

KIB, MIB = 1024, 1024 * 1024


class Clock:
    """Seconds as the test says."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def seconds_until_failure(clock, deadline, every, num_bytes):
    """Hands over `num_bytes` each `every` seconds until the deadline raises; when that was, from the beginning."""
    begin = clock.now
    while clock.now < begin + 100_000:
        step = min(every, deadline.remaining())
        clock.now += step
        try:
            deadline.progress(num_bytes if step == every else 0)
        except StoreTimeout as error:
            return clock.now - begin, str(error)
    raise AssertionError("it never failed")


def test_one_byte_each_half_second_does_not_hold_a_transfer_beyond_the_time_limit(clock):
    deadline = TransferDeadline(60.0, 100 * MIB, clock)
    seconds, message = seconds_until_failure(clock, deadline, 0.5, 1)
    assert seconds == 60.0
    assert "less than 64 KiB arrived within 60 s" in message
    assert "(119 of 104857600 bytes had arrived)" in message
    assert "`download_timeout`" in message


def test_a_slow_transfer_that_progresses_is_given_time_for_its_size(clock):
    deadline = TransferDeadline(10.0, 64 * MIB, clock)
    for _ in range(1024):  # 64 KiB each second: 1,024 seconds
        clock.now += 1.0
        deadline.progress(64 * KIB)
    assert deadline.received == 64 * MIB


def test_a_transfer_that_trickles_ends_at_the_time_limit_and_its_size_at_64_kib_a_second(clock):
    deadline = TransferDeadline(60.0, 128 * MIB, clock)
    seconds, message = seconds_until_failure(clock, deadline, 50.0, 64 * KIB)
    assert seconds == 60.0 + 2048.0
    assert "not complete within 2108 s" in message


def test_a_transfer_of_unknown_size_has_time_for_what_has_arrived(clock):
    # 32 KiB a second: just before 119 s, 118 pieces have arrived, good for 59 s more than the limit.
    deadline = TransferDeadline(60.0, None, clock)
    seconds, message = seconds_until_failure(clock, deadline, 1.0, 32 * KIB)
    assert seconds == 119.0
    assert "not complete within 119 s" in message


def test_a_fast_transfer_of_unknown_size_never_ends_by_time(clock):
    deadline = TransferDeadline(60.0, None, clock)
    for _ in range(10_000):
        clock.now += 1.0
        deadline.progress(64 * KIB)


def test_bytes_that_come_after_the_deadline_are_too_late(clock):
    deadline = TransferDeadline(60.0, 10, clock, what="s3://bucket/key", key="key")
    clock.now += 61.0
    with pytest.raises(StoreTimeout, match=r"s3://bucket/key: .*\(0 of 10 bytes") as caught:
        deadline.progress(10)
    assert (caught.value.key, caught.value.received) == ("key", 0)


def test_less_than_64_kib_is_no_progress_however_many_pieces_it_comes_in(clock):
    deadline = TransferDeadline(60.0, MIB, clock)
    clock.now += 30.0
    deadline.progress(64 * KIB - 1)
    assert deadline.remaining() == 30.0
    deadline.progress(1)
    assert deadline.remaining() == 46.0, "60 s from here, but 76 s in all"


def test_a_wait_before_the_transfer_counts_for_the_time_in_all_alone(clock):
    deadline = TransferDeadline(60.0, 2 * MIB, clock)
    clock.now += 70.0
    assert deadline.passed()
    deadline.restart()
    assert not deadline.passed()
    assert deadline.remaining() == 22.0, "60 + 32 s in all"
