"""Datasets with an affinity."""

import json

import pytest

from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import CursorError
from tests.shard_sets import write_set


@pytest.fixture
def opened(tmp_path):
    """Open the set of 200 samples in 20 shards with some options."""
    folder = write_set(tmp_path / "set", 200)

    def dataset(**options):
        return StreamingDataset(
            remote=str(folder),
            batch_size=8,
            shuffle=True,
            order=OrderOptions(num_canonical_nodes=4, tail="short", **options),
        )

    return dataset


def ids(batches):
    return [int(number) for batch in batches for number in batch["id"]]


def test_a_run_that_is_resumed_in_its_second_epoch_reads_on_in_its_order(opened):
    """The dataset that continues gives no affinity: it takes that of the state."""
    whole = opened(affinity=0.5)
    ids(whole.batches())
    second = ids(whole.batches())
    assert sorted(second) == list(range(200))
    begun = opened(affinity=0.5)
    begun.set_epoch(1)
    state = json.loads(json.dumps(begun.state_dict(80)))
    resumed = opened()
    resumed.load_state_dict(state)
    assert ids(resumed.batches()) == second[80:]
    assert ids(resumed.batches()) == ids(whole.batches()), "the epochs that follow have it too"


def test_the_epochs_differ_from_those_without_it(opened):
    assert ids(opened(affinity=0.5).batches()) != ids(opened().batches())
    assert ids(opened(affinity=1).batches()) == ids(opened().batches())


@pytest.mark.parametrize(("saved", "given"), [(None, 0.5), (0.5, 0.8)])
def test_a_state_with_another_affinity_is_refused_with_both_values(opened, saved, given):
    state = opened(affinity=saved).state_dict(40)
    with pytest.raises(CursorError, match=f"saved with affinity {saved or 1.0}, and this dataset has {given}"):
        opened(affinity=given).load_state_dict(state)


@pytest.mark.parametrize("affinity", [1.2, -1, "0.5", True])
def test_an_affinity_that_is_no_part_is_refused(opened, affinity):
    with pytest.raises(ValueError, match=r"`affinity` must be a number in \[0, 1\]"):
        opened(affinity=affinity)
