"""Skipped samples in a ledger: every planned position was read or skipped, once, over all lives of a run."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from smalti.errors import TrainingError
from smalti.ledger import LedgerWriter, PassStart, SkippedSample, check_ledger, read_sample_order
from smalti.order import Division
from smalti.world import World
from tests.ledger.test_chains import CURSOR, plan_of
from tests.seeds import seed_of, sized

SIZE = 57


def record(writer, number, cursor, step, bad):
    """Record a step as a loader does: the samples `bad` are skipped, and repeats of sample 0 read in their place."""
    ids, positions = plan_of(cursor).ids_at(step.lookup), step.positions.copy()
    fails = np.isin(ids, sorted(bad))
    skipped = [
        SkippedSample(position, sample, "shard.00000.mds", f"ValueError: {sample} is bad")
        for position, sample in zip(positions[fails].tolist(), ids[fails].tolist(), strict=True)
        if position >= 0
    ]
    positions[fails], ids[fails] = -1, 0
    writer.record(number, cursor.epoch, positions, ids, skipped)


def write_life(folder, life, cursor, rng, mode, bad):
    """Write a life on a random world, killed after a random step or at the end of epoch 1; return its newest state."""
    num_ranks, batch, state = rng.randint(1, 4), rng.randint(1, 5), cursor
    worlds = [World.flat(rank, num_ranks) for rank in range(num_ranks)]
    writers = [LedgerWriter(folder, life=life, world=world, mode=mode) for world in worlds]
    left = rng.randint(0, 20)
    while cursor.epoch < 2:
        divisions = [Division(SIZE, cursor.samples, batch, world, "pad") for world in worlds]
        for writer in writers:
            writer.begin_pass(PassStart(cursor, batch))
        for number in range(divisions[0].num_steps):
            late = rng.randrange(num_ranks) if not left else num_ranks  # the rank that did not come so far
            for rank, (writer, division) in enumerate(zip(writers, divisions, strict=True)):
                if rank != late:
                    record(writer, number, cursor, division.steps(number, number + 1)[0], bad)
            if not left:
                return state
            left -= 1
            if rng.random() < 0.4:
                state = cursor.advanced(min(SIZE - cursor.samples, (number + 1) * divisions[0].global_batch))
                for writer in writers:
                    writer.mark()
        for writer in writers:
            writer.end_pass()
        cursor = state = replace(cursor, epoch=cursor.epoch + 1, samples=0)
    return state


def write_run(folder, rng, mode, bad):
    cursor = CURSOR
    for life in range(1, 200):
        chosen = mode if mode != "both" else rng.choice(["steps", "digest"])
        cursor = write_life(folder, life, cursor, rng, chosen, bad)
        if cursor.epoch == 2:
            return
    raise AssertionError("the run did not end")


@pytest.mark.search
@pytest.mark.parametrize("mode", ["steps", "digest", "both"])
@pytest.mark.parametrize("seed", range(sized(20, part=3)))
def test_every_chain_of_lives_proves_what_was_read_and_what_was_skipped(tmp_path, seed, mode):
    rng = random.Random(seed_of(seed))
    bad = set(rng.sample(range(SIZE), rng.choice([0, 1, 7, 40, SIZE])))
    write_run(tmp_path, rng, mode, bad)
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    for epoch in report.epochs:
        assert (epoch.taken, epoch.skipped, epoch.expected) == (SIZE - len(bad), len(bad), SIZE)
        assert 0 <= epoch.repeats < 4 * 5  # fewer than one step of four ranks with batches of five
    assert {each["sample_id"] for each in report.skipped} <= bad
    if mode == "steps":
        read = [plan_of(replace(CURSOR, epoch=epoch)).ids_at(np.arange(SIZE)).tolist() for epoch in (0, 1)]
        assert read_sample_order(tmp_path) == {
            epoch: [sample for sample in ids if sample not in bad] for epoch, ids in enumerate(read)
        }


def one_life(folder, *, mode="steps", bad=frozenset({5, 6})):
    """Write one epoch of one rank in steps of 8; return its file."""
    with LedgerWriter(folder, life=1, world=World(), mode=mode) as writer:
        writer.begin_pass(PassStart(CURSOR, 8))
        division = Division(SIZE, 0, 8, World(), "pad")
        for step in division.steps(0, division.num_steps):
            record(writer, step.step, CURSOR, step, bad)
        writer.end_pass()
    return folder / "life-00001" / "rank-00000.jsonl"


def changed(path, change):
    """Apply `change` to each line with skipped samples; it returns the lines in its place."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join("".join(change(line)) if line.startswith('{"skipped"') else line for line in lines))


