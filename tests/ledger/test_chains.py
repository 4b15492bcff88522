"""Random runs, killed and resumed on other worlds, are proven; the same runs with one line changed are not."""

import json
import random
from dataclasses import replace

import pytest

from smalti.cursor import Cursor
from smalti.ledger import LedgerWriter, PassStart, check_ledger
from smalti.order import Division, plan_epoch
from smalti.world import World
from tests.seeds import seed_of, sized

SIZES = [9, 14, 3, 20, 11]
CURSOR = Cursor(
    epoch=0, samples=0, seed=5, canonical_nodes=4, initial_hosts=1, digest="d", split=None, epoch_size=57,
    shuffle=True, block_size=8,
)  # fmt: skip
PLANS = [plan_epoch(SIZES, seed=5, epoch=epoch, canonical_nodes=4, shuffle_block_size=8) for epoch in range(3)]


def plan_of(cursor):
    return PLANS[cursor.epoch]


def write_life(folder, life, cursor, rng, mode):
    """Write a life on a random world, killed after a random step or at the run's end; return its newest state."""
    hosts, each, batch, state = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 5), cursor
    worlds = [World(r, hosts * each, r // each, hosts, r % each, each) for r in range(hosts * each)]
    writers = [LedgerWriter(folder, life=life, world=world, mode=mode) for world in worlds]
    left = rng.randint(0, 12)  # steps until the kill
    while cursor.epoch < 2:
        divisions = [Division(57, cursor.samples, batch, world, "pad") for world in worlds]
        for writer in writers:
            writer.begin_pass(PassStart(cursor, batch))
        for number in range(divisions[0].num_steps):
            late = rng.randrange(len(worlds)) if not left else len(worlds)  # the rank that did not come so far
            for rank, (writer, division) in enumerate(zip(writers, divisions, strict=True)):
                if rank != late:
                    step = division.steps(number, number + 1)[0]
                    writer.record(number, cursor.epoch, step.positions, plan_of(cursor).ids_at(step.lookup))
            if not left:
                return state
            left -= 1
            if rng.random() < 0.4:
                state = cursor.advanced(min(57 - cursor.samples, (number + 1) * divisions[0].global_batch))
                for writer in writers:
                    writer.mark()
        for writer in writers:
            writer.end_pass()
        cursor = state = replace(cursor, epoch=cursor.epoch + 1, samples=0)
    return state


def run(folder, rng, mode):
    """Write a run of two epochs over as many lives as it takes; return the number of lives."""
    cursor = CURSOR
    for life in range(1, 200):
        cursor = write_life(folder, life, cursor, rng, mode if mode != "both" else rng.choice(["steps", "digest"]))
        if cursor.epoch == 2:
            return life
    raise AssertionError("the run did not end")


@pytest.mark.search
@pytest.mark.parametrize("mode", ["steps", "digest", "both"])
@pytest.mark.parametrize("seed", range(sized(30, part=3)))
def test_every_chain_of_lives_is_proven(tmp_path, seed, mode):
    lives = run(tmp_path, random.Random(seed_of(seed)), mode)
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert [(epoch.taken, epoch.expected, epoch.is_finished) for epoch in report.epochs] == [(57, 57, True)] * 2
    assert len(report.lives) == lives
    assert report.compared == 2 * 57


@pytest.mark.search
@pytest.mark.parametrize("seed", range(sized(60, part=3)))
def test_a_changed_lost_or_repeated_line_is_found(tmp_path, seed):
    """The changed line is in the last life: none of its steps are superseded."""
    rng = random.Random(seed_of(1000 + seed))
    life = run(tmp_path, rng, "steps")
    files = {file: file.read_bytes().splitlines(keepends=True) for file in sorted(tmp_path.glob(f"life-{life:05d}/*"))}
    steps = [
        (file, at) for file, lines in files.items() for at, line in enumerate(lines) if line.startswith(b'{"step"')
    ]
    file, chosen = rng.choice([(file, at) for file, at in steps if b'"ids":[]' not in files[file][at]])
    lines = files[file]
    step = json.loads(lines[chosen])
    kind = rng.choice(["lost", "again", "other"])
    if kind == "other":
        step["ids"][0] = (step["ids"][0] + 1) % 57
    lines[chosen] = {"lost": b"", "again": lines[chosen] * 2}.get(
        kind, json.dumps(step).encode().replace(b" ", b"") + b"\n"
    )
    file.write_bytes(b"".join(lines))
    found = {"lost": "gap", "again": "double", "other": "wrong_id"}[kind]
    report = check_ledger(tmp_path, plan_of)
    assert report.counts == {found: 1 if kind == "other" else len(step["ids"])}
