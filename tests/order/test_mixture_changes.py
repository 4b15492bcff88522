"""Weights that change during a run: the samples that each stretch of an epoch takes, and their order."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import CursorError
from smalti.order.mixture.planning import StreamWeight
from tests.order.mixtures import changing, weights_at

STREAMS = [[6, 6], [6], [4]]
"""Ids 0 to 11, 12 to 17, 18 to 21."""


def proportions(*values):
    return tuple(StreamWeight(proportion=value) for value in values)


def chosen(*counts):
    return tuple(StreamWeight(choose=count) for count in counts)


def run_of(*history, streams=STREAMS, **options):
    return changing(streams, *history, **options)


def ids_of(run, epoch, *, shuffle=True):
    plan = run.plan(epoch, canonical_nodes=2, shuffle_block_size=5, shuffle=shuffle)
    return plan.sample_ids(0, len(plan)).tolist()


def by_stream(ids):
    return [sum(low <= sample < high for sample in ids) for low, high in ((0, 12), (12, 18), (18, 22))]


def test_golden_order_of_a_change_in_version_1():
    """22 samples; from position 8 on equal parts, from 15 on none of the first stream."""
    run = run_of(
        weights_at(0, 0, proportions(3, 2, 1), 22),
        weights_at(0, 8, proportions(1, 1, 1), 22),
        weights_at(0, 15, proportions(0, 1, 1), 22),
    )
    assert ids_of(run, 0) == [5, 8, 21, 15, 18, 7, 4, 6, 1, 19, 4, 18, 8, 16, 5, 14, 19, 16, 21, 17, 18, 12]
    assert ids_of(run, 1) == [19, 19, 20, 18, 19, 13, 18, 20, 18, 21, 21, 17, 20, 15, 13, 14, 12, 16, 14, 16, 15, 17]


def test_a_change_keeps_the_samples_read_and_divides_the_rest_by_the_new_weights():
    """24 samples as 12, 6 and 6; after 10 of them 14 are left: with 3 : 3 : 1 they are 6, 6 and 2."""
    old, new = weights_at(0, 0, proportions(2, 1, 1), 24), weights_at(0, 10, proportions(3, 3, 1), 24)
    before, after = ids_of(run_of(old), 0), ids_of(run_of(old, new), 0)
    assert by_stream(before) == [12, 6, 6]
    assert after[:10] == before[:10]
    assert by_stream(after[10:]) == [6, 6, 2]
    assert len(after) == 24


def test_the_rest_of_an_epoch_is_divided_by_the_weights_as_written():
    """Three equal streams and an epoch of 4, of which 3 remain: one of each, although 4 were 2, 1 and 1."""
    run = run_of(
        weights_at(0, 0, (StreamWeight(),) * 4, 4),
        weights_at(0, 1, proportions(0, 0.1, 0.1, 0.1), 4),
        streams=[[2], [2], [2], [2]],
    )
    assert sorted(sample // 2 for sample in ids_of(run, 0)[1:]) == [1, 2, 3]


def test_the_epochs_after_a_change_take_what_the_new_weights_say():
    run = run_of(weights_at(0, 0, proportions(2, 1, 1), 24), weights_at(1, 10, proportions(1, 0, 1), 24))
    assert by_stream(ids_of(run, 1)[:10]) == by_stream(
        ids_of(run_of(weights_at(0, 0, proportions(2, 1, 1), 24)), 1)[:10]
    )
    assert [by_stream(ids_of(run, epoch)) for epoch in (2, 3)] == [[12, 0, 12]] * 2


def test_each_stream_continues_where_the_planned_draws_ended():
    """One stream of 12, 4 in each epoch; 6 from epoch 2 on. Circle: 4 4 6 6 | 4 ..., unshuffled."""
    run = run_of(
        weights_at(0, 0, chosen(4)),
        weights_at(2, 0, chosen(6)),
        weights_at(4, 0, chosen(4)),
        streams=[[12]],
    )
    circle = [ids_of(run, epoch, shuffle=False) for epoch in range(6)]
    assert [len(ids) for ids in circle] == [4, 4, 6, 6, 4, 4]
    laid = [sample for ids in circle for sample in ids]
    assert laid[:12] == [*circle[0], *circle[1], *circle[2][:4]]
    assert set(laid[:12]) == set(range(12))
    assert set(laid[12:24]) == set(range(12))


def test_unread_planned_samples_are_drawn_again_only_after_all_others():
    """12 samples in epochs of 6, changed at 3: the 3 samples not read come on the circle's next turn."""
    weights = proportions(1)
    unchanged = run_of(weights_at(0, 0, weights, 6), streams=[[12]])
    run = run_of(weights_at(0, 0, weights, 6), weights_at(0, 3, weights, 6), streams=[[12]])
    left_out = set(ids_of(unchanged, 0)[3:])
    first, second, third = (ids_of(run, epoch) for epoch in range(3))
    assert set(first[:3]) | left_out == set(ids_of(unchanged, 0))
    rest, turn = first[3:], set(ids_of(unchanged, 1))
    assert set(rest) < turn, "the next ones of the circle"
    assert left_out <= set(second) | set(third)
    planned = Counter([*ids_of(unchanged, 0), *rest, *second, *third])
    assert max(planned.values()) - min(planned.values()) <= 1


