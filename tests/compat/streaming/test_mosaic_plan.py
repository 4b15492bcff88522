"""One epoch in MosaicML's order, as the dataset reads it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smalti.compat.streaming import order
from smalti.compat.streaming.order.partition import WorldShape
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicRun, default_mosaic_nodes
from smalti.compat.streaming.order.sampling import weigh_streams
from smalti.errors import CursorError, WorldMismatch
from smalti.order import Division
from smalti.order.mixture.planning import StreamWeight
from tests.compat.streaming.mosaic_worlds import mosaic_cases, rank_of, shapes


def plan(sizes, shape=WorldShape(), *, start=0, epoch=0, **options):  # noqa: B008 (frozen)
    options = {"canonical_nodes": 1, "seed": 1} | options
    return MosaicRun(weigh_streams(sizes), shape, MosaicOptions(**options)).plan(epoch, start)


def read(found):
    """Return all ids that are read, without padding."""
    return [ids for ids in found.reshape(-1).tolist() if ids >= 0]


def assert_division_equals_mosaicmls(planned, tail="short"):
    shape, expected = planned.shape, planned.all_ids()
    for rank in range(shape.num_ranks):
        world = rank_of(shape, rank)
        division = Division(len(planned), planned.start, shape.batch_size, world, tail)
        for step in division.steps(0, division.num_steps):
            worker, batch = step.step % shape.workers, step.step // shape.workers
            expected_batch = expected[world.host, world.host_rank, worker, batch]
            assert [i for i in planned.ids_at(step.lookup).tolist() if i >= 0] == [
                i for i in expected_batch.tolist() if i >= 0
            ]
        # MosaicML pads beyond these.
        rest = expected[world.host, world.host_rank].transpose(1, 0, 2).reshape(-1, shape.batch_size)
        assert (rest[division.num_steps :] == -1).all()


def test_without_a_shuffle_canonical_nodes_take_turns():
    """22 samples in two nodes of 11."""
    ids = plan([[5, 7, 4, 6]], canonical_nodes=2).sample_ids(0, 22)
    assert ids.tolist() == [0, 11, 1, 12, 2, 13, 3, 14, 4, 15, 5, 16, 6, 17, 7, 18, 8, 19, 9, 20, 10, 21]


def test_two_streams_are_one_set_with_random_batches():
    assert plan([[2, 1], [3]], canonical_nodes=3).sample_ids(0, 6).tolist() == [0, 2, 4, 1, 3, 5]


def test_stratified_steps_hold_every_stream_in_proportion():
    """6 and 3 samples: 2 and 1 in each batch of 3."""
    found = plan([[6], [3]], WorldShape(batch_size=3), batching_method="stratified")
    assert found.sample_ids(0, 9).reshape(3, 3).tolist() == [[0, 1, 6], [2, 3, 7], [4, 5, 8]]


def test_an_epoch_of_stratified_batches_ends_when_one_stream_is_used_up():
    """7 and 3 samples: 2.8 and 1.2 in a batch of 4, so 3 and 1; the first stream has two such parts."""
    found = plan([[7], [3]], WorldShape(batch_size=4), batching_method="stratified")
    assert found.sample_ids(0, len(found)).reshape(2, 4).tolist() == [[0, 1, 2, 7], [3, 4, 5, 8]]


def test_per_stream_steps_hold_one_stream():
    """10 and 7 samples, global batches of 2: five and four; sample 15 is repeated, so that both ranks have one."""
    planned = plan([[10], [7]], WorldShape(1, 2, 1, 1), batching_method="per_stream")
    found = planned.sample_ids(0, 18).reshape(9, 2)
    first, second = [s for s in found.tolist() if s[0] < 10], [s for s in found.tolist() if s[0] >= 10]
    assert first == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert second == [[10, 11], [12, 13], [14, 15], [16, 15]]
    assert found.tolist() != first + second


def test_device_per_stream_batches_of_a_rank_hold_one_stream():
    found = plan([[20], [20]], WorldShape(1, 2, 1, 4), batching_method="device_per_stream", seed=3)
    batches = found.all_ids().reshape(-1, 4)
    held = [batch for batch in batches.tolist() if batch[0] >= 0]
    assert sorted(held) == [list(range(i, i + 4)) for i in range(0, 40, 4)]
    for step in found.all_ids().transpose(3, 0, 1, 2, 4).reshape(-1, 8):
        assert (step >= 0).any() or (step == -1).all()


def test_an_epoch_takes_what_the_weights_say():
    streams = weigh_streams([[4], [6]], [StreamWeight(repeat=2), StreamWeight(choose=3)])
    found = MosaicRun(streams, WorldShape(), MosaicOptions(canonical_nodes=1, seed=5)).plan(0)
    ids = found.sample_ids(0, len(found)).tolist()
    assert ids[:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len(ids) == 11
    assert len(set(ids[8:])) == 3
    assert set(ids[8:]) <= set(range(4, 10))


def test_balanced_sampling_takes_other_samples_each_epoch_and_fixed_the_same():
    streams = weigh_streams([[40]], [StreamWeight(choose=10)])
    for method, same in (("fixed", True), ("balanced", False)):
        options = MosaicOptions(canonical_nodes=1, sampling_method=method)
        taken = [MosaicRun(streams, WorldShape(), options).plan(e).sample_ids(0, 10).tolist() for e in (0, 1)]
        assert (taken[0] == taken[1]) is same


@given(mosaic_cases())
def test_division_equals_mosaicmls(fit):
    shape, options, streams = fit
    try:
        planned = MosaicRun(streams, shape, options).plan(1)
    except WorldMismatch:
        assume(False)
    assert_division_equals_mosaicmls(planned)


@given(mosaic_cases(batchings=["random"]), st.data())
def test_division_equals_mosaicmls_after_a_restart(fit, data):
    shape, options, streams = fit
    start = data.draw(st.integers(0, sum(stream.choose for stream in streams)))
    planned = MosaicRun(streams, shape, options).plan(0, start)
    assert planned.start == start - start % shape.hosts
    assert_division_equals_mosaicmls(planned)


@given(
    mosaic_cases(batchings=["random"], partitions=["relaxed"]), st.sampled_from([5, 7, 8]), st.integers(1, 3), st.data()
)
def test_division_equals_mosaicmls_where_hosts_do_not_divide(fit, hosts, batch, data):
    """The run began with 4 hosts; 5, 7 or 8 continue with a multiple of its global batch."""
    first, options, streams = fit
    shape = WorldShape(hosts, first.ranks_on_host, first.workers, 4 * batch)
    options = MosaicOptions(12, seed=options.seed, shuffle=options.shuffle, shuffle_algo="py1s", initial_hosts=4)
    start = data.draw(st.integers(0, sum(stream.choose for stream in streams)))
    planned = MosaicRun(streams, shape, options).plan(0, start)
    assert_division_equals_mosaicmls(planned)


@given(mosaic_cases(batchings=["random"]))
def test_i1_every_planned_sample_occurs_as_often_as_it_is_taken(fit):
    shape, options, streams = fit
    planned = MosaicRun(streams, shape, options).plan(0)
    everywhere = np.arange(len(planned))
    found = Counter(planned.ids_at(everywhere).tolist())
    alone = MosaicRun(streams, WorldShape(), MosaicOptions(1, seed=options.seed)).plan(0)
    taken = Counter(alone.sample_ids(0, sum(s.choose for s in streams)).tolist())
    assert taken <= found
    assert set(found) <= {-1, *taken}


@given(mosaic_cases(batchings=["stratified", "per_stream", "device_per_stream"]))
def test_i1_batches_of_streams_read_no_other_samples_than_were_taken(fit):
    shape, options, streams = fit
    streams = weigh_streams([stream.shard_sizes for stream in streams])
    try:
        planned = MosaicRun(streams, shape, options).plan(0)
    except WorldMismatch:
        assume(False)
    found = planned.ids_at(np.arange(len(planned))).tolist()
    assert set(found) <= set(range(-1, sum(stream.choose for stream in streams)))


@given(mosaic_cases(batchings=["random"]), shapes, st.integers(0, 50))
def test_i3_the_rest_after_a_restart_on_another_world_is_the_rest(fit, other, steps):
    """Up to the last 12 positions, one for each canonical node, which every world pads differently."""
    shape, options, streams = fit
    total = sum(stream.choose for stream in streams)
    whole = MosaicRun(streams, shape, options).plan(0)
    cursor = min(total, steps * shape.global_batch)
    resumed = MosaicRun(streams, other, options).plan(0, cursor)
    same = total // 12 * 12
    assume(resumed.start <= same)
    assert resumed.sample_ids(resumed.start, same).tolist() == whole.sample_ids(resumed.start, same).tolist()
    assert resumed.sample_ids(0, resumed.start).tolist() == whole.sample_ids(0, resumed.start).tolist()
    assert cursor - resumed.start < other.hosts


@given(mosaic_cases())
def test_i4_no_position_goes_to_two_workers(fit):
    shape, options, streams = fit
    try:
        planned = MosaicRun(streams, shape, options).plan(0)
    except WorldMismatch:
        assume(False)
    assert sorted(read(planned.all_ids())) == sorted(read(planned.ids_at(np.arange(planned.start, len(planned)))))


def test_a_restart_of_stratified_batches_begins_at_a_whole_step():
    shape = WorldShape(batch_size=3)
    whole = plan([[6], [3]], shape, batching_method="stratified")
    rest = plan([[6], [3]], shape, batching_method="stratified", start=5)
    assert (rest.start, rest.num_steps) == (3, 2)
    assert rest.sample_ids(3, 9).tolist() == whole.sample_ids(3, 9).tolist()
    assert rest.all_ids().reshape(-1).tolist() == [2, 3, 7, 4, 5, 8]


def test_a_state_saved_at_the_epochs_end_resumes_without_steps():
    rest = plan([[22]], WorldShape(1, 4, 1, 3), start=24)
    assert (len(rest), rest.num_steps, rest.all_ids().size) == (24, 0, 0)
    assert rest.sample_ids(20, 24).tolist() == [20, 21, -1, -1]


def test_positions_beyond_the_last_whole_step_of_stream_batches_are_empty():
    rest = plan([[6], [3]], WorldShape(batch_size=4), batching_method="stratified", start=9)
    assert (rest.start, len(rest)) == (8, 8)
    past = plan([[7], [3]], WorldShape(batch_size=4), batching_method="stratified", start=12)
    assert past.sample_ids(4, 12).tolist() == [3, 4, 5, 8, -1, -1, -1, -1]


@pytest.mark.parametrize("batching", ["random", "stratified"])
def test_a_start_beyond_the_epoch_is_a_cursor_error(batching):
    with pytest.raises(CursorError, match=r"^Resuming further into the dataset \(30\) than it has samples \(22\)"):
        plan([[22]], WorldShape(batch_size=2), batching_method=batching, start=30)


def test_positions_outside_the_epoch_are_refused():
    with pytest.raises(IndexError, match=r"span \[0, 23\) is not inside"):
        plan([[22]]).sample_ids(0, 23)


def test_a_negative_epoch_is_refused():
    with pytest.raises(ValueError, match="`epoch` must be at least 0, found -1"):
        plan([[22]], epoch=-1)


@pytest.mark.parametrize(
    ("sizes", "batching", "shape", "message"),
    [
        ([[100], [1]], "stratified", WorldShape(batch_size=4), "^Number of samples for stream 1 is 0 because"),
        ([[100], [3]], "per_stream", WorldShape(batch_size=4), "^Stream with index 1 .* a complete global batch of"),
        (
            [[100], [3]],
            "device_per_stream",
            WorldShape(batch_size=4),
            "^Stream with index 1 .* a single device batch of",
        ),
        ([[9]], "device_per_stream", WorldShape(hosts=2), "num_canonical_nodes must be divisible by physical"),
    ],
)
def test_too_few_samples_for_a_batch_are_named(sizes, batching, shape, message):
    with pytest.raises(WorldMismatch, match=message):
        plan(sizes, shape, batching_method=batching)


def test_a_stream_whose_share_of_a_block_is_empty_is_named():
    """1 of 101 samples in a block of 50."""
    with pytest.raises(
        WorldMismatch, match=r"^Samples from stream 1 are not being used. .* 0 of a shuffle block of 50"
    ):
        plan([[100], [1]], batching_method="per_stream", shuffle=True, block_size=50)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("shuffle_algo", "py1b"),
        ("partition_algo", "strict"),
        ("sampling_method", "even"),
        ("batching_method", "mixed"),
        ("canonical_nodes", 0),
        ("seed", -1),
        ("sampling_granularity", 0),
    ],
)
def test_an_option_out_of_range_is_named(option, value):
    name = {"shuffle_algo": "algorithm", "partition_algo": "algorithm", "sampling_granularity": "granularity"}
    with pytest.raises(ValueError, match=f"`{name.get(option, option)}` must be .* found {value!r}"):
        plan([[8]], shuffle=True, **{option: value})


def test_defaults_are_mosaicmls():
    assert default_mosaic_nodes("py1s", 2) == 128
    assert default_mosaic_nodes("py1e", 2) == 2
    assert MosaicOptions(canonical_nodes=2).shuffle_block == 2_000_000
    assert MosaicOptions(canonical_nodes=64).shuffle_block == 262_144
    assert MosaicOptions(canonical_nodes=64, block_size=5).shuffle_block == 5


def test_the_names_that_users_write_are_imported_from_the_package():
    names = {"MosaicOptions", "MosaicRun", "WorldShape", "get_sampling", "shuffled_ids", "weigh_streams"}
    assert names <= set(order.__all__)
    assert all(hasattr(order, name) for name in order.__all__)
