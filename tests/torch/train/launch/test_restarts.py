"""A failed run is started again from its newest checkpoint, as often as its budget allows and where that can help."""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from smalti.errors import SchemaError, StoreError, StoreTimeout, TrainingError
from smalti.torch.train import RunConfig, launch, read_sample_order
from smalti.torch.train.launchers.start import Program, run_with_restarts
from smalti.torch.train.run.events import read_lines

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@dataclass
class Starts:
    """A launcher whose starts end as planned: `(step of a new checkpoint or None, facts of the error or None)`."""

    plan: list[tuple[int | None, dict | None]]
    programs: list[Program] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def __call__(self, program, on_event):
        self.programs.append(program)
        step, facts = self.plan[min(len(self.programs), len(self.plan)) - 1]
        if step is not None:
            Path(program.config.run_dir, "checkpoints", f"step-{step:08d}").mkdir(parents=True)
        if facts is None:
            return {"value": len(self.programs)}
        raise TrainingError(f"rank 1 of {program.config.num_processes} failed", rank=1, **facts)

    @property
    def sizes(self) -> list[int]:
        return [program.config.num_processes for program in self.programs]


KILLED = {"kind": "killed", "output": "(it wrote nothing)"}
OWN = {"kind": "own", "output": "Traceback\nValueError: label 9 at 0x7f3a"}


@pytest.fixture
def run(tmp_path):
    """Run planned starts with a budget, and return them."""

    def run(plan, **options):
        starts = Starts(plan)
        config = RunConfig(
            run_dir=str(tmp_path / "run"), launcher="processes", **{"num_processes": 4, "max_restarts": 5, **options}
        )
        with contextlib.suppress(TrainingError):
            run_with_restarts(starts, Program(config), None, pause=starts.pauses.append)
        return starts

    return run


def test_i10_a_budget_ends_and_the_error_says_how_often_it_was_restarted(tmp_path):
    config = RunConfig(run_dir=str(tmp_path / "run"), launcher="processes", max_restarts=2)
    starts = Starts([(10, KILLED), (20, KILLED), (30, KILLED)])
    with pytest.raises(
        TrainingError, match=r"rank 1 of 1 failed\nAll 2 restarts \(`max_restarts`\) were used"
    ) as caught:
        run_with_restarts(starts, Program(config), None)
    assert len(starts.programs) == 3
    assert caught.value.rank == 1
    assert starts.programs[0].restart is None
    assert starts.programs[2].restart == {
        "restart": 2, "max_restarts": 2, "num_processes": 1, "rank": 1, "failure": "killed",
        "cause": "rank 1 of 1 failed", "newest": str(tmp_path / "run" / "checkpoints" / "step-00000020"),
    }  # fmt: skip


def test_an_outage_that_the_starting_process_meets_uses_up_a_restart_and_pauses(tmp_path, monkeypatch):
    looks = iter([StoreTimeout("no answer"), "step-10", StoreTimeout("no answer"), "step-10"])

    def look(config):
        found = next(looks)
        if isinstance(found, StoreTimeout):
            raise found
        return found

    monkeypatch.setattr("smalti.torch.train.launchers.start.newest_checkpoint", look)
    ends, causes, pauses = [StoreTimeout("no answer for 120 s")] * 2, [], []

    def start(program, on_event):
        causes.append(program.restart and program.restart["failure"])
        if ends:
            raise ends.pop()
        return {"value": 7}

    config = RunConfig(run_dir=str(tmp_path / "run"), launcher="processes", max_restarts=2)
    assert run_with_restarts(start, Program(config), None, pause=pauses.append) == {"value": 7}
    assert causes == [None, "outage", "outage"]
    assert pauses == [1.0]  # after the second, when the newest checkpoint was not known and none was seen


def test_a_fault_of_the_store_that_does_not_pass_is_raised_as_it_is(tmp_path):
    def start(program, on_event):
        raise StoreError("access denied")

    config = RunConfig(run_dir=str(tmp_path / "run"), launcher="processes", max_restarts=2)
    with pytest.raises(StoreError, match="access denied"):
        run_with_restarts(start, Program(config), None)


