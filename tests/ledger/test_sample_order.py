"""The order of samples is read back over all lives of a run; a gap, a repeat or a damaged line is an error."""

from dataclasses import replace

import numpy as np
import pytest

from smalti.cursor import Cursor
from smalti.errors import StoreNotFound, TrainingError
from smalti.ledger import LedgerWriter, PassStart, read_sample_order
from smalti.world import World

CURSOR = Cursor(
    epoch=0, samples=0, seed=7, canonical_nodes=2, initial_hosts=1, digest="d1", split=None, epoch_size=6,
    shuffle=True, block_size=4,
)  # fmt: skip


def write(folder, life, passes, *, rank=0, num_ranks=1, ends=True):
    """Write one rank's file: each pass is (epoch, samples before it, [{position: id} for each step])."""
    with LedgerWriter(folder, life=life, world=World.flat(rank, num_ranks)) as writer:
        for epoch, before, steps in passes:
            writer.begin_pass(PassStart(replace(CURSOR, epoch=epoch, samples=before), 2))
            for number, samples in enumerate(steps):
                writer.record(number, epoch, np.array(list(samples)), np.array(list(samples.values())))
            if ends:
                writer.end_pass()
    return writer.path


def test_two_ranks_make_one_order(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 50, 2: 52}, {4: 54}])], rank=0, num_ranks=2)
    write(tmp_path, 1, [(0, 0, [{1: 51, 3: 53}, {5: 55}])], rank=1, num_ranks=2)
    assert read_sample_order(tmp_path) == {0: [50, 51, 52, 53, 54, 55]}


def test_padding_does_not_count(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 8, 1: 9, -1: 8}])])
    assert read_sample_order(tmp_path) == {0: [8, 9]}


def test_a_later_life_supersedes_the_steps_that_were_rolled_back(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 1: 6}, {2: 7, 3: 8}, {4: 1}])], ends=False)
    write(tmp_path, 2, [(0, 2, [{2: 7, 3: 8}, {4: 9, 5: 4}]), (1, 0, [{0: 3}])])
    assert read_sample_order(tmp_path) == {0: [5, 6, 7, 8, 9, 4], 1: [3]}


def test_a_life_that_died_before_its_first_step_changes_nothing(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 1: 6}, {2: 7}])], ends=False)
    write(tmp_path, 2, [])
    write(tmp_path, 3, [(0, 2, [])], ends=False)
    write(tmp_path, 4, [(0, 2, [{2: 7, 3: 8}])])
    assert read_sample_order(tmp_path) == {0: [5, 6, 7, 8]}


def test_a_step_that_not_all_ranks_had_begun_when_the_run_was_killed_does_not_count(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 50, 2: 52}, {4: 54}])], rank=0, num_ranks=2, ends=False)
    write(tmp_path, 1, [(0, 0, [{1: 51, 3: 53}])], rank=1, num_ranks=2, ends=False)
    assert read_sample_order(tmp_path) == {0: [50, 51, 52, 53]}


def test_a_line_cut_off_by_a_kill_does_not_count(tmp_path):
    with write(tmp_path, 1, [(0, 0, [{0: 5}])], ends=False).open("a") as file:
        file.write('{"step":1,"epoch":0,"posi')
    assert read_sample_order(tmp_path) == {0: [5]}


@pytest.mark.parametrize(
    "line",
    ["junk", "[1]", '{"step":1,"epoch":0}', '{"step":1,"epoch":0,"positions":[1,2],"ids":[1]}',
     '{"step":"1","epoch":0,"positions":[],"ids":[]}'],
)  # fmt: skip
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, line):
    with write(tmp_path, 1, [(0, 0, [{0: 5}])], ends=False).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TrainingError, match=r"life-00001/rank-00000\.jsonl, line 4:"):
        read_sample_order(tmp_path)


def test_a_position_taken_twice_is_an_error(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 1: 6}])], rank=0, num_ranks=2)
    write(tmp_path, 1, [(0, 0, [{1: 7}])], rank=1, num_ranks=2)
    with pytest.raises(TrainingError, match="position 1 of epoch 0 was taken twice: as sample 6 and as sample 7"):
        read_sample_order(tmp_path)


def test_a_missing_position_is_an_error(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 2: 6}])])
    with pytest.raises(TrainingError, match="epoch 0 lacks 1 of 3 positions, the first is 1"):
        read_sample_order(tmp_path)


def test_a_missing_file_of_a_rank_is_an_error(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 2: 6}])], rank=0, num_ranks=2)
    with pytest.raises(TrainingError, match="1 of 2 ranks left no file, the first is rank 1"):
        read_sample_order(tmp_path)


def test_an_epoch_cut_short_before_the_next_is_an_error(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 1: 6}]), (1, 0, [{0: 3}])])
    with pytest.raises(TrainingError, match="epoch 0 lacks 4 of 6 positions, the first is 2"):
        read_sample_order(tmp_path)


def test_no_ledger_is_an_error(tmp_path):
    with pytest.raises(StoreNotFound, match="holds no ledger"):
        read_sample_order(tmp_path)


def test_a_position_beyond_all_bounds_is_an_error_and_not_a_matter_of_memory(tmp_path):
    write(tmp_path, 1, [(0, 0, [{0: 5, 1: 6, 10**18: 7}])])
    with pytest.raises(TrainingError, match=r"lacks 999999999999999998 of .* the first is 2:"):
        read_sample_order(tmp_path)


def test_sums_hold_no_order(tmp_path):
    with LedgerWriter(tmp_path, life=1, world=World(), mode="digest") as writer:
        writer.begin_pass(PassStart(CURSOR, 2))
        writer.record(0, 0, np.array([0, 1]), np.array([5, 6]))
        writer.mark()
    with pytest.raises(TrainingError, match="use `check_ledger`"):
        read_sample_order(tmp_path)
