"""The reported rank is the first that failed for a reason of its own, or the one that left no record."""

import json

import pytest

from smalti.errors import SchemaError, StoreTimeout, TrainingError
from smalti.torch.train.launchers.spark import failures_recorded, read_failure, remove_failures

pytestmark = pytest.mark.torch


def fail(monkeypatch, run_dir, rank: int, error: Exception) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(type(error)), failures_recorded(run_dir, "a"):
        raise error


def test_the_first_own_failure_is_reported_with_its_traceback(tmp_path, monkeypatch):
    fail(monkeypatch, tmp_path, 1, SchemaError("label 9"))
    fail(monkeypatch, tmp_path, 0, ValueError("later"))
    failure = read_failure(tmp_path, 3, "a")
    assert (failure["rank"], failure["reason"]) == (1, "SchemaError: label 9")
    assert "test_failures.py" in failure["trace"]


def test_a_rank_that_only_lost_another_is_not_reported(tmp_path, monkeypatch):
    fail(monkeypatch, tmp_path, 0, TrainingError("rank 0 of 3 waited ..., and one is gone or late"))
    fail(monkeypatch, tmp_path, 2, SchemaError("label 9"))
    assert read_failure(tmp_path, 3, "a")["rank"] == 2


def test_an_outage_of_a_store_is_noted_and_other_faults_are_none(tmp_path, monkeypatch):
    fail(monkeypatch, tmp_path, 1, StoreTimeout("no answer for 120 s"))
    assert read_failure(tmp_path, 3, "a")["is_transient"]
    fail(monkeypatch, tmp_path, 1, SchemaError("label 9"))
    assert not read_failure(tmp_path, 3, "a")["is_transient"]


def test_a_rank_without_a_record_was_killed(tmp_path, monkeypatch):
    fail(monkeypatch, tmp_path, 0, RuntimeError("Connection closed by peer [127.0.0.1]:5"))
    fail(monkeypatch, tmp_path, 2, RuntimeError("Connection reset by peer"))
    failure = read_failure(tmp_path, 3, "a")
    assert (failure["rank"], failure["trace"]) == (1, "")
    assert "killed" in failure["reason"]


def test_damaged_records_are_ignored(tmp_path):
    path = tmp_path / "failures" / "a" / "rank-00000.json"
    path.parent.mkdir(parents=True)
    assert read_failure(tmp_path, 2, "a") is None
    path.write_text(json.dumps({"rank": 0})[:-3])
    assert read_failure(tmp_path, 2, "a") is None
    path.write_text(json.dumps({"rank": 0}))
    assert read_failure(tmp_path, 2, "a") is None
    whole = {"rank": 0, "time": "now", "reason": "r", "trace": "t", "kind": "own"}
    path.write_text(json.dumps(whole))
    assert read_failure(tmp_path, 2, "a") is None


def test_a_full_disk_does_not_hide_the_failure(tmp_path):
    (tmp_path / "run").write_text("no folder can be made here")
    with pytest.raises(SchemaError, match="label 9"), failures_recorded(tmp_path / "run", "a"):
        raise SchemaError("label 9")


def test_old_failures_are_removed(tmp_path, monkeypatch):
    fail(monkeypatch, tmp_path, 1, ValueError("old"))
    remove_failures(tmp_path)
    assert read_failure(tmp_path, 3, "a") is None


def test_a_late_record_of_an_earlier_attempt_replaces_none_of_a_newer_one(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="new"), failures_recorded(tmp_path, "second"):
        raise ValueError("new")
    with pytest.raises(ValueError, match="late"), failures_recorded(tmp_path, "first"):
        raise ValueError("late")
    assert read_failure(tmp_path, 3, "second")["reason"] == "ValueError: new"
    assert read_failure(tmp_path, 3, "third") is None
    assert read_failure(tmp_path, 3, "first")["reason"] == "ValueError: late"
