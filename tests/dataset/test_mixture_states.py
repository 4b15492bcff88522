"""States of mixtures: resuming, refusals and their remedies, and changes of weights."""

import copy
import json

import pytest

from smalti import Stream
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import CursorError
from smalti.world import World
from tests.combinations import each_value_once
from tests.dataset.mixture_sets import by_stream, flat, mixed, streams_of, take, write_three
from tests.reading_options import grouped
from tests.shard_sets import write_set

BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return write_three(tmp_path_factory.mktemp("three"))


def read_steps(roots, steps=3, **options):
    """Return the batches of some steps, the state after them, and the rest of the epoch."""
    dataset = mixed(roots, **options)
    whole, _ = take(mixed(roots, **options))
    first, state = take(dataset, steps)
    assert first == whole[:steps]
    return first, state, whole[steps:]


def resumed(state, roots, *arguments, **options):
    dataset = mixed(roots, *arguments, **options)
    dataset.load_state_dict(state)
    return dataset


@pytest.mark.parametrize(("batching", "steps"), each_value_once(BATCHINGS, [0, 1, 9, 10]))
def test_a_mixture_resumes_after_any_step_and_into_the_next_epoch(roots, batching, steps):
    first, state, rest = read_steps(roots, steps, batching_method=batching)
    dataset = resumed(state, roots, batching_method=batching)
    whole = mixed(roots, batching_method=batching)
    take(whole)
    if steps < 10:
        assert take(dataset)[0] == rest
    else:
        assert state["epoch"] == 1
        assert len(first) == 10
    assert take(dataset)[0] == take(whole)[0]


def test_a_state_holds_streams_methods_and_weights(roots):
    _, state, _ = read_steps(roots, values=(0.5, 0.25, 0.25), epoch_size=160, batching_method="stratified")
    mixture = state["smalti"]["mixture"]
    assert state["smalti"]["cursor_version"] == 2
    assert state["smalti"]["epoch_size"] == 160
    assert [(stream["samples"], stream["split"], len(stream["digest"])) for stream in mixture.pop("streams")] == [
        (40, None, 64),
        (25, None, 64),
        (15, None, 64),
    ]
    weights = [{"proportion": 0.5}, {"proportion": 0.25}, {"proportion": 0.25}]
    assert mixture == {
        "sampling_method": "balanced",
        "sampling_granularity": 1,
        "batching_method": "stratified",
        "global_batch": 8,
        "local_batch": 8,
        "version": 1,
        "history": [{"epoch": 0, "samples": 0, "weights": weights, "epoch_size": 160}],
    }


def test_an_epoch_keeps_its_batch_size_and_the_next_one_takes_the_current(roots):
    """Stratified: 8, 4 and 4 of 16; after a resume in batches of 4 the order is that of 16 until the epoch ends."""
    options = {"batching_method": "stratified", "epoch_size": 160}
    first, state, rest = read_steps(roots, 3, batch_size=16, **options)
    smaller = resumed(state, roots, batch_size=4, **options)
    assert smaller.cursor().mixture.global_batch == 16
    again, after = take(smaller)
    assert flat(again) == flat(rest)
    assert after["smalti"]["mixture"]["global_batch"] == 16
    assert [by_stream(batch) for batch in take(smaller)[0]] == [[2, 1, 1]] * 40
    assert by_stream(flat(first)) == [24, 12, 12]


# ---------------------------------------------------------------------- what is refused


