"""The ledger tells what a run was trained on, over all its lives, and does not accept a gap or a repeat."""

import numpy as np
import pytest

from smalti.errors import TrainingError
from smalti.torch.train.ledger import Ledger, read_sample_order

pytestmark = pytest.mark.torch


def write(run_dir, life, rank, start, steps, *, epoch_size=6, num_ranks=1):
    """One rank's part: `steps` maps (step, epoch) to {position: id}."""
    ledger = Ledger(run_dir, life=life, rank=rank)
    ledger.begin(step=start, num_ranks=num_ranks, epoch_size=epoch_size)
    for (step, epoch), samples in steps.items():
        positions, ids = np.array(list(samples)), np.array(list(samples.values()))
        ledger.record(step, epoch, positions, ids)
    ledger.close()


def test_two_ranks_make_one_order(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 50, 2: 52}, (2, 0): {4: 54}}, num_ranks=2)
    write(tmp_path, 0, 1, 0, {(1, 0): {1: 51, 3: 53}, (2, 0): {5: 55}}, num_ranks=2)
    assert read_sample_order(tmp_path) == {0: [50, 51, 52, 53, 54, 55]}


def test_padding_is_not_recorded(tmp_path):
    ledger = Ledger(tmp_path, life=0, rank=0)
    ledger.begin(step=0, num_ranks=1, epoch_size=2)
    ledger.record(1, 0, np.array([0, 1, -1]), np.array([8, 9, 8]))
    ledger.close()
    assert read_sample_order(tmp_path) == {0: [8, 9]}


def test_a_later_life_supersedes_the_steps_that_were_rolled_back(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5, 1: 6}, (2, 0): {2: 7, 3: 8}, (3, 0): {4: 1}})
    write(tmp_path, 1, 0, 1, {(2, 0): {2: 7, 3: 8}, (3, 0): {4: 9, 5: 4}, (4, 1): {0: 3}})
    assert read_sample_order(tmp_path) == {0: [5, 6, 7, 8, 9, 4], 1: [3]}


def test_a_life_that_died_before_its_first_step_changes_nothing(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5, 1: 6}, (2, 0): {2: 7}})
    write(tmp_path, 1, 0, 1, {})
    write(tmp_path, 2, 0, 1, {(2, 0): {2: 7, 3: 8}})
    assert read_sample_order(tmp_path) == {0: [5, 6, 7, 8]}


def test_a_line_cut_off_by_a_kill_does_not_count(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5}})
    with (tmp_path / "samples" / "0-rank0.jsonl").open("a") as file:
        file.write('{"life":0,"step":2,"epoch":0,"posi')
    assert read_sample_order(tmp_path) == {0: [5]}


@pytest.mark.parametrize(
    "line",
    ["junk", "[1]", '{"step":2,"epoch":0,"ids":[1]}', '{"life":0,"step":2,"epoch":0,"positions":[1,2],"ids":[1]}',
     '{"life":0,"step":"2","epoch":0,"positions":[],"ids":[]}'],
)  # fmt: skip
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, line):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5}})
    with (tmp_path / "samples" / "0-rank0.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TrainingError, match=r"0-rank0\.jsonl, line 3 "):
        read_sample_order(tmp_path)


def test_a_position_consumed_twice_is_an_error(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5, 1: 6}}, num_ranks=2)
    write(tmp_path, 0, 1, 0, {(1, 0): {1: 7}}, num_ranks=2)
    with pytest.raises(TrainingError, match="position 1 of epoch 0 was consumed twice: as sample 6 and"):
        read_sample_order(tmp_path)


def test_a_missing_position_is_an_error(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5, 2: 6}})
    with pytest.raises(TrainingError, match="epoch 0 lacks 1 of 3 positions, the first is 1"):
        read_sample_order(tmp_path)


def test_an_epoch_cut_short_before_the_next_is_an_error(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5, 1: 6}, (2, 1): {0: 3}})
    with pytest.raises(TrainingError, match="epoch 0 lacks 4 of 6 positions, the first is 2"):
        read_sample_order(tmp_path)


def test_no_ledger_is_an_error(tmp_path):
    with pytest.raises(TrainingError, match="log_samples=True"):
        read_sample_order(tmp_path)


def test_a_position_beyond_all_bounds_is_an_error_and_not_a_matter_of_memory(tmp_path):
    write(tmp_path, 0, 0, 0, {(1, 0): {0: 5, 10**18: 6}})
    with pytest.raises(TrainingError, match=r"lacks 999999999999999999 of .* the first is 1:"):
        read_sample_order(tmp_path)