def test_i10_a_failure_of_the_launcher_that_comes_twice_without_a_rank_does_not_use_up_the_budget(tmp_path):
    starts = []

    def start(program, on_event):
        starts.append(program)
        raise TrainingError("could not be run", rank=None, kind="lost", output="PicklingError: 'x' at 0x1")

    config = RunConfig(run_dir=str(tmp_path / "run"), launcher="processes", max_restarts=5)
    with pytest.raises(TrainingError, match="4 restarts were not used"):
        run_with_restarts(start, Program(config), None, pause=lambda seconds: None)
    assert len(starts) == 2


def test_without_a_budget_nothing_is_started_again(run):
    assert run([(None, KILLED)], max_restarts=0).sizes == [4]


def test_i10_an_exception_that_comes_twice_without_progress_does_not_use_up_the_budget(tmp_path):
    config = RunConfig(run_dir=str(tmp_path / "run"), launcher="processes", max_restarts=9)
    again = {**OWN, "output": "ValueError: label 9 at 0x5531"}
    starts = Starts([(10, OWN), (20, again), (None, OWN)])
    with pytest.raises(TrainingError, match=r"same way after restart 2, .* does not help; 7 restarts were not used"):
        run_with_restarts(starts, Program(config), None)
    assert len(starts.programs) == 3


def test_another_exception_without_progress_is_tried_once_more(run):
    assert len(run([(None, OWN), (None, {**OWN, "output": "KeyError: 'b'"}), (None, None)]).programs) == 3


@pytest.mark.parametrize("kind", ["stopped", "superseded"])
def test_a_stopped_or_superseded_run_is_not_started_again(run, kind):
    assert len(run([(10, {"kind": kind})]).programs) == 1


def test_failures_without_progress_are_followed_by_a_growing_pause(run):
    starts = run([(None, KILLED), (None, KILLED), (None, KILLED), (5, KILLED), (None, None)])
    assert starts.pauses == [1.0, 2.0, 4.0]


def test_an_interrupt_is_not_a_failure_to_restart_after(tmp_path):
    def interrupted(program, on_event):
        raise KeyboardInterrupt

    config = RunConfig(run_dir=str(tmp_path / "run"), launcher="processes", max_restarts=2)
    with pytest.raises(KeyboardInterrupt):
        run_with_restarts(interrupted, Program(config), None)


def test_after_two_failures_without_progress_fewer_processes_go_on_that_can_share_the_batch(run):
    """Of 4 processes those that share every batch of 4 processes are 4, 2 and 1."""
    assert run([(None, KILLED), (None, KILLED), (None, None)], min_processes=2).sizes == [4, 4, 2]