def test_other_weights_are_refused_with_both_values_and_both_remedies(roots):
    _, state, _ = read_steps(roots)
    with pytest.raises(CursorError) as caught:
        resumed(state, roots, values=(1, 1, 1.5))
    message = str(caught.value)
    assert "weights proportion=2.0, proportion=1.0, proportion=1.0" in message
    assert "proportion=1.0, proportion=1.0, proportion=1.5" in message
    assert "from sample 24 of epoch 0" in message
    assert "order=OrderOptions(change_weights=True)" in message
    assert caught.value.what == "weights"
    assert "proportion=1.5" in caught.value.found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "repeat", "values": (None, None, None)}, r"this dataset has -, -, -\."),
        ({"epoch_size": 40}, r"epoch_size=40"),
        (
            {"sampling_method": "fixed"},
            r"sampling_method 'balanced', .* has 'fixed'.*give `OrderOptions.sampling_method='balanced'.`",
        ),
        ({"sampling_granularity": 2}, r"sampling_granularity 1, and .* 2.*give `OrderOptions.sampling_granularity=1.`"),
        ({"batching_method": "per_stream"}, r"batching_method 'random'.*give `OrderOptions.batching_method='random'.`"),
        ({"shuffle": False}, r"shuffle True.*give `shuffle=True`"),
        ({"shuffle_seed": 8}, r"shuffle_seed 9176.*`shuffle_seed=9176`, or leave it out"),
    ],
)
def test_a_state_of_another_mixture_is_refused_with_the_remedy(roots, change, message):
    _, state, _ = read_steps(roots)
    with pytest.raises(CursorError, match=message):
        resumed(state, roots, **change)


def test_other_more_or_reordered_streams_are_refused_by_number(roots, tmp_path):
    _, state, _ = read_steps(roots)
    other = str(write_set(tmp_path / "other", 15, size_limit=300))
    with pytest.raises(CursorError, match="digest of stream 2"):
        resumed(state, [*roots[:2], other])
    with pytest.raises(CursorError, match="digest of stream 0"):
        resumed(state, roots[::-1])
    with pytest.raises(
        CursorError, match=r"number of streams 3, and this dataset has 4.*from the start, with weight 0"
    ):
        resumed(state, [*roots, other], values=(2, 1, 1, 1))
    with pytest.raises(CursorError, match="number of streams 3, and this dataset has 2"):
        resumed(state, roots[:2], values=(2, 1))
    with pytest.raises(CursorError, match="number of streams 3, and this dataset has 1"):
        StreamingDataset(remote=roots[0], shuffle=True).load_state_dict(state)
    plain = StreamingDataset(remote=roots[0], shuffle=True).state_dict()
    with pytest.raises(CursorError, match="number of streams 1, and this dataset has 3"):
        resumed(plain, roots)


def test_a_state_of_another_version_of_a_stream_is_refused_and_the_saved_version_continues(tmp_path):
    roots = write_three(tmp_path)
    _, state, rest = read_steps(roots)
    write_set(roots[1], 30, exist_ok=True)
    with pytest.raises(CursorError, match=r"digest of stream 1 .*`version=`"):
        resumed(state, roots)
    streams = streams_of(roots)
    streams[1] = Stream(remote=roots[1], version=1, proportion=1)
    pinned = StreamingDataset(
        streams=streams, batch_size=8, shuffle=True, include_ids=True, order=OrderOptions(tail="short")
    )
    pinned.load_state_dict(state)
    assert take(pinned)[0] == rest


# ---------------------------------------------------------------------- weights that change


@pytest.mark.parametrize("batching", BATCHINGS)
def test_new_weights_apply_from_the_states_place_on_and_are_recorded(roots, batching):
    """160 by 2:1:1, of which 48 were read; of the 112 left, 1:2:1 are 28, 56 and 28."""
    options = {"epoch_size": 160, "batching_method": batching}
    first, state, _ = read_steps(roots, 6, **options)
    changed = resumed(state, roots, values=(1, 2, 1), change_weights=True, **options)
    rest, after = take(changed, 5)
    assert by_stream(flat(rest) + flat(take(resumed(after, roots, values=(1, 2, 1), **options))[0])) == [28, 56, 28]
    history = after["smalti"]["mixture"]["history"]
    assert [(each["epoch"], each["samples"]) for each in history] == [(0, 0), (0, 48)]
    assert history[1]["weights"] == [{"proportion": 1.0}, {"proportion": 2.0}, {"proportion": 1.0}]
    assert by_stream(flat(take(changed)[0])) == [40, 80, 40], "the next epoch is all of the new weights"
    assert len(first) == 6


