"""The board that a program shares with its loader workers: complete content, one process at a time, bounded waits."""

import multiprocessing
import os
import pickle
from unittest.mock import patch

import pytest
from torch.utils.data import DataLoader

from smalti.errors import SmaltiError
from smalti.torch import StreamingDataset
from smalti.torch.shared_progress import Board
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


def read(board):
    with board.content() as content:
        return dict(content)


def change(board, **values):
    with board.content() as content:
        content.update(values)


def test_the_last_content_is_read_whatever_its_length():
    board = Board()
    assert read(board) == {}
    for length in (10, 100_000, 5, 70_000, 0, 200_000):
        change(board, text="x" * length)
        assert read(board) == {"text": "x" * length}


def test_a_failed_change_leaves_content_and_board_unchanged():
    board = Board()
    change(board, epoch=1)
    with pytest.raises(ZeroDivisionError), board.content() as content:
        content["epoch"] = 2 / 0
    assert read(board) == {"epoch": 1}


def fork(run, *arguments):
    process = multiprocessing.get_context("fork").Process(target=run, args=arguments)
    process.start()
    return process


def die_with_the_lock(board):
    with board.content() as content:
        content["epoch"] = 2
        os._exit(9)


def die_before_the_header(board):
    """Write all but the header, which contains the place of the content."""
    with board.content():
        _, begin, old = board._read()
        new = b'{"epoch": 3}'
        os.pwrite(board._descriptor, new, begin + len(old))
        os._exit(9)


@pytest.mark.process
@pytest.mark.parametrize("die", [die_with_the_lock, die_before_the_header])
def test_a_process_killed_with_the_lock_leaves_the_board_intact_and_unlocked(die):
    board = Board()
    change(board, epoch=1)
    process = fork(die, board)
    process.join(120)
    assert process.exitcode == 9
    assert read(board) == {"epoch": 1}


def hold(board, has, may_go):
    with board.content():
        has.set()
        may_go.wait(60)


@pytest.mark.process
def test_a_process_that_holds_the_lock_too_long_is_an_error_and_no_hang():
    board, context = Board(lock_seconds=0.05), multiprocessing.get_context("fork")
    has, may_go = context.Event(), context.Event()
    process = fork(hold, board, has, may_go)
    assert has.wait(60)
    with pytest.raises(SmaltiError, match=r"locked the place of its datasets for 0\.05 s.*was stopped"):
        read(board)
    may_go.set()
    process.join(120)
    assert read(board) == {}


def test_a_board_can_be_pickled_only_for_a_process_that_is_being_started():
    with pytest.raises(TypeError, match="being started"):
        pickle.dumps(Board())


def test_an_unchanged_place_is_read_without_the_lock(tmp_path):
    """A process that was stopped while it held the lock, or many readers of samples, must not stop others."""
    dataset = StreamingDataset(remote=str(write_set(tmp_path / "set", 8)), batch_size=4)
    assert list(DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork"))
    assert dataset.next_epoch == 1
    with patch.object(Board, "content", side_effect=AssertionError("locked")):
        assert [dataset.next_epoch, dataset.next_epoch] == [1, 1]
    dataset.next_epoch = 5
    assert dataset.next_epoch == 5