def test_a_skipped_sample_is_named_with_shard_and_cause(tmp_path):
    one_life(tmp_path)
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    first = min(report.skipped, key=lambda each: each["sample_id"])
    position = plan_of(CURSOR).ids_at(np.arange(SIZE)).tolist().index(5)
    assert first == {
        "epoch": 0, "position": position, "sample_id": 5, "shard": "shard.00000.mds", "cause": "ValueError: 5 is bad",
        "rank": 0, "life": 1, "step": position // 8,
    }  # fmt: skip
    assert report.to_dict()["epochs"][0]["skipped"] == 2


def test_a_lost_line_of_skipped_samples_is_a_gap(tmp_path):
    changed(one_life(tmp_path), lambda line: [])
    report = check_ledger(tmp_path)
    assert (report.ok, report.counts) == (False, {"gap": 2})
    with pytest.raises(TrainingError, match="lacks 2 of 57 positions"):
        read_sample_order(tmp_path)


def test_a_sample_that_was_skipped_twice_is_double(tmp_path):
    changed(one_life(tmp_path), lambda line: [line, line])
    assert check_ledger(tmp_path).counts == {"double": 2}


def test_a_sample_that_was_read_and_skipped_is_double(tmp_path):
    path = one_life(tmp_path, bad=frozenset())
    with path.open() as file:
        lines = file.readlines()
    lines.insert(2, '{"skipped":[[3,1,"a","b"]],"step":0,"epoch":0}\n')
    path.write_text("".join(lines))
    assert check_ledger(tmp_path).counts == {"double": 1}


@pytest.mark.parametrize("mode", ["steps", "digest"])
def test_a_line_that_names_another_sample_than_was_planned_is_wrong(tmp_path, mode):
    def other(line):
        fields = json.loads(line)
        fields["skipped"][0][1] += 1
        return [json.dumps(fields, separators=(",", ":")) + "\n"]

    changed(one_life(tmp_path, mode=mode, bad=frozenset({5})), other)
    assert check_ledger(tmp_path, plan_of).counts == {"wrong_id": 1}


@pytest.mark.parametrize(
    "line",
    [
        '{"skipped":[[1,2,"a"]],"step":0,"epoch":0}',
        '{"skipped":[[1,true,"a","b"]],"step":0,"epoch":0}',
        '{"skipped":[[-1,2,"a","b"]],"step":0,"epoch":0}',
        '{"skipped":{"1":2},"step":0,"epoch":0}',
        '{"skipped":5,"step":0,"epoch":0}',
        '{"skipped":[],"epoch":0}',
        '{"skipped":[[1,2,"a","b"]],"step":0,"epoch":7}',
        '{"skipped":[[1,2,"a","b"]],"step":-1,"epoch":0}',
        '{"skipped":[[99999999999999999999,2,"a","b"]],"step":0,"epoch":0}',
    ],
)
def test_a_damaged_line_is_named_and_passed_over(tmp_path, line):
    changed(one_life(tmp_path, bad=frozenset({5})), lambda good: [good, line + "\n"])
    report = check_ledger(tmp_path)
    assert report.counts == {"damaged": 1}
    assert "rank-00000.jsonl, line " in report.problems[0].message


def test_a_step_and_what_it_skipped_are_one_write(tmp_path, monkeypatch):
    """A process that is killed between two writes leaves no half of them."""
    import os

    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: writes.append(bytes(data)) or write(descriptor, data))
    one_life(tmp_path, bad=frozenset(range(SIZE)))
    assert sum(data.startswith(b'{"skipped"') for data in writes) == 8
    assert all(b'\n{"step"' in data for data in writes if data.startswith(b'{"skipped"'))
