"""A ledger of running sums proves the same as one of steps, with one line for each saved state."""

from dataclasses import replace

import numpy as np
import pytest

from smalti.cursor import Cursor
from smalti.errors import CursorError
from smalti.ledger import LedgerWriter, PassStart, check_ledger
from smalti.ledger.records import Sum, sum_of
from smalti.order import Division, plan_epoch
from smalti.world import World

CURSOR = Cursor(
    epoch=0, samples=0, seed=7, canonical_nodes=2, initial_hosts=1, digest="d1", split=None, epoch_size=22,
    shuffle=True, block_size=4,
)  # fmt: skip


def plan_of(cursor):
    return plan_epoch([5, 6, 4, 7], seed=7, epoch=cursor.epoch, canonical_nodes=2, shuffle_block_size=4)


def write_life(folder, life, samples, steps, *, epoch=0, ranks=2, marks=(), tail="pad", swapped=None):
    """Write one life of one pass, with sums after the steps in `marks`; without `steps` it reaches the epoch's end."""
    for rank in range(ranks):
        world = World.flat(rank, ranks)
        with LedgerWriter(folder, life=life, world=world, mode="digest") as writer:
            cursor = replace(CURSOR, epoch=epoch, samples=samples)
            writer.begin_pass(PassStart(cursor, 2, tail))
            division = Division(22, samples, 2, world, tail)
            for step in division.steps(0, division.num_steps if steps is None else steps):
                ids = plan_of(cursor).ids_at(step.lookup)
                if swapped == (rank, step.step):
                    ids = ids[::-1]
                writer.record(step.step, epoch, step.positions, ids)
                if step.step + 1 in marks:
                    writer.mark()
            if steps is None:
                writer.end_pass()
    return writer.path


def test_a_pass_has_one_line_for_each_saved_state_and_one_at_its_end(tmp_path):
    lines = write_life(tmp_path, 1, 0, None, marks=[2]).read_text().splitlines()
    assert [line[:7] for line in lines] == ['{"smalt', '{"pass"', '{"sum":', '{"sum":', '{"end":']


@pytest.mark.parametrize(("tail", "taken", "repeats"), [("pad", 22, 2), ("short", 22, 0), ("drop", 20, 0)])
def test_a_complete_run_is_proven_over_lives_and_worlds(tmp_path, tail, taken, repeats):
    write_life(tmp_path, 1, 0, 4, marks=[1, 2, 4], tail=tail)
    write_life(tmp_path, 2, 8, 3, marks=[], ranks=3, tail=tail)
    write_life(tmp_path, 3, 8, None, marks=[1, 2], tail=tail)
    write_life(tmp_path, 4, 0, 3, marks=[1, 2], epoch=1, ranks=1, tail=tail)
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert [(e.taken, e.expected, e.repeats, e.is_finished) for e in report.epochs] == [
        (taken, taken, repeats, True),
        (4, 4, 0, False),
    ]
    assert report.compared == taken + 4


def test_two_swapped_samples_are_found_by_comparison_with_the_plan(tmp_path):
    write_life(tmp_path, 1, 0, 2, marks=[2], swapped=(1, 1))
    write_life(tmp_path, 2, 8, None)
    assert check_ledger(tmp_path).ok
    report = check_ledger(tmp_path, plan_of)
    assert report.counts == {"sum": 1}
    assert (
        report.problems[0].message == "life 1, pass 0: other samples were taken than positions 0 to 7 of epoch 0 have."
    )


def test_errors_in_superseded_steps_do_not_matter(tmp_path):
    write_life(tmp_path, 1, 0, 4, marks=[2, 4], swapped=(1, 3))
    write_life(tmp_path, 2, 8, None)
    assert check_ledger(tmp_path, plan_of).ok


def test_a_rank_without_a_sum_at_the_step_of_the_resume_is_named(tmp_path):
    file = write_life(tmp_path, 1, 0, 4, marks=[2, 4])
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[3]]))
    write_life(tmp_path, 2, 8, None)
    report = check_ledger(tmp_path, plan_of)
    assert report.problems[0].kind == "unmarked"
    assert "life 1, pass 0: rank 1 wrote no sum after step 2" in report.problems[0].message
    assert report.counts == {"unmarked": 1, "gap": 8}


def test_too_few_samples_are_found_without_a_plan(tmp_path):
    with LedgerWriter(tmp_path, life=1, world=World(), mode="digest") as writer:
        writer.begin_pass(PassStart(CURSOR, 22))
        writer.record(0, 0, np.arange(21), np.arange(21))
        writer.end_pass()
    report = check_ledger(tmp_path)
    assert report.problems[0].message == ("life 1, pass 0: 21 samples were taken of positions 0 to 21 of epoch 0.")


