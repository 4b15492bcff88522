"""A checkpoint is written while the loop goes on; the next save waits for it, and its faults are raised, never lost."""

import contextlib
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from smalti.errors import CheckpointError, StoreError, TrainingError
from smalti.torch.train import RunConfig
from smalti.torch.train.launchers.start import LOST, STOPPED, kind_of
from smalti.torch.train.life import BY_FUNCTION, Life, Saves, StopSignal, checked_step
from smalti.torch.train.ranks import Ranks
from smalti.torch.train.run.checkpoint import CheckpointFolder, ignore
from smalti.torch.train.run.events import EventLog, read_lines
from smalti.torch.train.run.files import Snapshot
from smalti.torch.train.run.store import LocalRun, StoreRun, run_lock
from smalti.world import World
from tests.stores.memory import MemoryStore

pytestmark = pytest.mark.torch


class GatedStore(MemoryStore):
    """A store whose checkpoints take until the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def put_file(self, key, path):
        assert self.gate.wait(120)
        super().put_file(key, path)


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
def begin(store, tmp_path):
    """Begin a life of a run of one rank in the store."""
    with contextlib.ExitStack() as stack:
        stack.callback(store.gate.set)

        def begin(*, timeout_seconds: float = 120.0, keep_best: str | None = None, keep: int = 2) -> Saves:
            scratch = tmp_path / f"{len(store.calls)}"
            scratch.mkdir()
            run = StoreRun(store, "s3://bucket/run", scratch)
            number = stack.enter_context(run.begun(num_ranks=1))
            events = EventLog(scratch / "metrics.jsonl")
            stack.callback(events.close)
            ranks = Ranks(World(), torch.device("cpu"))
            life = Life(number, ranks, run, events, None, StopSignal(), stack.callback)
            config = RunConfig(
                run_dir="s3://bucket/run", timeout_seconds=timeout_seconds, keep_best=keep_best, keep_checkpoints=keep
            )
            return Saves(life, config, ignore)

        yield begin


def snapshot(step: int, weights: torch.Tensor | None = None, **state) -> Snapshot:
    weights = torch.full((3,), float(step)) if weights is None else weights
    return Snapshot(step, {"model": {"w": weights, "tied": weights}}, state)


def steps_in(store) -> list[str]:
    return sorted({info.key.split("/")[1] for info in store.list("checkpoints") if info.key.endswith("checksums.json")})


def test_the_loop_goes_on_while_a_checkpoint_is_put_and_what_it_changes_is_not_in_it(begin, store):
    saves, weights, history = begin(), torch.ones(3), [1]
    store.gate.clear()
    address = saves.save(1, lambda: snapshot(1, weights, history=history))
    weights += 1
    history.append(2)
    assert not saves.should_stop()
    assert steps_in(store) == []
    store.gate.set()
    saves.finish()
    assert steps_in(store) == ["step-00000001-00000"]
    loaded = saves.load(address)
    assert loaded.tensors["model"]["w"].tolist() == [1.0] * 3
    assert loaded.state["history"] == [1]


def test_the_next_save_waits_for_the_last_but_not_for_ever(begin, store):
    saves = begin(timeout_seconds=0.5)
    store.gate.clear()
    saves.save(1, lambda: snapshot(1))
    with pytest.raises(
        TrainingError, match="checkpoint of step 1 has not been written to s3://bucket/run/checkpoints/"
    ):
        saves.save(2, lambda: snapshot(2))
    assert steps_in(store) == []


@pytest.mark.parametrize("call", ["save", "should_stop", "finish"])
def test_a_fault_of_the_thread_is_raised_once_by_the_next_call(begin, store, call):
    saves = begin()
    store.plant("put_file", key="*/model.safetensors", times=1)
    saves.save(1, lambda: snapshot(1))
    saves._await()  # for `should_stop`, which does not wait
    with pytest.raises(StoreError, match="planted"):
        {"save": lambda: saves.save(2, lambda: snapshot(2)), "should_stop": saves.should_stop, "finish": saves.finish}[
            call
        ]()
    saves.save(3, lambda: snapshot(3), wait=True)
    assert steps_in(store) == ["step-00000003-00000"]


def test_a_write_in_which_another_rank_was_late_is_reported_once_and_does_not_stop_later_saves(begin, store):
    saves = begin()
    saves.save(1, lambda: snapshot(1))
    saves._await()
    saves._last.fault = TrainingError("rank 0 of 2 waited, and one is gone or late: Timed out waiting", what="write it")
    with pytest.raises(TrainingError, match="gone or late"):
        saves.save(2, lambda: snapshot(2))
    saves.save(3, lambda: snapshot(3), wait=True)
    assert steps_in(store)[-1] == "step-00000003-00000"


def test_a_state_that_cannot_be_copied_is_raised_at_once_and_does_not_stop_later_saves(begin, store):
    saves = begin()

    def fail() -> Snapshot:
        raise CheckpointError("state.model is a object")

    with pytest.raises(CheckpointError, match="is a object"):
        saves.save(1, fail)
    saves.save(2, lambda: snapshot(2), wait=True)
    assert steps_in(store) == ["step-00000002-00000"]


def test_a_life_that_ends_by_an_exception_waits_for_its_last_checkpoint(begin, store):
    saves = begin()
    store.gate.clear()
    saves.save(1, lambda: snapshot(1))
    threading.Timer(0.3, store.gate.set).start()
    saves._await_quietly()  # what the life calls at its end
    assert steps_in(store) == ["step-00000001-00000"]


def test_a_checkpoint_is_recorded_when_it_is_published_with_the_time_that_the_loop_was_held(begin, store, tmp_path):
    saves = begin()
    store.gate.clear()
    saves.save(1, lambda: snapshot(1))
    saves.should_stop()
    (log,) = tmp_path.glob("*/metrics.jsonl")
    assert read_lines(log) == []
    store.gate.set()
    saves.finish()
    (event,) = read_lines(log)
    assert (event["event"], event["step"], event["path"].rpartition("/")[2]) == ("checkpoint", 1, "step-00000001-00000")
    assert 0 < event["held_seconds"] <= event["seconds"]


def test_i7_the_best_checkpoint_is_kept_beside_the_newest_over_lives_and_a_damaged_one_is_not_the_best(begin, store):
    saves = begin(keep=1, keep_best="min loss")
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0], 1):
        saves.save(step, lambda step=step, loss=loss: snapshot(step, metrics={"loss": loss}), wait=True)
    assert steps_in(store) == ["step-00000002-00000", "step-00000004-00000"]
    assert saves.find_best() == "s3://bucket/run/checkpoints/step-00000002-00000"
    again = begin(keep=1, keep_best="min loss")
    assert again.resume().step == 4
    again.save(5, lambda: snapshot(5, metrics={"loss": 1.0}), wait=True)
    assert steps_in(store) == ["step-00000005-00001"]  # as good as the best, and newer
    again.save(6, lambda: snapshot(6, metrics={"loss": 7.0}), wait=True)
    store.objects["checkpoints/step-00000005-00001/model.safetensors"] = b"?"
    third = begin(keep=1, keep_best="min loss")
    assert third.resume().step == 6
    assert third.find_best() == "s3://bucket/run/checkpoints/step-00000006-00001"


def test_a_copy_for_a_checkpoint_that_cannot_be_begun_is_removed(begin, tmp_path):
    saves = begin()
    (tmp_path / "vocabulary").write_text("a b")

    def fail() -> Snapshot:
        raise CheckpointError("state.model is a object")

    with pytest.raises(CheckpointError, match="is a object"):
        saves.save(1, fail, tmp_path / "vocabulary")
    assert list(tmp_path.glob("*/checkpoints/.step-*")) == []


def test_the_thread_of_a_life_that_has_ended_publishes_nothing_in_a_folder(tmp_path, monkeypatch):
    gate = threading.Event()
    save = CheckpointFolder.save
    monkeypatch.setattr(CheckpointFolder, "save", lambda *parts: (gate.wait(60), save(*parts))[1])
    life = Life(0, Ranks(World(), torch.device("cpu")), LocalRun(tmp_path), EventLog(None), None, StopSignal(), id)
    saves = Saves(life, RunConfig(run_dir=str(tmp_path), grace_seconds=0.1), ignore)
    saves.save(1, lambda: snapshot(1))
    saves._await_quietly()  # what the life calls at its end
    gate.set()
    saves._await()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_signal_of_a_parent_that_has_died_is_a_failure_and_no_wish_to_stop(begin, monkeypatch):
    monkeypatch.setattr("smalti.torch.train.life.is_orphan", lambda: True)
    saves = begin()
    saves._life.stop._request(15, None)
    assert saves.should_stop()
    assert kind_of(TrainingError(saves.stop_cause, **saves.stop_facts)) == LOST


def test_the_death_of_a_parent_after_it_was_asked_to_stop_is_a_stop(begin, monkeypatch):
    saves = begin()
    saves._life.stop._request(15, None)
    monkeypatch.setattr("smalti.torch.train.life.is_orphan", lambda: True)
    saves._life.stop._request(15, None)
    assert saves.should_stop()
    assert kind_of(TrainingError(saves.stop_cause, **saves.stop_facts)) == STOPPED


@pytest.mark.parametrize(
    ("request_stop", "cause"),
    [
        (lambda stop: stop._request(15, None), "SIGTERM"),
        (lambda stop: stop._request(10, None), "SIGUSR1"),
        (lambda stop: stop.request(BY_FUNCTION), "`request_stop`"),
        (lambda stop: [stop.request(BY_FUNCTION), stop._request(15, None)], "`request_stop`"),
    ],
    ids=["SIGTERM", "SIGUSR1", "function", "both"],
)
def test_a_stop_has_the_cause_that_came_first(begin, request_stop, cause):
    saves = begin()
    assert not saves.should_stop()
    request_stop(saves._life.stop)
    assert saves.should_stop()
    assert saves.stop_cause == f"stopped by {cause}"


def test_a_checkpoint_that_would_be_older_than_the_newest_is_refused(begin, store):
    saves = begin()
    for step in (5, 5, 7):  # one of the same step replaces the earlier one
        saves.save(step, lambda step=step: snapshot(step), wait=True)
    with pytest.raises(TrainingError, match="a checkpoint of step 6 cannot be saved after that of step 7"):
        saves.save(6, lambda: snapshot(6))
    assert [name.rpartition("-")[0] for name in steps_in(store)] == ["step-00000005-00000", "step-00000007"]
    later = begin()
    assert later.resume().step == 7
    with pytest.raises(TrainingError, match="step 6 cannot be saved after that of step 7"):
        later.save(6, lambda: snapshot(6))
    later.save(7, lambda: snapshot(7), wait=True)


@pytest.mark.parametrize("step", [-1, True, 1.5, "1", None, 10**30, math.nan], ids=str)
def test_a_step_is_a_whole_number_from_0(step):
    with pytest.raises(TrainingError, match="expected the number of optimiser steps, a whole number from 0"):
        checked_step(step)


def test_a_step_may_be_of_numpy_or_torch():
    assert [checked_step(each) for each in (np.int32(3), torch.tensor(4), 0)] == [3, 4, 0]


def test_the_lock_of_a_run_ends_with_it_while_a_forked_process_has_the_file_open(tmp_path):
    with run_lock(tmp_path):
        opened = {path: os.stat(path) for path in Path("/proc/self/fd").iterdir() if path.exists()}
        lock = os.stat(tmp_path / ".lock")
        (descriptor,) = [int(path.name) for path, found in opened.items() if os.path.samestat(found, lock)]
        forked = os.dup(descriptor)  # one description, as after a fork
    try:
        with run_lock(tmp_path, wait_seconds=0.0):
            pass
    finally:
        os.close(forked)
