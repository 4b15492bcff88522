"""The time limit of transfers, with a fake clock."""

import pytest

from smalti.errors import StoreTimeout
from smalti.storage.retry import TransferDeadline

KIB, MIB = 1024, 1024 * 1024


class Clock:
    """A clock that the tests set."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def seconds_until_failure(clock, deadline, every, num_bytes):
    """Report `num_bytes` each `every` seconds until the deadline raises; return the seconds since its start."""
    begin = clock.now
    while clock.now < begin + 100_000:
        step = min(every, deadline.remaining())
        clock.now += step
        try:
            deadline.progress(num_bytes if step == every else 0)
        except StoreTimeout as error:
            return clock.now - begin, str(error)
    raise AssertionError("it never failed")


def test_one_byte_per_half_second_does_not_extend_the_time_limit(clock):
    deadline = TransferDeadline(60.0, 100 * MIB, clock)
    seconds, message = seconds_until_failure(clock, deadline, 0.5, 1)
    assert seconds == 60.0
    assert "less than 64 KiB arrived within 60 s" in message
    assert "(119 of 104857600 bytes had arrived)" in message
    assert "`download_timeout`" in message


def test_a_slow_transfer_with_progress_gets_time_for_its_size(clock):
    deadline = TransferDeadline(10.0, 64 * MIB, clock)
    for _ in range(1024):  # 64 KiB each second: 1,024 seconds
        clock.now += 1.0
        deadline.progress(64 * KIB)
    assert deadline.received == 64 * MIB


def test_a_trickling_transfer_ends_at_the_time_limit_plus_its_size_at_64_kib_per_second(clock):
    deadline = TransferDeadline(60.0, 128 * MIB, clock)
    seconds, message = seconds_until_failure(clock, deadline, 50.0, 64 * KIB)
    assert seconds == 60.0 + 2048.0
    assert "not complete within 2108 s" in message


def test_a_transfer_of_unknown_size_gets_time_for_the_bytes_that_arrived(clock):
    # 32 KiB a second: just before 119 s, 118 pieces have arrived, good for 59 s more than the limit.
    deadline = TransferDeadline(60.0, None, clock)
    seconds, message = seconds_until_failure(clock, deadline, 1.0, 32 * KIB)
    assert seconds == 119.0
    assert "not complete within 119 s" in message


def test_a_fast_transfer_of_unknown_size_never_times_out(clock):
    deadline = TransferDeadline(60.0, None, clock)
    for _ in range(10_000):
        clock.now += 1.0
        deadline.progress(64 * KIB)


def test_bytes_after_the_deadline_raise(clock):
    deadline = TransferDeadline(60.0, 10, clock, what="s3://bucket/key", key="key")
    clock.now += 61.0
    with pytest.raises(StoreTimeout, match=r"s3://bucket/key: .*\(0 of 10 bytes") as caught:
        deadline.progress(10)
    assert (caught.value.key, caught.value.received) == ("key", 0)


@pytest.mark.parametrize("late", [0.0, 0.01, 1000.0])
def test_the_error_names_the_rule_whose_time_came_first_however_late_it_is_noticed(clock, late):
    stalled, slow = TransferDeadline(60.0, MIB, clock), TransferDeadline(60.0, None, clock)
    clock.now += 60.0 + late
    assert "less than 64 KiB arrived within 60 s" in str(stalled.error()), "rule 2 gives a mebibyte 16 s more"
    assert "not complete within 60 s" in str(slow.error())


@pytest.mark.parametrize("waited", [0.0, 0.0001, 0.01, 30.0])
def test_an_object_of_less_than_64_kib_was_not_complete_whenever_its_attempt_began(clock, waited):
    """Both rules end within milliseconds: a message that names one of them would depend on the speed of the machine."""
    deadline = TransferDeadline(60.0, 367, clock)
    clock.now += waited
    deadline.restart()
    clock.now += 60.1
    assert "not complete within 60 s (0 of 367 bytes had arrived)" in str(deadline.error())


def test_less_than_64_kib_is_no_progress_in_any_number_of_pieces(clock):
    deadline = TransferDeadline(60.0, MIB, clock)
    clock.now += 30.0
    deadline.progress(64 * KIB - 1)
    assert deadline.remaining() == 30.0
    deadline.progress(1)
    assert deadline.remaining() == 46.0, "60 s from here, but 76 s in all"


def test_a_wait_before_the_transfer_only_counts_toward_the_total_time(clock):
    deadline = TransferDeadline(60.0, 2 * MIB, clock)
    clock.now += 70.0
    assert deadline.passed()
    deadline.restart()
    assert not deadline.passed()
    assert deadline.remaining() == 22.0, "60 + 32 s in all"
