"""The check accepts a run that took every sample once, over any lives, and names the errors of other runs."""

from dataclasses import replace

import numpy as np
import pytest

from smalti.cursor import Cursor
from smalti.errors import StoreNotFound
from smalti.ledger import LedgerWriter, PassStart, check_ledger
from smalti.order import Division, plan_epoch
from smalti.world import World

SIZES = [5, 6, 4, 7]
CURSOR = Cursor(
    epoch=0, samples=0, seed=7, canonical_nodes=2, initial_hosts=1, digest="d1", split=None, epoch_size=22,
    shuffle=True, block_size=4,
)  # fmt: skip


def plan_of(cursor):
    return plan_epoch(
        SIZES,
        seed=cursor.seed,
        epoch=cursor.epoch,
        canonical_nodes=cursor.canonical_nodes,
        shuffle_block_size=cursor.block_size,
        shuffle=cursor.shuffle,
    )


def worlds(hosts, ranks_on_host):
    number = hosts * ranks_on_host
    return [World(r, number, r // ranks_on_host, hosts, r % ranks_on_host, ranks_on_host) for r in range(number)]


def write_life(folder, life, passes, *, hosts=2, ranks=1, batch=2, tail="pad", last_steps=None, change=None, skip=()):
    """Write one life: `passes` are (epoch, samples before, steps or None for all); `change` alters a rank's records."""
    for world in worlds(hosts, ranks):
        if world.rank in skip:
            continue
        with LedgerWriter(folder, life=life, world=world) as writer:
            for number, (epoch, samples, steps) in enumerate(passes):
                cursor = replace(CURSOR, epoch=epoch, samples=samples)
                writer.begin_pass(PassStart(cursor, batch, tail))
                division = Division(22, samples, batch, world, tail)
                is_last = number == len(passes) - 1
                stop = last_steps[world.rank] if is_last and last_steps else steps
                for step in division.steps(0, division.num_steps if stop is None else stop):
                    positions, ids = step.positions, plan_of(cursor).ids_at(step.lookup)
                    if change is not None:
                        positions, ids = change(world.rank, epoch, step.step, positions.copy(), ids.copy())
                    writer.record(step.step, epoch, positions, ids)
                if stop is None:
                    writer.end_pass()


def messages(report, kind):
    return [problem.message for problem in report.problems if problem.kind == kind]


def test_a_complete_run_is_proven_and_its_padding_counted(tmp_path):
    write_life(tmp_path, 1, [(0, 0, None), (1, 0, None)])
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    # 22 samples in steps of 4: 6 steps, of which the last is filled with 2.
    assert [(e.epoch, e.expected, e.taken, e.repeats, e.is_finished) for e in report.epochs] == [
        (0, 22, 22, 2, True),
        (1, 22, 22, 2, True),
    ]
    assert report.compared == 44
    assert report.superseded == report.in_flight == 0


@pytest.mark.parametrize(("tail", "taken", "repeats"), [("pad", 22, 2), ("short", 22, 0), ("drop", 20, 0)])
def test_the_check_follows_every_tail_option(tmp_path, tail, taken, repeats):
    write_life(tmp_path, 1, [(0, 0, None)], tail=tail)
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert (report.epochs[0].taken, report.epochs[0].repeats) == (taken, repeats)
    assert any("last 2 samples are left out" in note for note in report.notes) == (tail == "drop")


def test_steps_beyond_the_cursor_of_the_next_life_are_superseded_on_any_world(tmp_path):
    """Life 1 takes 4 steps of 4 and saves after 2; life 2 has three ranks and steps of 3, and dies after 2, unsaved."""
    write_life(tmp_path, 1, [(0, 0, 4)])
    write_life(tmp_path, 2, [(0, 8, 2)], hosts=1, ranks=3, batch=1)
    write_life(tmp_path, 3, [(0, 8, None), (1, 0, 3)], hosts=4, batch=1)
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert report.superseded == 8 + 6
    assert [life["num_ranks"] for life in report.lives] == [2, 3, 4]
    assert [(e.taken, e.expected, e.is_finished) for e in report.epochs] == [(22, 22, True), (12, 12, False)]


def test_repeats_of_a_last_step_that_was_taken_again_are_counted_once(tmp_path):
    write_life(tmp_path, 1, [(0, 0, None)])
    write_life(tmp_path, 2, [(0, 20, None)])
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert (report.epochs[0].repeats, report.superseded) == (2, 2)


def test_a_step_that_only_some_ranks_began_counts_as_in_flight(tmp_path):
    write_life(tmp_path, 1, [(0, 0, None)], last_steps=[3, 4])
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert report.in_flight == 2
    assert (report.epochs[0].taken, report.epochs[0].is_finished) == (12, False)


def test_an_epoch_that_ended_has_no_steps_in_flight(tmp_path):
    """Rank 1 lost its last line; rank 0 says that the epoch ended."""
    write_life(tmp_path, 1, [(0, 0, None)], tail="short")
    file = tmp_path / "life-00001" / "rank-00001.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    report = check_ledger(tmp_path, plan_of)
    # The last step takes positions 20 and 21, on hosts 0 and 1.
    assert messages(report, "gap") == ["position 21 of epoch 0: never taken; due in life 1 by rank 1."]
    assert report.counts["gap"] == 1


def test_a_duplicate_is_reported_with_both_ranks_that_took_it(tmp_path):
    def change(rank, epoch, step, positions, ids):
        if (rank, step) == (1, 2):  # positions 9 and 11 become 9 and 4, which rank 0 took at step 1
            positions[1], ids[1] = 4, plan_of(CURSOR).ids_at(np.array([4]))[0]
        return positions, ids

    write_life(tmp_path, 1, [(0, 0, None)], change=change)
    report = check_ledger(tmp_path, plan_of)
    sample = int(plan_of(CURSOR).sample_ids(4, 5)[0])
    assert messages(report, "double") == [
        f"position 4 of epoch 0 was taken 2 times: as sample {sample} by rank 0 at step 1 in life 1, "
        f"sample {sample} by rank 1 at step 2 in life 1."
    ]
    assert messages(report, "gap") == ["position 11 of epoch 0: never taken; due in life 1 by rank 1."]
    assert report.counts == {"double": 1, "gap": 1}


def test_a_wrong_sample_is_found_by_comparison_with_the_plan(tmp_path):
    def change(rank, epoch, step, positions, ids):
        if (rank, epoch, step) == (0, 1, 3):
            ids[0] += 1 if ids[0] < 21 else -1
        return positions, ids

    write_life(tmp_path, 1, [(0, 0, None), (1, 0, None)], change=change)
    assert check_ledger(tmp_path).ok
    report = check_ledger(tmp_path, plan_of)
    assert report.counts == {"wrong_id": 1}
    assert report.problems[0].message.startswith("position 12 of epoch 1: taken as sample ")
    assert {"epoch": 1, "rank": 0, "life": 1, "step": 3}.items() <= report.problems[0].facts.items()


def test_a_cursor_that_skips_samples_is_a_gap(tmp_path):
    write_life(tmp_path, 1, [(0, 0, 2)])
    write_life(tmp_path, 2, [(0, 12, None)])
    report = check_ledger(tmp_path, plan_of)
    assert messages(report, "gap") == ["positions 8 to 11 of epoch 0: never taken; due in life 1, the first by rank 0."]
    assert report.counts["gap"] == 4


def test_the_rest_of_an_unfinished_epoch_is_a_gap(tmp_path):
    write_life(tmp_path, 1, [(0, 0, 5), (1, 0, None)])
    assert check_ledger(tmp_path).counts["gap"] == 2


def test_epochs_that_were_never_begun_are_a_gap(tmp_path):
    write_life(tmp_path, 1, [(0, 0, None), (3, 0, None)])
    report = check_ledger(tmp_path)
    assert messages(report, "gap") == ["epochs 1 to 2 were never begun."]
    assert report.counts["gap"] == 44


def test_a_rank_without_a_file_is_named(tmp_path):
    write_life(tmp_path, 1, [(0, 0, None)], skip=[1])
    report = check_ledger(tmp_path)
    assert messages(report, "missing_file") == ["life 1: 1 of 2 ranks left no file, the first is rank 1."]
    assert report.counts["gap"] == 11


def test_a_run_in_which_a_rank_never_wrote_is_not_all_in_flight(tmp_path):
    write_life(tmp_path, 1, [(0, 0, 3)], skip=[0])
    assert not check_ledger(tmp_path).ok


def test_a_ledger_that_begins_late_has_a_note(tmp_path):
    write_life(tmp_path, 1, [(2, 8, None)])
    report = check_ledger(tmp_path)
    assert report.ok
    assert "the ledger begins at sample 8 of epoch 2; not before." in report.notes
    assert (report.epochs[0].expected, report.epochs[0].taken) == (14, 14)


def test_another_order_in_a_later_life_is_a_contradiction(tmp_path):
    write_life(tmp_path, 1, [(0, 0, None)], hosts=1)
    with LedgerWriter(tmp_path, life=2, world=World()) as writer:
        writer.begin_pass(PassStart(replace(CURSOR, epoch=1, seed=8), 2))
    report = check_ledger(tmp_path)
    assert messages(report, "contradiction") == ["the order changed: life 1 had seed 7, life 2 has 8."]


def test_ranks_that_began_at_different_cursors_are_a_contradiction(tmp_path):
    for world, samples in zip(worlds(2, 1), (0, 4), strict=True):
        with LedgerWriter(tmp_path, life=1, world=world) as writer:
            writer.begin_pass(PassStart(replace(CURSOR, samples=samples), 2))
    assert messages(check_ledger(tmp_path), "contradiction") == [
        "life 1, pass 0: its ranks began at different cursors."
    ]


def test_replicas_must_each_take_every_sample(tmp_path):
    """Four ranks in replica groups of two; rank 3 lacks its last step."""
    for rank in range(4):
        with LedgerWriter(tmp_path, life=1, world=World.flat(rank, 4)) as writer:
            writer.begin_pass(PassStart(CURSOR, 2, "short", replication=2))
            division = Division(22, 0, 2, World.flat(rank // 2, 2), "short")
            for step in division.steps(0, 5 if rank == 3 else 6):
                writer.record(step.step, 0, step.positions, step.lookup)
            writer.end_pass()
    report = check_ledger(tmp_path)
    assert report.counts == {"gap": 1}
    assert messages(report, "gap") == ["position 21 of epoch 0: never taken; due in life 1."]


def test_in_mosaicml_orders_samples_and_not_positions_must_be_taken_once(tmp_path):
    """Positions exceed the epoch's size, with holes at repeats."""
    cursor = replace(CURSOR, epoch_size=3, algorithm="py1e", algorithm_version=1)
    with LedgerWriter(tmp_path, life=1, world=World()) as writer:
        for epoch, ids in enumerate(([2, 0, 2, 1], [2, 0, 0, 2])):
            writer.begin_pass(PassStart(replace(cursor, epoch=epoch), 4))
            writer.record(0, epoch, np.array([0, 1, -1, 3]), np.array(ids))
            writer.end_pass()
    report = check_ledger(tmp_path)
    assert messages(report, "gap") == ["sample 1 of epoch 1: never taken."]
    assert messages(report, "double") == [
        "position 0 of epoch 1 was taken 2 times: as sample 2 by rank 0 at step 0 in life 1, "
        "sample 2 by rank 0 at step 0 in life 1."
    ]


def test_no_ledger_is_an_error(tmp_path):
    with pytest.raises(StoreNotFound, match="no such folder"):
        check_ledger(tmp_path / "nothing")
    with pytest.raises(StoreNotFound, match="holds no ledger"):
        check_ledger(tmp_path)
