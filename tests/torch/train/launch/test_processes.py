"""Training in child processes: it survives kills and changes of the number of processes, and leaves no processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from smalti.errors import TrainingError, WorldMismatch
from smalti.torch.train import TrainConfig, read_sample_order, train
from smalti.torch.train.run.events import read_lines
from smalti.torch.tuning.space import with_params

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

STEPS_PER_EPOCH = 7  # 50 samples in batches of 8
RUN = """
import json, sys
from smalti.torch.train import TrainConfig, train
if __name__ == "__main__":
    train(TrainConfig.from_json(json.loads(sys.argv[1])))
"""


def start(config: TrainConfig) -> "subprocess.Popen[bytes]":
    """Start a process that trains."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, json.dumps(config.to_json())],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_until(check, seconds: float = 280.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def newest_step(config: TrainConfig) -> int:
    """Return the newest step in the ledger of any life, counted from 1 over all epochs."""
    newest = begun = 0
    for path in (Path(config.run_dir) / "samples").glob("*/rank-00000.jsonl"):
        for line in read_lines(path):
            if "cursor" in line:
                cursor = line["cursor"]
                begun = cursor["epoch"] * STEPS_PER_EPOCH + cursor["sample_in_epoch"] // config.batch_size
            elif "step" in line:
                newest = max(newest, begun + line["step"] + 1)
    return newest


def losses_of(config: TrainConfig) -> dict[int, float]:
    """Return the logged loss by step."""
    events = read_lines(Path(config.run_dir) / "metrics.jsonl")
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def kill_in_mid_epoch(config: TrainConfig, at_step: int) -> None:
    """Start a run, and kill its parent by SIGKILL after `at_step` steps."""
    process = start(config)
    try:
        wait_until(lambda: newest_step(config) >= at_step or process.poll() is not None)
        assert process.poll() is None, "the run ended before it was killed"
    finally:
        process.kill()
        process.wait(timeout=500)


