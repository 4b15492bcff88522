"""`smalti doctor` and `smalti benchmark`."""

import json

import pytest

from smalti.cli import main
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set", 40)


def test_doctor_reports_each_check_and_succeeds_without_a_fault(root, tmp_path, capsys):
    assert main(["doctor", str(root), "--local", str(tmp_path / "cache"), "--write"]) == 0
    lines = capsys.readouterr().out.splitlines()
    checks = {line[9:].split("  ")[0].strip(): line.split()[0] for line in lines if line[:1].strip()}
    assert checks["data set"] == checks["write"] == checks["cache locks"] == "ok"
    assert lines[-1].endswith(" s")
    assert not (tmp_path / "cache").exists()


def test_doctor_names_a_fault_and_what_to_do_and_has_a_status_of_its_own(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["doctor", "s4://bucket/set", "--local", str(tmp_path / "file" / "cache"), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    faults = {each["check"]: each["to_do"] for each in found["findings"] if each["state"] == "fault"}
    assert set(faults) == {"address", "cache locks"}
    assert all(faults.values())
    assert found["counts"]["fault"] == 2


def test_benchmark_prints_a_row_for_each_kind_of_reading(root, tmp_path, capsys):
    choice = ["--seconds", "0.6", "--threads", "1,2", "--local", str(tmp_path)]
    assert main(["benchmark", str(root), *choice]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("version 1: 40 samples in ")
    assert lines[-7].split()[:3] == ["threads", "reading", "bytes/s"]
    kinds = [[number, work] for number in ("1", "2") for work in ("link", "cold", "warm")]
    assert [line.split()[:2] for line in lines[-6:]] == kinds


def test_benchmark_refuses_what_are_no_numbers_of_threads(root, capsys):
    assert main(["benchmark", str(root), "--threads", "1,none"]) == 2
    assert "1,none" in capsys.readouterr().err