def test_lives_of_one_run_may_differ_in_mode(tmp_path):
    write_life(tmp_path, 1, 0, 4, marks=[2])
    with LedgerWriter(tmp_path, life=2, world=World()) as writer:
        cursor = replace(CURSOR, samples=8)
        writer.begin_pass(PassStart(cursor, 14))
        writer.record(0, 0, np.arange(8, 22), plan_of(cursor).sample_ids(8, 22))
        writer.end_pass()
    report = check_ledger(tmp_path, plan_of)
    assert report.ok, report.problems
    assert (report.epochs[0].taken, report.compared) == (22, 22)


def test_an_absurd_epoch_size_does_not_slow_the_check(tmp_path):
    huge = replace(CURSOR, epoch_size=(1 << 62) - 1)
    with LedgerWriter(tmp_path, life=1, world=World(), mode="digest") as writer:
        writer.begin_pass(PassStart(huge, 1))
        writer.record(0, 0, np.array([0]), np.array([0]))
        writer.end_pass()
    assert check_ledger(tmp_path).counts == {"unmarked": 1, "gap": (1 << 62) - 1}
    with pytest.raises(CursorError, match="the plan has 22: it is the plan of other data"):
        check_ledger(tmp_path, plan_of)


@pytest.mark.parametrize(
    "line", [b'{"sum":"0","steps":1,"samples":1,"repeats":0}\n', b'{"step":0,"epoch":0,"ids":[]}\n']
)
def test_a_damaged_sum_or_a_step_among_sums_is_damage(tmp_path, line):
    file = write_life(tmp_path, 1, 0, 4, marks=[2, 4], ranks=1)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], line, lines[3]]))
    report = check_ledger(tmp_path, plan_of)
    assert report.counts == {"damaged": 1}
    assert report.epochs[0].taken == 4


def test_sums_are_not_for_mosaicml_orders(tmp_path):
    file = write_life(tmp_path, 1, 0, None, ranks=1)
    file.write_bytes(file.read_bytes().replace(b'"window"', b'"py1e"'))
    assert check_ledger(tmp_path).counts == {"sum": 1, "gap": 22}
    with (
        LedgerWriter(tmp_path, life=2, world=World(), mode="digest") as writer,
        pytest.raises(ValueError, match="mode 'digest' is not for MosaicML's order 'py1e'"),
    ):
        writer.begin_pass(PassStart(replace(CURSOR, algorithm="py1e"), 2))


def test_the_sum_is_that_of_its_parts_in_any_order():
    positions, ids = np.array([4, 9, 2, -1]), np.array([70, 71, 72, 70])
    whole = sum_of(3, positions, ids)
    assert whole == sum_of(3, positions[[2, 3]], ids[[2, 3]]) + sum_of(3, positions[[1, 0]], ids[[1, 0]])
    assert (whole.samples, whole.repeats) == (3, 1)
    assert 0 < whole.value < 1 << 128
    others = [sum_of(2, positions, ids), sum_of(3, positions, ids[[1, 0, 2, 3]]), sum_of(3, positions + 1, ids)]
    assert len({whole.value, *(other.value for other in others)}) == 4
    assert sum_of(3, positions[:0], ids[:0]) == Sum()


def test_the_sum_is_the_same_on_every_machine():
    """The expected number is computed without numpy."""
    mask = (1 << 64) - 1

    def mixed(word):
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        return word ^ word >> 31

    def half(epoch, position, sample, a, b, c):
        return mixed((mixed((position * b + (epoch + 1) * a) & mask) + sample * c) & mask)

    high = half(1, 5, 1000, 0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1)
    low = half(1, 5, 1000, 0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D)
    assert sum_of(1, np.array([5]), np.array([1000])).value == high << 64 | low


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`mode` must be one of steps, digest, found 'off'"):
        LedgerWriter(tmp_path, life=1, world=World(), mode="off")


def test_the_caller_may_reuse_arrays_after_recording(tmp_path):
    positions, ids = np.empty(1, dtype=np.int64), np.empty(1, dtype=np.int64)
    with LedgerWriter(tmp_path, life=1, world=World(), mode="digest") as writer:
        writer.begin_pass(PassStart(CURSOR, 1))
        for step in range(22):
            positions[0], ids[0] = step, plan_of(CURSOR).sample_ids(step, step + 1)[0]
            writer.record(step, 0, positions, ids)
        writer.end_pass()
    assert check_ledger(tmp_path, plan_of).ok


def test_more_steps_than_are_summed_together_are_all_summed(tmp_path):
    cursor = replace(CURSOR, epoch_size=200)
    with LedgerWriter(tmp_path, life=1, world=World(), mode="digest") as writer:
        writer.begin_pass(PassStart(cursor, 1))
        for step in range(200):
            writer.record(step, 0, np.array([step]), np.array([199 - step]))
        writer.end_pass()
    whole = sum_of(0, np.arange(200), np.arange(199, -1, -1))
    assert f'{{"sum":"{whole.value:032x}","steps":200,"samples":200,"repeats":0}}' in writer.path.read_text()