@settings(max_examples=25)
@given(st.data())
@pytest.mark.slow
def test_planned_draws_stay_balanced_over_any_changes(data):
    size = data.draw(st.integers(2, 40))
    values = st.tuples(*[st.integers(0, 5)] * 3).filter(any).map(lambda each: proportions(*each))
    places = data.draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, size - 1)), unique=True, max_size=5).map(sorted)
    )
    history = [weights_at(0, 0, data.draw(values), size)]
    history += [weights_at(*place, data.draw(values), size) for place in places if place != (0, 0)]
    planned = Counter()
    for epoch in range(5):
        for number in range(1, len(history) + 1):
            if number == len(history) or history[number].epoch >= epoch:
                here = [each for each in history[:number] if each.epoch == epoch and each.samples]
                begin = here[-1].samples if here else 0
                last = number == len(history) or history[number].epoch > epoch
                if last or history[number].samples:  # a stretch is planned to the epoch's end, whatever is read of it
                    planned.update(ids_of(run_of(*history[:number]), epoch)[begin:])
                if last:
                    break
        for low, high in ((0, 12), (12, 18), (18, 22)):
            times = [planned[sample] for sample in range(low, high)]
            assert max(times) - min(times) <= 1


def test_a_stream_of_weight_0_gives_nothing_and_can_be_turned_on_and_off():
    run = run_of(
        weights_at(0, 0, proportions(1, 0, 1), 20),
        weights_at(0, 10, proportions(1, 1, 1), 20),
        weights_at(1, 0, proportions(1, 0, 0), 20),
    )
    first, second = ids_of(run, 0), ids_of(run, 1)
    assert by_stream(first[:10])[1] == 0
    assert by_stream(first[10:])[1] in (3, 4)
    assert by_stream(second) == [20, 0, 0]


def test_weights_that_return_give_another_order():
    """Unchanged weights, 40 of one stream, two turns: with the epoch's own seed, the stretch would begin alike."""
    weights, streams = proportions(1), [[40]]
    once = ids_of(run_of(weights_at(0, 0, weights, 40), streams=streams), 0)
    again = ids_of(run_of(weights_at(0, 0, weights, 40), weights_at(0, 1, weights, 40), streams=streams), 0)
    assert once[0] == again[0]
    assert once[:39] != again[1:]
    assert sum(one == other for one, other in zip(once[:39], again[1:], strict=True)) < 8


def test_fixed_sampling_begins_each_stretch_with_the_same_samples():
    run = run_of(
        weights_at(0, 0, proportions(1), 6),
        weights_at(0, 3, proportions(1), 6),
        streams=[[12]],
        sampling_method="fixed",
    )
    arc = set(ids_of(run, 1))
    assert len(arc) == 6
    assert set(ids_of(run, 0)[3:]) < arc


@pytest.mark.parametrize("batching", ["per_stream", "stratified"])
def test_the_rest_of_an_epoch_is_made_of_whole_batches_from_the_change_on(batching):
    """Batches of 4, changed after 2 of them: of one stream each, or 2 and 2, except for the remaining samples."""
    run = run_of(
        weights_at(0, 0, proportions(1, 3), 32),
        weights_at(0, 8, proportions(1, 1), 32),
        streams=[[20], [20]],
        batching_method=batching,
        global_batch=4,
    )
    ids = ids_of(run, 0)
    second = [sum(sample >= 20 for sample in ids[begin : begin + 4]) for begin in range(0, 32, 4)]
    assert second[:2] == {"per_stream": second[:2], "stratified": [3, 3]}[batching]
    assert set(second[:2]) <= {"per_stream": {0, 4}, "stratified": {3}}[batching]
    assert sorted(second[2:]) == {"per_stream": [0, 0, 0, 4, 4, 4], "stratified": [2] * 6}[batching]


def test_any_part_of_an_epoch_with_a_change_can_be_looked_up_alone():
    run = run_of(weights_at(0, 0, proportions(2, 1, 1), 24), weights_at(0, 10, proportions(1, 1, 1), 24))
    whole = ids_of(run, 0)
    for begin in range(25):
        plan = run.plan(0, canonical_nodes=2, shuffle_block_size=5)
        assert len(plan) == 24
        assert plan.sample_ids(begin, 24).tolist() == whole[begin:]


def test_a_change_of_size_inside_an_epoch_is_refused_with_both_sizes():
    with pytest.raises(
        CursorError, match=r"at sample 5 of epoch 2: an epoch has 22 .* and 30 .*`epoch_size=22`"
    ) as caught:
        run_of(weights_at(0, 0, proportions(1, 1, 1)), weights_at(2, 5, proportions(1, 1, 1), 30))
    assert (caught.value.saved, caught.value.found) == (22, 30)


def test_at_an_epochs_start_the_size_may_change():
    run = run_of(weights_at(0, 0, proportions(1, 1, 1)), weights_at(2, 0, chosen(5, 0, 30)))
    assert [run.epoch_size(epoch) for epoch in range(4)] == [22, 22, 35, 35]


def test_a_change_beyond_the_epochs_end_is_refused():
    with pytest.raises(ValueError, match="position 22 of an epoch of 22"):
        run_of(weights_at(0, 0, proportions(1, 1, 1), 22), weights_at(0, 22, proportions(1, 1, 1), 22))


@pytest.mark.slow
def test_ten_thousand_changes_are_planned_without_going_through_all_for_each():
    """As many as a year of hourly changes: quadratic time would be minutes."""
    weights = [proportions(1, 2, 3), proportions(3, 2, 1)]
    history = [weights_at(0, 0, weights[0], 22)]
    history += [weights_at(1 + n // 20, 1 + n % 20, weights[n % 2], 22) for n in range(10_000)]
    assert len(ids_of(run_of(*history), 500)) == 22


def test_more_copies_of_a_stream_than_can_be_planned_are_refused_before_memory_is_taken():
    run = run_of(weights_at(0, 0, chosen(0, 1 << 60)), streams=[[5], [5, 5]], seed=1)
    with pytest.raises(ValueError, match="stream 1, which has 10 in 2 shards: 115292150460684697 copies of each"):
        run.plan(0, canonical_nodes=4)