@pytest.mark.slow
def test_a_run_with_changed_weights_resumes_from_every_step_in_other_worlds(roots):
    options = {"epoch_size": 96, "values": (1, 1, 2), "change_weights": True}
    _, state, _ = read_steps(roots, 4, epoch_size=96)
    whole = flat(take(resumed(state, roots, **options))[0])
    assert len(whole) == 64
    for steps in range(8):
        read, place = take(resumed(state, roots, **options), steps)
        worlds = [World.of_blocks(rank, 6, 2) for rank in range(6)]
        rest = {}
        for world in worlds:
            dataset = resumed(place, roots, world=world, **options | {"batch_size": 3, "tail": "pad"})
            for batch in dataset.batches():
                rest |= dict(zip(batch["_position"].tolist(), batch["_sample_id"].tolist(), strict=True))
        rest.pop(-1, None)
        assert flat(read) + [rest[position] for position in sorted(rest)] == whole


def test_change_weights_with_the_same_weights_changes_nothing(roots):
    _, state, rest = read_steps(roots)
    dataset = resumed(state, roots, change_weights=True)
    assert dataset.cursor().to_state() == state
    assert take(dataset)[0] == rest


def test_a_second_change_of_weights_at_one_place_replaces_the_first(roots):
    _, state, _ = read_steps(roots, 3)
    once = resumed(state, roots, values=(0, 1, 1), change_weights=True).cursor().to_state()
    twice = resumed(once, roots, values=(1, 0, 0), change_weights=True)
    directly = resumed(state, roots, values=(1, 0, 0), change_weights=True)
    assert twice.cursor() == directly.cursor()
    assert by_stream(flat(take(twice)[0])) == [56, 0, 0]


def test_a_stream_of_weight_0_can_be_turned_on_inside_an_epoch(roots):
    first, state, _ = read_steps(roots, 5, values=(1, 0, 1))
    assert by_stream(flat(first))[1] == 0
    rest, _ = take(resumed(state, roots, values=(0, 1, 0), change_weights=True))
    assert by_stream(flat(rest)) == [0, 40, 0]


SCARCE = {"values": (19, 20, 1), "change_weights": True, "epoch_size": 160, "batching_method": "stratified"}


def test_weights_that_the_batches_of_the_epoch_cannot_hold_are_refused_when_the_state_is_loaded(roots):
    """136 of 160 remain, 3 or 4 of them of the third stream by 19 : 20 : 1: 0.2 of a sample in a batch of 8."""
    _, state, rest = read_steps(roots, 3, epoch_size=160, batching_method="stratified")
    says = (
        r"weights cannot change to proportion=19\.0, .* at sample 24 of epoch 0: the rest of that epoch keeps the "
        r"batch of 8 .* stream 2 would have no sample\. Give that stream a larger weight, or 0;.* start of an epoch"
    )
    for batch_size in (8, 64, None):  # that of later epochs does not matter
        with pytest.raises(CursorError, match=says) as caught:
            resumed(state, roots, **SCARCE, batch_size=batch_size)
        assert (caught.value.what, caught.value.stream, caught.value.global_batch) == ("weights", 2, 8)
    assert take(resumed(state, roots, epoch_size=160, batching_method="stratified"))[0] == rest


def test_weights_that_later_epochs_cannot_hold_are_refused_before_the_first_step(roots):
    """The epoch was begun in batches of 64, of which 19 : 20 : 1 gives the third stream 1.6; the run has 8."""
    _, state, _ = read_steps(roots, 1, batch_size=64, epoch_size=160, batching_method="stratified")
    says = r"at sample 64 of epoch 0: with them, the epochs after it .* stream 2 would have no sample .* batch of 8;"
    with pytest.raises(CursorError, match=says + r" enlarge the batch \(40 is enough\)"):
        resumed(state, roots, **SCARCE)
    without_size = resumed(state, roots, **SCARCE, batch_size=None)
    with pytest.raises(CursorError, match=says):
        without_size._smalti.begin_pass(8)  # as a loader with its own batch size does
    enough = resumed(state, roots, **SCARCE, batch_size=40)
    rest, after = take(enough)
    assert (by_stream(flat(rest))[2], by_stream(flat(take(enough)[0]))[2]) == (2, 4)
    # With the former weights, any batch size is allowed to the end of the epoch.
    _, place = take(resumed(state, roots, **SCARCE, batch_size=40), 1)
    assert take(resumed(place, roots, **SCARCE | {"batch_size": 4}))[1] == after


