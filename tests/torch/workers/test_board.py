"""The board that a program shares with its loader workers: whole content, one process at a time, no endless wait."""

import multiprocessing
import os
import pickle

import pytest

from smalti.errors import SmaltiError
from smalti.torch.workers.board import Board

pytestmark = pytest.mark.torch


def read(board):
    with board.content() as content:
        return dict(content)


def change(board, **values):
    with board.content() as content:
        content.update(values)


def test_what_was_written_last_is_read_however_long_it_is():
    board = Board()
    assert read(board) == {}
    for times, length in enumerate((10, 100_000, 5, 70_000, 0, 200_000), start=1):
        change(board, text="x" * length)
        assert (read(board), board.changes) == ({"text": "x" * length}, times)


def test_a_change_that_fails_leaves_the_content_and_the_board_as_they_were():
    board = Board()
    change(board, epoch=1)
    with pytest.raises(ZeroDivisionError), board.content() as content:
        content["epoch"] = 2 / 0
    assert read(board) == {"epoch": 1}


def fork(run, *arguments):
    process = multiprocessing.get_context("fork").Process(target=run, args=arguments)
    process.start()
    return process


def die_with_it(board):
    with board.content() as content:
        content["epoch"] = 2
        os._exit(9)


def die_before_the_header(board):
    """Written is all but the header, which says where the content is."""
    with board.content():
        _, begin, old = board._read()
        new = b'{"epoch": 3}'
        os.pwrite(board._descriptor, new, begin + len(old))
        os._exit(9)


@pytest.mark.process
@pytest.mark.parametrize("die", [die_with_it, die_before_the_header])
def test_a_process_that_is_killed_with_the_board_leaves_it_whole_and_free(die):
    board = Board()
    change(board, epoch=1)
    process = fork(die, board)
    process.join(30)
    assert process.exitcode == 9
    assert read(board) == {"epoch": 1}


def keep(board, has, may_go):
    with board.content():
        has.set()
        may_go.wait(60)


@pytest.mark.process
def test_a_process_that_keeps_the_board_is_an_error_after_the_deadline_and_no_hang():
    board, context = Board(lock_seconds=0.05), multiprocessing.get_context("fork")
    has, may_go = context.Event(), context.Event()
    process = fork(keep, board, has, may_go)
    assert has.wait(60)
    with pytest.raises(SmaltiError, match=r"locked the place of its datasets for 0\.05 s.*was stopped"):
        read(board)
    may_go.set()
    process.join(30)
    assert read(board) == {}


def test_a_board_goes_to_processes_that_are_started_and_nowhere_else():
    with pytest.raises(TypeError, match="being started"):
        pickle.dumps(Board())