def children_of(pid: int) -> set[int]:
    """Return the processes whose parent is `pid`."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.add(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_two_processes_read_every_sample_once_in_the_order_of_one_and_learn_what_it_learns(
    config, in_processes, tmp_path
):
    """Without batch normalisation and dropout, which see their own rank only, the weights must agree."""
    model, heard = "tests.torch.train.launch.test_inline:linear", []
    alone = replace(config, run_dir=str(tmp_path / "alone"), model=model)
    train(alone)
    result = train(replace(in_processes, model=model), on_event=heard.append)
    assert read_sample_order(in_processes.run_dir) == read_sample_order(alone.run_dir)
    assert result.steps == 14
    assert result.history[-1]["eval_samples"] == 14
    metrics = read_lines(Path(in_processes.run_dir) / "metrics.jsonl")
    assert [event for event in heard if event["event"] != "output"] == metrics
    assert metrics[0]["num_ranks"] == 2
    assert metrics[0]["num_hosts"] == 1
    # The loss of a step is that of its whole batch, whichever rank took which part of it, padding left out.
    assert losses_of(in_processes) == pytest.approx(losses_of(alone), abs=1e-4)
    expected = load_file(str(Path(alone.run_dir) / "model" / "model.safetensors"))
    found = load_file(str(Path(in_processes.run_dir) / "model" / "model.safetensors"))
    assert all(torch.allclose(expected[name], found[name], atol=1e-4) for name in expected)


@pytest.mark.nightly  # beside a run killed on 2 processes in `test_function.py`, and kills in `test_in_store.py`
def test_a_run_killed_twice_on_1_2_and_1_processes_keeps_the_sample_order(config, tmp_path):
    """SIGKILL in mid-epoch, three lives with 1, 2 and 1 processes: the ledger shows the uninterrupted order."""
    slow = replace(config, model="tests.torch.train.tiny_models:slow", epochs=3)
    whole = replace(config, run_dir=str(tmp_path / "whole"), epochs=3)
    train(whole)
    kill_in_mid_epoch(slow, at_step=5)
    kill_in_mid_epoch(replace(slow, launcher="processes", num_processes=2), at_step=11)
    result = train(slow)
    lives = read_lines(Path(slow.run_dir) / "lives.jsonl")
    assert [life["num_ranks"] for life in lives] == [1, 2, 1]
    assert result.resumed_from["step"] >= 9
    assert result.steps == 21
    assert read_sample_order(slow.run_dir) == read_sample_order(whole.run_dir)


@pytest.mark.nightly  # beside `test_i5_after_a_killed_rank...` in `test_restarts.py`
def test_a_killed_rank_ends_the_run_with_its_name_and_the_next_run_resumes(in_processes):
    doomed = replace(in_processes, model="tests.torch.train.tiny_models:killed_on_rank_1")
    with pytest.raises(TrainingError, match="rank 1 of 2 was ended by SIGKILL") as caught:
        train(doomed)
    assert (caught.value.rank, caught.value.exit_code) == (1, -signal.SIGKILL)
    Path(doomed.run_dir + ".calm").touch()
    result = train(doomed)
    assert result.resumed_from["step"] in {3, 6}  # the kill may have come while that of step 6 was being written
    assert sorted(read_sample_order(doomed.run_dir)[0]) == list(range(50))


@pytest.mark.nightly  # the next test has the same error
def test_a_rank_that_exits_with_success_before_the_end_is_an_error_with_its_name(in_processes):
    leaving = replace(in_processes, model="tests.torch.train.tiny_models:leaves_on_rank_1")
    with pytest.raises(TrainingError, match=r"rank 1 of 2 ended with exit code 0 .* no result") as caught:
        train(leaving)
    assert (caught.value.rank, caught.value.exit_code) == (1, 0)


def test_the_result_of_an_earlier_life_is_not_that_of_a_rank_that_exits_with_success(in_processes):
    leaving = replace(in_processes, model="tests.torch.train.tiny_models:leaves", num_processes=1)
    calm = Path(leaving.run_dir + ".calm")
    calm.touch()
    train(replace(leaving, launcher="inline", epochs=1))
    calm.unlink()
    with pytest.raises(TrainingError, match=r"rank 0 of 1 ended with exit code 0 .* no result"):
        train(leaving)


@pytest.mark.nightly  # beside `test_an_error_of_the_function_is_in_the_error`
def test_an_error_of_the_model_is_in_the_error(in_processes):
    with pytest.raises(TrainingError, match="the model's own fault 4711") as caught:
        train(replace(in_processes, model="tests.torch.train.tiny_models:broken"))
    assert caught.value.exit_code == 1


@pytest.mark.nightly  # beside `test_an_error_of_the_function_is_in_the_error`
def test_an_error_of_the_data_is_in_the_error(in_processes):
    with pytest.raises(TrainingError, match="`image_column` is 'picture'"):
        train(with_params(in_processes, {"task_options.image_column": "picture"}))


@pytest.mark.nightly  # beside `test_when_the_parent_is_killed_its_ranks_end_and_save`
def test_when_the_callback_raises_the_ranks_save_and_end(in_processes):
    class CancelledError(BaseException):
        """Raise as Dagster does for an interrupt."""

    seen, others = set(), children_of(os.getpid())  # a JVM of other tests, for one

    def cancel(event):
        seen.update(children_of(os.getpid()) - others)
        if event["event"] == "step" and event["step"] >= 2:
            raise CancelledError

    with pytest.raises(CancelledError):
        train(replace(in_processes, model="tests.torch.train.tiny_models:slow"), on_event=cancel)
    assert len(seen) >= 2
    assert not any(is_alive(pid) for pid in seen)
    checkpoints = [path.name for path in (Path(in_processes.run_dir) / "checkpoints").iterdir()]
    assert max(checkpoints) >= "step-00000002"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_when_the_parent_is_killed_its_ranks_end_and_save(in_processes):
    slow = replace(in_processes, model="tests.torch.train.tiny_models:slow", epochs=50, checkpoint_every=1000)
    process = start(slow)
    try:
        wait_until(lambda: newest_step(slow) >= 2)
        ranks = children_of(process.pid)
        assert len(ranks) == 2
    finally:
        process.kill()
        process.wait(timeout=500)
    wait_until(lambda: not any(is_alive(pid) for pid in ranks))
    assert list((Path(slow.run_dir) / "checkpoints").glob("step-*"))


@pytest.mark.nightly  # beside `test_a_stopped_run...` in `test_function.py`, and the test above
def test_a_terminated_rank_stops_all_of_them_with_a_checkpoint(in_processes):
    slow = replace(in_processes, model="tests.torch.train.tiny_models:slow", checkpoint_every=1000)
    others = children_of(os.getpid())

    def terminate(event):
        if event["event"] == "step" and event["step"] == 2:
            os.kill(min(children_of(os.getpid()) - others), signal.SIGTERM)

    with pytest.raises(TrainingError, match="stopped by SIGTERM after step") as caught:
        train(slow, on_event=terminate)
    assert caught.value.exit_code == 143
    assert train(replace(slow, launcher="inline", num_processes=1, epochs=1)).resumed_from is not None


def test_a_rank_of_torchrun_does_not_start_more_processes(in_processes, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WorldMismatch, match="rank 1 of 2 already"):
        train(in_processes)
