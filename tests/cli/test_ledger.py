"""`smalti ledger check`, on the ledger of a run over a real shard set."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smalti.cli import main
from smalti.dataset import open_dataset
from smalti.ledger import LedgerWriter, PassStart, SkippedSample, claim_life
from smalti.order import Division, plan_epoch
from smalti.storage import open_store
from smalti.world import World
from tests.shard_sets import write_set


@pytest.fixture
def data(tmp_path):
    return write_set(tmp_path / "set", 40)


def run(folder, data, *, spoil=None, seed=3, version=2):
    """One epoch of two ranks in steps of 8; `spoil` is the rank and step whose first sample is another one."""
    dataset = open_dataset(str(data), shuffle=True, shuffle_seed=seed)
    cursor = dataset.cursor()
    plan = plan_epoch(
        dataset.stream.shard_sizes,
        seed=seed,
        epoch=0,
        canonical_nodes=cursor.canonical_nodes,
        shuffle_block_size=cursor.block_size,
    )
    cursor = replace(cursor, algorithm_version=version)
    life = claim_life(folder)
    for rank in range(2):
        world = World.flat(rank, 2)
        with LedgerWriter(folder, life=life, world=world) as writer:
            writer.begin_pass(PassStart(replace(cursor, initial_hosts=2), 4))
            for step in Division(40, 0, 4, world).steps(0, 5):
                ids = plan.ids_at(step.lookup)
                if spoil == (rank, step.step):
                    ids[0] = (ids[0] + 1) % 40
                writer.record(step.step, 0, step.positions, ids)
            writer.end_pass()
    dataset.close()
    return str(folder)


def test_a_good_run_is_all_good_also_against_a_later_version_of_its_data(data, tmp_path, capsys):
    ledger = run(tmp_path / "ledger", data)
    write_set(data, 50, exist_ok=True)
    assert main(["ledger", "check", ledger, "--data", str(data)]) == 0
    said = capsys.readouterr()
    assert "epoch 0    40 of 40 samples\n" in said.out
    assert "40 sample ids compared with the plan" in said.out
    assert said.out.endswith("all good\n")
    assert said.err == ""


def test_a_run_in_an_order_that_is_planned_no_more_is_refused_and_not_called_wrong(data, tmp_path, capsys):
    ledger = run(tmp_path / "ledger", data, version=1)
    assert main(["ledger", "check", ledger, "--data", str(data)]) == 1
    said = capsys.readouterr().err
    assert "the run has the order 'window' of version 1, and this Smalti plans 'window' of version 2" in said


def test_a_wrong_sample_fails_and_is_named(data, tmp_path, capsys):
    ledger = run(tmp_path / "ledger", data, spoil=(1, 2))
    assert main(["ledger", "check", ledger]) == 0
    assert "not compared; see --data" in capsys.readouterr().out
    assert main(["ledger", "check", ledger, "--data", str(data)]) == 3
    said = capsys.readouterr()
    assert said.err.startswith("wrong_id: position 17 of epoch 0: taken as sample ")
    assert "by rank 1 at step 2 in life 1; the plan has sample" in said.err
    assert said.out.endswith("not proven: 1 wrong id\n")


def test_json_holds_the_whole_report(data, tmp_path, capsys):
    ledger = run(tmp_path / "ledger", data)
    (tmp_path / "ledger" / "life-00001" / "rank-00001.jsonl").unlink()
    assert main(["ledger", "check", ledger, "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["counts"] == {"missing_file": 1, "gap": 20}
    assert report["epochs"] == [
        {"epoch": 0, "size": 40, "expected": 40, "taken": 20, "repeats": 0, "is_finished": True, "skipped": 0}
    ]


def test_other_data_than_the_runs_are_refused(data, tmp_path, capsys):
    ledger = run(tmp_path / "ledger", data)
    other = write_set(tmp_path / "other", 41)
    assert main(["ledger", "check", ledger, "--data", str(other)]) == 1
    assert "no version of" in capsys.readouterr().err


def test_no_ledger_is_one_line_to_a_person_and_one_with_the_help_page(tmp_path, capsys):
    assert main(["ledger", "check", str(tmp_path)]) == 1
    message, help_line = capsys.readouterr().err.splitlines()
    assert message == f"smalti: {tmp_path} holds no ledger: no life-00001/rank-00000.jsonl or later."
    assert help_line.startswith("Help: https://")


def test_numpy_of_the_plan_does_not_leak_into_json(data, tmp_path, capsys):
    """Positions and ids of problems come from arrays; JSON takes plain numbers only."""
    ledger = run(tmp_path / "ledger", data, spoil=(0, 0))
    assert main(["ledger", "check", ledger, "--data", str(data), "--json"]) == 3
    facts = json.loads(capsys.readouterr().out)["problems"][0]["facts"]
    assert facts == {
        "epoch": 0, "position": 0, "sample_id": facts["sample_id"], "rank": 0, "life": 1, "step": 0,
    }  # fmt: skip


def test_skipped_samples_are_counted_and_named_and_the_run_is_proven(data, tmp_path, capsys):
    dataset = open_dataset(str(data))
    with LedgerWriter(tmp_path / "ledger", life=claim_life(tmp_path / "ledger"), world=World()) as writer:
        writer.begin_pass(PassStart(dataset.cursor(), 40))
        positions, ids = np.arange(40), np.arange(40)
        positions[7], ids[7] = -1, 8
        writer.record(0, 0, positions, ids, [SkippedSample(7, 7, "shard.00000.mds", "ValueError: no picture")])
        writer.end_pass()
    dataset.close()
    assert main(["ledger", "check", str(tmp_path / "ledger"), "--data", str(data)]) == 0
    said = capsys.readouterr().out
    assert "epoch 0    39 of 40 samples, 1 skipped\n" in said
    assert "skipped    sample 7 of epoch 0 (shard.00000.mds): ValueError: no picture\n" in said
    assert said.endswith("all good\n")


def test_a_ledger_in_a_store_is_fetched_and_checked(data, tmp_path, capsys):
    ledger = Path(run(tmp_path / "ledger", data))
    store = open_store("memory://cli-ledger/run/samples")
    for path in ledger.rglob("*.jsonl"):
        store.put(path.relative_to(ledger).as_posix(), path.read_bytes())
    assert main(["ledger", "check", "memory://cli-ledger/run/samples", "--data", str(data)]) == 0
    assert "all good" in capsys.readouterr().out
    assert main(["ledger", "check", "memory://cli-ledger/nothing"]) != 0
    assert "holds no ledger" in capsys.readouterr().err
