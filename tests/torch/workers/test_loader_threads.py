"""ThreadedIterator: order, bounds, errors, and that all threads end."""

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from smalti.errors import SmaltiError
from smalti.torch.worker_threads import ThreadedIterator

pytestmark = pytest.mark.torch


def threaded(work, read, *, threads=2, ahead=4, timeout=20.0, join=20.0):
    return ThreadedIterator(iter(work), read, num_threads=threads, num_ahead=ahead, timeout=timeout, join_seconds=join)


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("smalti-loader")]


def wait_until(true, seconds=280.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_threads_are_left():
    yield
    assert loader_threads() == []


def test_results_are_in_order_whichever_thread_is_first():
    last_is_done = threading.Event()

    def first_is_last(number):
        if number == 0:
            assert last_is_done.wait(120)
        if number == 3:
            last_is_done.set()
        return number * 10

    assert list(threaded(range(9), first_is_last, threads=2)) == [0, 10, 20, 30, 40, 50, 60, 70, 80]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_every_result_is_delivered_once_with_any_number_of_threads_and_places(threads, ahead):
    assert list(threaded(range(50), str, threads=threads, ahead=ahead)) == [str(n) for n in range(50)]


def test_several_threads_read_concurrently():
    together = threading.Barrier(3, timeout=120)
    assert len(list(threaded(range(3), lambda _: together.wait(), threads=3))) == 3


def test_no_more_is_drawn_than_there_are_places():
    drawn = []

    def work():
        for number in range(100):
            drawn.append(number)
            yield number

    batches = threaded(work(), lambda number: number, threads=2, ahead=5)
    assert [next(batches), next(batches)] == [0, 1]
    wait_until(lambda: len(drawn) == 7)
    time.sleep(0.05)
    assert drawn == [0, 1, 2, 3, 4, 5, 6]
    batches.close()


def test_nothing_is_drawn_before_the_first_request():
    drawn = []
    batches = threaded(iter(lambda: drawn.append(1), 0), lambda item: item)
    time.sleep(0.02)
    assert drawn == []
    batches.close()


class StrangeError(Exception):
    pass


def test_an_error_is_raised_unchanged_at_its_place():
    thrown = StrangeError("number three")

    def read(number):
        if number == 3:
            raise thrown
        return number

    batches = threaded(range(10), read)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StrangeError, match="number three") as caught:
        next(batches)
    assert caught.value is thrown
    assert any(entry.name == "read" for entry in caught.traceback)


def test_after_an_error_the_iteration_is_over():
    batches = threaded([1, 0, 1], lambda number: 1 // number)
    assert next(batches) == 1
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert list(batches) == []


def test_an_error_while_drawing_is_raised_after_earlier_results():
    def work():
        yield 1
        yield 2
        raise StrangeError("no plan")

    batches = threaded(work(), lambda number: number, threads=3)
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(StrangeError, match="no plan"):
        next(batches)


def test_closing_ends_the_threads_and_the_iteration():
    batches = threaded(range(1000), lambda number: number, threads=3)
    assert next(batches) == 0
    assert len(loader_threads()) == 3
    batches.close()
    batches.close()
    assert loader_threads() == []
    assert list(batches) == []


@pytest.mark.parametrize("hangs", ["drawing", "reading"])
def test_closing_in_another_thread_ends_the_wait_for_a_result(hangs):
    release, entered = threading.Event(), threading.Event()

    def stay(where, number):
        if where == hangs and number == 1:
            entered.set()
            assert release.wait(60)
        return number

    batches = threaded((stay("drawing", number) for number in range(10)), partial(stay, "reading"), join=0.05)
    assert next(batches) == 0
    assert entered.wait(60)
    closing = threading.Timer(0.2, batches.close)
    closing.start()
    assert list(batches) == []
    closing.join()
    assert not release.is_set()
    release.set()
    wait_until(lambda: not loader_threads())


def test_closing_before_the_first_request_reads_nothing():
    batches = threaded(range(3), lambda number: number)
    batches.close()
    assert list(batches) == []


def test_the_end_of_the_work_ends_the_threads():
    assert list(threaded(range(3), lambda number: number, threads=3)) == [0, 1, 2]
    assert loader_threads() == []


def test_garbage_collection_ends_the_threads():
    batches = threaded(range(1000), lambda number: number)
    next(batches)
    batches.itself = batches
    del batches
    gc.collect()
    assert loader_threads() == []


def test_a_thread_in_the_middle_of_an_item_ends_after_it():
    release, entered = threading.Event(), threading.Event()

    def read(number):
        if number == 1:
            entered.set()
            assert release.wait(60)
        return number

    batches = threaded(range(10), read, threads=1, join=0.05)
    assert next(batches) == 0
    assert entered.wait(60)
    before = time.monotonic()
    batches.close()
    assert time.monotonic() - before < 60
    assert len(loader_threads()) == 1
    release.set()
    wait_until(lambda: not loader_threads())


def test_waiting_too_long_is_an_error_that_names_the_batch():
    release = threading.Event()
    batches = threaded(range(10), lambda number: number and release.wait(60), timeout=2.0)
    assert next(batches) == 0
    with pytest.raises(SmaltiError, match=r"batch 1 of this iteration was not ready after 2 s") as caught:
        next(batches)
    assert (caught.value.batch, caught.value.timeout) == (1, 2.0)
    release.set()
    batches.close()


def test_two_iterations_do_not_disturb_each_other():
    one, other = threaded(range(100), lambda n: n), threaded(range(100), lambda n: -n)
    pairs = list(zip(one, other, strict=True))
    assert pairs == [(number, -number) for number in range(100)]


def continue_in_fork(batches, connection):
    try:
        next(batches)
    except SmaltiError as error:
        connection.send(str(error))


@pytest.mark.process
def test_a_forks_copy_of_a_running_iteration_is_an_error():
    batches = threaded(range(100), lambda number: number)
    next(batches)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=continue_in_fork, args=(batches, there))
    child.start()
    assert here.poll(120)
    assert "begun before a fork" in here.recv()
    child.join(120)
    assert child.exitcode == 0
    assert next(batches) == 1
    batches.close()


@pytest.mark.process
@pytest.mark.slow
def test_an_interpreter_that_ends_during_an_iteration_ends_cleanly():
    code = (
        "from smalti.torch.worker_threads import *\n"
        "batches = ThreadedIterator(iter(range(10**9)), str, num_threads=3, num_ahead=8, timeout=10.0)\n"
        "print(next(batches), next(batches))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n", "")
