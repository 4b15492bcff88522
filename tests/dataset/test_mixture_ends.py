"""The last steps of an epoch in MosaicML's batches of streams: positions beyond the epoch's samples."""

import pytest

from smalti.dataset import Pass
from smalti.world import World
from tests.dataset.mixture_sets import mixed, take, write_three


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return write_three(tmp_path_factory.mktemp("three"))


@pytest.mark.parametrize("batching", ["stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("algorithm", ["py1s", "naive"])
def test_a_state_saved_before_any_of_the_last_steps_reads_them(roots, batching, algorithm):
    """64 canonical nodes pad each of 3 streams, of which an epoch takes 80 samples."""
    options = {
        "shuffle_algo": algorithm,
        "num_canonical_nodes": 64,
        "batching_method": batching,
        "values": (1, 1, 1),
        "batch_size": 3,
        "world": World.flat(1, 2),
    }
    whole, end = take(mixed(roots, **options))
    assert (end["epoch"], end["sample_in_epoch"]) == (1, 0)
    for steps in (1, *range(len(whole) * 2 // 3, len(whole), 3), len(whole) - 1):
        before, state = take(mixed(roots, **options), steps)
        resumed = mixed(roots, **options)
        resumed.load_state_dict(state)
        assert before + take(resumed)[0] == whole, f"after {steps} of {len(whole)} steps"


def test_the_next_epochs_length_does_not_evict_the_current_plan(roots):
    """`len(loader)` and `state_dict()` in turns, at each step; a plan is O(samples)."""
    dataset = mixed(roots, shuffle_algo="py1s", num_canonical_nodes=2, batching_method="stratified")
    here = dataset.begin_pass()
    ahead = Pass(dataset.cursor_at_start(), dataset.world)
    now, then = dataset.division(here), dataset.division(ahead)
    assert dataset.division(here) is now
    assert dataset.division(ahead) is then
    assert dataset.view().division(here) is now