def test_weights_that_would_change_the_size_of_an_epoch_wait_for_its_end(roots):
    _, state, _ = read_steps(roots, 3)
    with pytest.raises(CursorError, match=r"80 samples with the old ones and 200 with the new.*at an epoch's start"):
        resumed(state, roots, epoch_size=200, change_weights=True)
    _, end = take(resumed(state, roots))
    changed = resumed(end, roots, epoch_size=200, change_weights=True)
    assert changed.epoch_size == 200
    assert by_stream(flat(take(changed)[0])) == [100, 50, 50]
    assert changed.state_dict()["smalti"]["mixture"]["history"][-1]["epoch_size"] == 200


def test_a_run_can_change_from_plain_to_mixed_and_back(roots):
    """40 samples once; from the second epoch on three times; from the third on once."""
    how = grouped(batch_size=8, shuffle=True, include_ids=True, change_weights=True)
    plain = StreamingDataset(remote=roots[0], **how)
    _, state = take(plain)
    thrice = StreamingDataset(streams=[Stream(remote=roots[0], repeat=3)], **how)
    with pytest.raises(CursorError, match=r"OrderOptions\(change_weights=True\)"):
        StreamingDataset(streams=[Stream(remote=roots[0], repeat=3)], batch_size=8, shuffle=True).load_state_dict(state)
    thrice.load_state_dict(state)
    batches, state = take(thrice)
    assert sorted(flat(batches)) == sorted([*range(40)] * 3)
    once = StreamingDataset(remote=roots[0], **how)
    once.load_state_dict(state)
    assert sorted(flat(take(once)[0])) == list(range(40))


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_plain_run_of_one_stream_gets_weights_in_the_middle_of_an_epoch(roots, batching):
    """As many samples, drawn differently; the batching method has no effect on one stream, and needs no batch size."""
    how = {"batch_size": 8, "shuffle": True, "include_ids": True, "tail": "short"}
    first, state = take(StreamingDataset(remote=roots[0], **grouped(**how)), 2)
    dataset = StreamingDataset(
        streams=[Stream(remote=roots[0], proportion=1)],
        epoch_size=40,
        **grouped(batching_method=batching, change_weights=True, **how),
    )
    dataset.load_state_dict(state)
    rest, after = take(dataset, 2)
    dataset.load_state_dict(after)
    rest += take(dataset)[0]
    assert len(flat(first)) + len(flat(rest)) == 40
    assert sorted(flat(take(dataset)[0])) == list(range(40))


def test_an_earlier_epoch_is_read_again_with_its_own_weights(roots):
    dataset = mixed(roots, values=(1, 1, 2), change_weights=True, epoch_size=160)
    whole, state = take(mixed(roots, epoch_size=160))
    dataset.load_state_dict(state)
    take(dataset)
    dataset.set_epoch(0)
    assert take(dataset)[0] == whole
    assert by_stream(flat(take(dataset)[0])) == [40, 40, 80]


# ---------------------------------------------------------------------- damage


def damaged(roots, changes):
    _, state, _ = read_steps(roots, 3, epoch_size=160, batching_method="stratified")
    state = copy.deepcopy(state)
    for path, value in changes.items():
        place = state["smalti"]
        *way, last = path
        for key in way:
            place = place[key]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    return state


