"""Ranks wait for one that works for long, such as by fetching a large checkpoint, longer than a wait may take."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch

from smalti.errors import CheckpointError, TrainingError
from smalti.torch.train.ranks import Ranks
from smalti.world import World

pytestmark = pytest.mark.torch


@dataclass
class Meeting:
    """A group of two ranks in threads, whose exchanges are counted."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=500))
    values: dict = field(default_factory=dict)
    exchanges: int = 0
    seen: threading.Condition = field(default_factory=threading.Condition)

    def exchange(self, rank, value):
        self.values[rank] = value
        self.barrier.wait()
        found = [self.values[number] for number in range(2)]
        self.barrier.wait()
        with self.seen:
            self.exchanges += rank == 0
            self.seen.notify_all()
        return found

    def wait_for(self, exchanges):
        with self.seen:
            assert self.seen.wait_for(lambda: self.exchanges >= exchanges, 60)


@dataclass(frozen=True)
class MetRanks(Ranks):
    def gather(self, value, what):
        return self.group.exchange(self.rank, value)

    def share(self, value, what):
        return self.gather(value, what)[0]


def on_both(act):
    """Call `act` with each of two ranks, and return what it returns or raises on each."""
    meeting = Meeting()

    def outcome(rank):
        try:
            return act(MetRanks(World.flat(rank, 2), torch.device("cpu"), meeting), meeting)
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(outcome, range(2)))


def test_others_hear_from_a_rank_that_works_until_it_is_done():
    def find(ranks, meeting):
        return ranks.run_long_on_first(lambda: [meeting.wait_for(3), "found"][1], "find the newest checkpoint")

    assert on_both(find) == ["found", "found"]


def test_each_rank_gets_what_its_own_work_returned():
    def load(ranks, meeting):
        return ranks.run_long(lambda: [ranks.rank and meeting.wait_for(2), ranks.rank][1], "load the checkpoint")

    assert on_both(load) == [0, 1]


@pytest.mark.parametrize(
    ("error", "on_other", "message"),
    [
        (CheckpointError("damaged"), CheckpointError, "damaged"),
        (ValueError("a bug"), TrainingError, "rank 1 could not load the checkpoint: ValueError: a bug"),
    ],
)
def test_a_fault_of_one_rank_is_raised_on_all_while_another_still_works(error, on_other, message):
    def load(ranks, meeting):
        def work():
            if ranks.rank:
                raise error
            meeting.wait_for(1)

        ranks.run_long(work, "load the checkpoint")

    first, second = on_both(load)
    assert second is error
    assert isinstance(first, on_other)
    assert message in str(first)


def test_a_rank_that_is_alone_works_in_its_own_thread():
    ranks = Ranks(World(), torch.device("cpu"))
    assert ranks.run_long_on_first(threading.current_thread, "work") is threading.current_thread()