def test_with_progress_and_without_min_processes_the_number_of_processes_stays(run):
    assert run([(1, KILLED), (2, KILLED), (3, KILLED), (4, None)], min_processes=1).sizes == [4] * 4
    assert run([(None, KILLED), (None, KILLED), (None, None)]).sizes == [4] * 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_restarts": 1}, "max_restarts"),
        ({"max_restarts": -1, "launcher": "processes"}, "max_restarts"),
        ({"min_processes": 3, "num_processes": 2, "launcher": "processes"}, "min_processes"),
        ({"keep_best": "loss"}, "keep_best"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(options, field):
    with pytest.raises(SchemaError, match=f"`{field}` must be"):
        RunConfig(run_dir="/runs/1", **options)


# ------------------------------------------------------------ with processes


def count(context):
    """Add up the samples' numbers; fail at step 3 of a rank in the ways that `faults` says, one after the other."""
    loader = context.dataloader("train", batch_size=10, shuffle_seed=3)
    checkpoint = context.latest()
    step, total = (0, torch.zeros(1)) if checkpoint is None else (checkpoint.step, checkpoint.state["total"])
    while context.epoch(loader) < 2:
        for batch in loader:
            part = batch["label"].sum().float().reshape(1)
            if context.world.num_ranks > 1:
                torch.distributed.all_reduce(part)
            total, step = total + part, step + 1
            if step == 3 and context.rank == context.world.num_ranks - 1:
                _fail(Path(context.config["faults"]), context)
            if context.should_stop():
                context.save(step, {"total": total}, wait=True)
                return None
            if step % 2 == 0:
                context.save(step, {"total": total}, wait=True)
    return [step, int(total), context.world.num_ranks]


def _fail(path, context):
    """Do the first of the faults that are left."""
    faults = json.loads(path.read_text())
    path.write_text(json.dumps(faults[1:]))
    fault = faults[0] if faults else None
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(600)
    if fault == "stop":
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(3)  # until it has passed the signal to the ranks, which have few steps left
    if fault == "notice":
        context.request_stop()
    if fault == "executor":
        os.kill(_executor_of(os.getpid()), signal.SIGKILL)
        time.sleep(600)


def _executor_of(pid: int) -> int:
    """Return the JVM of the Spark executor that a process descends from."""
    while b"ExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


TOTAL = 98
"""Of two epochs of 50 samples with the labels 0, 1, 2, 0, ...: 17 ones and 16 twos are 49."""


@pytest.fixture
def options(squares, tmp_path):
    (tmp_path / "run").mkdir()
    return {
        "data": str(squares), "run_dir": str(tmp_path / "run"), "log_samples": True, "timeout_seconds": 280.0,
        "launcher": "processes",
    }  # fmt: skip


def with_faults(options, *faults) -> dict:
    path = Path(options["run_dir"] + ".faults")
    path.write_text(json.dumps(faults))
    return {"faults": str(path)}


def check_samples(options) -> None:
    """Each sample was read once per epoch, over all lives."""
    order = read_sample_order(options["run_dir"])
    assert [sorted(epoch) for epoch in order.values()] == [list(range(50))] * 2


def the_restart_after(fault, options) -> dict:
    """Return the event of the only restart of a run of two ranks, which ends with exact data."""
    heard = []
    result = launch(
        count, with_faults(options, fault), on_event=heard.append, num_processes=2, max_restarts=1, **options
    )
    assert result == [10, TOTAL, 2]
    check_samples(options)
    (restart,) = (event for event in heard if event["event"] == "restart")
    return restart


def test_i5_after_a_killed_rank_training_goes_on_with_exact_data_and_says_so(options):
    restart = the_restart_after("kill", options)
    assert restart["cause"].startswith("rank 1 of 2 was ended by SIGKILL")
    assert (restart["restart"], restart["rank"], Path(restart["newest"]).name) == (1, 1, "step-00000002-00000")
    starts = [event for event in read_lines(Path(options["run_dir"]) / "metrics.jsonl") if event["event"] == "start"]
    assert [event["step"] for event in starts] == [0, 2]


@pytest.mark.nightly
def test_i5_ranks_that_are_killed_again_and_again_leave_fewer_that_go_on(options):
    faults = with_faults(options, "kill", "kill", "kill")
    result = launch(count, faults, num_processes=2, min_processes=1, max_restarts=3, **options)
    assert result == [10, TOTAL, 1]
    check_samples(options)


@pytest.mark.nightly
def test_i5_a_hung_rank_is_named_ended_and_started_again(options):
    restart = the_restart_after("hang", {**options, "timeout_seconds": 60.0})
    assert restart["cause"].startswith("rank 1 of 2 did not answer the others for `timeout_seconds`")


def test_g12_a_notice_of_preemption_leaves_a_checkpoint(options):
    faults, here = with_faults(options, "notice"), {**options, "launcher": "inline"}
    with pytest.raises(TrainingError, match=r"the newest checkpoint is .*step-00000003") as caught:
        launch(count, faults, **here)
    assert caught.value.stopped
    assert launch(count, faults, **here) == [10, TOTAL, 1]
    check_samples(options)


@pytest.mark.nightly
def test_g12_sigusr1_to_the_process_that_started_the_ranks_stops_them_and_restarts_nothing(options):
    faults = with_faults(options, "stop")
    with pytest.raises(TrainingError, match=r"the newest checkpoint is .*step-0000000") as caught:
        launch(count, faults, num_processes=2, max_restarts=3, **options)
    assert caught.value.kind == "stopped"
    assert launch(count, faults, **{**options, "launcher": "inline"}) == [10, TOTAL, 1]
    check_samples(options)
    assert len(read_lines(Path(options["run_dir"]) / "lives.jsonl")) == 2