FIRST = ("mixture", "history", 0)
BAD = [
    ({("mixture",): 7}, "'mixture' is int, expected a mapping"),
    ({("mixture",): KeyError}, "number of streams"),
    ({("mixture", "streams"): []}, "'streams'"),
    ({("mixture", "streams"): {}}, "'streams'"),
    ({("mixture", "streams", 0): None}, "'streams' is NoneType"),
    ({("mixture", "streams", 0, "digest"): 3}, "'digest'"),
    ({("mixture", "streams", 0, "digest"): "other"}, "digest of stream 0"),
    ({("mixture", "streams", 1, "split"): "val"}, "split of stream 1"),
    ({("mixture", "streams", 0, "samples"): -1}, "'samples'"),
    ({("mixture", "streams", 0, "samples"): 41}, "samples of stream 0 41, and this dataset has 40"),
    ({("mixture", "sampling_method"): None}, "'sampling_method'"),
    ({("mixture", "sampling_method"): "other"}, "sampling_method 'other'"),
    ({("mixture", "sampling_granularity"): 0}, "'sampling_granularity'"),
    ({("mixture", "batching_method"): "x" * 2000}, "'batching_method'"),
    ({("mixture", "global_batch"): None}, "'global_batch'"),
    ({("mixture", "global_batch"): 0}, "'global_batch'"),
    ({("mixture", "global_batch"): True}, "'global_batch'"),
    ({("mixture", "global_batch"): 2}, "stream 2 would have no sample in a global batch of 2"),
    ({("mixture", "local_batch"): 1.0}, "'local_batch'"),
    ({("mixture", "version"): 2}, "mixture version 2"),
    ({("mixture", "history"): KeyError}, "'history'"),
    ({("mixture", "history"): []}, "'history'"),
    ({(*FIRST,): 3}, "'history' is int"),
    ({(*FIRST, "epoch"): 1}, "not in order from epoch 0, sample 0 on"),
    ({(*FIRST, "samples"): 1}, "not in order"),
    ({(*FIRST, "epoch_size"): 0}, "'epoch_size'"),
    ({(*FIRST, "weights"): [{"proportion": 1}]}, "not as many as the 3 streams"),
    ({(*FIRST, "weights", 0): {"proportion": float("nan")}}, "a weight in 'history'"),
    ({(*FIRST, "weights", 0): {"proportion": 1e400}}, "a weight in 'history'"),
    ({(*FIRST, "weights", 0): {"proportion": True}}, "a weight in 'history'"),
    ({(*FIRST, "weights", 0): {"choose": 1.5}}, "a weight in 'history'"),
    ({(*FIRST, "weights", 0): {"other": 1}}, "a weight in 'history'"),
    ({(*FIRST, "weights", 0): {"proportion": 1, "repeat": 1}}, "a weight in 'history'"),
    ({(*FIRST, "weights", 0): {"repeat": 1}}, "saved with weights"),
    ({("digest",): "other"}, "data set digest"),
    ({("split",): "train"}, "split 'train'"),
    ({("epoch_size",): 161}, "epoch size 161"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda value: str(value)[:60])
def test_a_damaged_state_is_a_cursor_error_that_names_the_field(roots, changes, message):
    state = damaged(roots, changes)
    for change in (False, True):
        dataset = mixed(roots, epoch_size=160, batching_method="stratified", change_weights=change)
        if change and message == "saved with weights":
            message = "`proportion` must be given for all streams or for none"
        with pytest.raises(CursorError, match=message):
            dataset.load_state_dict(state)
    assert len(take(dataset)[0]) == 20, "what was refused has left no trace"


def entry(epoch, samples, weights=(2, 1, 1), size=160):
    return {"epoch": epoch, "samples": samples, "weights": [{"proportion": w} for w in weights], "epoch_size": size}


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([entry(0, 0), entry(1, 5), entry(0, 7)], "not in order"),
        ([entry(0, 0), entry(0, 0)], "not in order"),
        ([entry(0, 0), entry(0, 8, size=80)], "160 samples with the old ones and 80 with the new"),
        ([entry(0, 0), entry(0, 160)], "position 160 of an epoch of 160"),
        ([entry(0, 0, (0, 0, 0)), entry(0, 8)], "sum to more than 0"),
        (
            [entry(0, 0, size=1 << 60), entry(0, 8, size=1 << 60), entry(0, 24)],
            "1152921504606846976 samples with the old",
        ),
        ([entry(0, 0) | {"weights": [{"repeat": 1}, None, None]}, entry(0, 8)], "`epoch_size` must not be given"),
    ],
)
def test_an_invalid_history_is_a_cursor_error(roots, history, message):
    state = damaged(roots, {("mixture", "history"): history})
    with pytest.raises(CursorError, match=message):
        resumed(state, roots, epoch_size=160, batching_method="stratified", change_weights=True)


@pytest.mark.parametrize("count", [70_000, 1_000_000])
def test_an_oversized_history_is_refused_unread(roots, count):
    state = damaged(roots, {("mixture", "history"): [entry(0, 0)] * count})
    with pytest.raises(CursorError, match=r"'history' is .*, expected a list of 1 to 65536 entries"):
        resumed(state, roots, epoch_size=160, batching_method="stratified")


def test_a_state_of_a_mixture_survives_json_and_is_small(roots):
    _, state, _ = read_steps(roots)
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 2000
