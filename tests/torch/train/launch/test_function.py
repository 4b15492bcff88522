"""A user's training function: the same with every launcher, resumed with its cursors, and stopped with a checkpoint."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from smalti.errors import CheckpointError, CursorError, SchemaError, StoreTimeout, TrainingError, WorldMismatch
from smalti.storage.errors import is_transient
from smalti.torch.train import launch, read_sample_order
from smalti.torch.train.run.events import read_lines

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BATCH = 10
"""Samples of a step; the 50 training samples are five steps."""


def learn(context):
    """Count labels as a model would learn them: the weight is the number of samples of each class so far."""
    loader = context.dataloader("train", batch_size=BATCH, shuffle_seed=3)
    checkpoint = context.latest()
    step = 0 if checkpoint is None else checkpoint.step
    counts = torch.zeros(3, dtype=torch.int64) if checkpoint is None else checkpoint.state["counts"]
    while context.epoch(loader) < context.config["epochs"]:
        for batch in loader:
            counts += _over_ranks(torch.bincount(batch["label"], minlength=3))
            step += 1
            context.report({"seen": int(counts.sum())}, step=step)
            fault = context.config.get("fault")
            if step == 3 and fault and checkpoint is None and context.rank == context.world.num_ranks - 1:
                _FAULTS[fault]()
            if step % 2 == 0 or step % 5 == 0:
                context.save(step, {"counts": counts}, wait=True)  # a life with a checkpoint has no more faults
            if context.should_stop():
                context.save(step, {"counts": counts})
                return None
    held_out = context.dataloader("validation", batch_size=2, shuffle=False)
    return {"counts": counts.tolist(), "steps": step, "held_out": sum(len(batch["label"]) for batch in held_out)}


def _over_ranks(counts):
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(counts)
    return counts


def _raise():
    raise ValueError("the function's own fault 4711")


_FAULTS = {
    "raise": _raise,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
}
COUNTS = [34, 34, 32]
"""Of 50 samples whose label is their number modulo 3: 17, 17 and 16, in each of two epochs."""


@pytest.fixture
def options(squares, tmp_path):
    return {"data": str(squares), "run_dir": str(tmp_path / "run"), "log_samples": True, "timeout_seconds": 280.0}


def test_a_run_killed_on_two_processes_goes_on_in_this_one_with_each_sample_once_per_epoch(options):
    whole = {**options, "run_dir": options["run_dir"] + "-whole"}
    heard = []
    assert launch(learn, {"epochs": 2}, on_event=heard.append, **whole) == {
        "counts": COUNTS, "steps": 10, "held_out": 14,
    }  # fmt: skip
    assert [event["metrics"]["seen"] for event in heard if event["event"] == "report"] == list(range(10, 101, 10))
    doomed = {"epochs": 2, "fault": "kill"}
    with pytest.raises(TrainingError, match="rank 1 of 2 was ended by SIGKILL"):
        launch(learn, doomed, launcher="processes", num_processes=2, **options)
    result = launch(learn, doomed, **options)
    assert (result["counts"], result["steps"]) == (COUNTS, 10)
    assert read_sample_order(options["run_dir"]) == read_sample_order(whole["run_dir"])
    lives = read_lines(Path(options["run_dir"]) / "lives.jsonl")
    assert [life["num_ranks"] for life in lives] == [2, 1]


def test_a_stopped_run_is_an_error_that_names_its_checkpoint_and_goes_on_from_it(options):
    """In a process of its own: in this one, other tests may have left a handler of SIGTERM."""
    stopping = {"epochs": 2, "fault": "terminate"}
    with pytest.raises(TrainingError, match=r"stopped by SIGTERM; the newest checkpoint is .*step-00000003") as caught:
        launch(learn, stopping, launcher="processes", **options)
    assert caught.value.exit_code == 143
    assert launch(learn, stopping, **options)["counts"] == COUNTS


def test_a_function_of_a_notebook_is_sent_to_other_processes_with_its_variables(options):
    number = time.time_ns()

    def report(context):
        counts = torch.ones(1)
        torch.distributed.all_reduce(counts)  # with `config`: names of a module that cloudpickle cannot pickle
        return [number, context.config, int(counts)]

    assert launch(report, "as given", launcher="processes", num_processes=2, **options) == [number, "as given", 2]


def test_an_error_of_the_function_is_in_the_error(options):
    with pytest.raises(TrainingError, match="the function's own fault 4711"):
        launch(learn, {"epochs": 1, "fault": "raise"}, launcher="processes", **options)


def test_two_loaders_have_their_own_cursors(options):
    def read_both(context):
        first = context.dataloader("train", batch_size=25)
        second = context.dataloader("validation", batch_size=7)
        if context.latest() is None:
            next(iter(first))
            context.save(1, None)
        return [first.state_dict()["sample_in_epoch"], second.state_dict()["sample_in_epoch"]]

    assert launch(read_both, **options) == [25, 0]
    assert launch(read_both, **options) == [25, 0]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda context: context, TrainingError, "JSON cannot hold"),
        (lambda context: context.dataloader("train", batch_size=5, data=""), None, ""),
        (lambda context: context.report({"loss": "low"}, step=1), TrainingError, "`loss` of step 1 is 'low'"),
        (lambda context: context.save(1, {"model": object()}), CheckpointError, r"state\.model is a object"),
        (
            lambda context: [context.dataloader("train", batch_size=5) for _ in range(2)],
            CursorError,
            "two resuming loaders of split 'train'",
        ),
    ],
    ids=["result", "data", "figure", "state", "loaders"],
)
def test_a_wrong_call_is_explained(options, function, error, message):
    if error is None:
        error, message, options = TrainingError, "the run has no `data`", {**options, "data": ""}
    with pytest.raises(error, match=message):
        launch(function, **options)


@pytest.mark.nightly  # beside a batch of a configuration in `test_config.py`
def test_a_batch_that_does_not_divide_over_the_ranks_is_refused(options):
    with pytest.raises(TrainingError, match=r"WorldMismatch: `batch_size` 5 cannot be divided over 2 ranks"):
        launch(_five_each, launcher="processes", num_processes=2, **options)
    assert launch(_five_each, **options) == 10


def _five_each(context):
    return len(context.dataloader("train", batch_size=5))


@pytest.mark.nightly  # beside `test_an_outage_of_a_store_is_noted...` in `test_failures.py`
def test_an_outage_of_a_store_on_one_rank_is_said_to_pass(options):
    with pytest.raises(TrainingError, match="no answer for 120 s") as caught:
        launch(_without_store, launcher="processes", num_processes=2, **options)
    assert (caught.value.facts["rank"], is_transient(caught.value)) == (1, True)


def _without_store(context):
    if context.rank == 1:
        raise StoreTimeout("no answer for 120 s")
    context.should_stop()  # waits for all


@pytest.mark.nightly  # beside `test_a_rank_that_only_lost_another...` in `test_failures.py`
def test_the_rank_that_others_lost_is_named_although_it_ends_after_them(options):
    with pytest.raises(TrainingError, match="label 9") as caught:
        launch(_leave, launcher="processes", num_processes=2, **options)
    assert caught.value.facts["rank"] == 1


def _leave(context):
    if context.rank == 1:
        dist.destroy_process_group()
        time.sleep(2)
        raise ValueError("label 9")
    context.should_stop()  # waits for all


def test_an_unknown_option_is_refused_by_name(options):
    with pytest.raises(SchemaError, match=r"unknown fields \['lancher'\]"):
        launch(learn, lancher="processes", **options)


def test_a_rank_cannot_start_more_ranks(options, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WorldMismatch, match="use launcher='inline' under torchrun"):
        launch(learn, launcher="processes", num_processes=2, **options)


def test_other_data_under_the_same_run_are_refused(options, squares):
    launch(_save_one, **options)
    with pytest.raises(CursorError, match="this run is pinned to"):
        launch(_save_one, **{**options, "digest": "0" * 64, "run_dir": options["run_dir"] + "-pinned"})


def test_data_at_another_address_are_refused_and_another_spelling_of_a_path_is_the_same(options, squares, monkeypatch):
    monkeypatch.chdir(Path(squares).parent)
    launch(_save_one, **{**options, "data": Path(squares).name})
    launch(_cursor, **options)
    (moved := Path(options["run_dir"]).parent / "moved").symlink_to(squares)
    with pytest.raises(CursorError, match="Give the same address, or another `run_dir`"):
        launch(_cursor, **{**options, "data": str(moved)})


def _cursor(context):
    assert context.epoch(context.dataloader("train", batch_size=5)) == 0
    assert context.latest() is not None


def _save_one(context):
    context.dataloader("train", batch_size=5)
    context.save(1, None)
