"""H4, H5: a state of other data is refused with a remedy that works; any damaged state is refused."""

import json
import random
import shutil

import pytest

from smalti import Stream
from smalti.errors import CursorError, SmaltiError
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.faults.corrupted_states import mutated
from tests.faults.world_sets import FIRST_EPOCH, KNOWN, write_known_set
from tests.reading_options import grouped
from tests.seeds import sized
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


def loader_of(root, **options):
    return StreamingDataLoader(
        StreamingDataset(remote=str(root), shuffle=True, **grouped(tail="short", **options)),
        4,
    )


def ids(batches):
    return [number for batch in batches for number in batch["id"].tolist()]


def read_one_step(root, **options):
    """Take one step of 4 in the newest version, and return the state after it and the rest of that epoch."""
    loader = loader_of(root, **options)
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    return state, ids(batches)


# ---------------------------------------------------------------------- H4: other data


def publish_larger_version(root):
    write_set(root, 31, exist_ok=True)


def rewrite_in_other_shards(root):
    write_set(root, 30, exist_ok=True, size_limit=500)


def replace_by_another_set(root):
    shutil.rmtree(root)
    write_set(root, 29)


@pytest.mark.parametrize("change", [publish_larger_version, rewrite_in_other_shards, replace_by_another_set])
def test_h4_a_state_of_changed_data_is_refused_with_both_values_and_the_remedy(tmp_path, change):
    root = write_set(tmp_path / "set", 30)
    then = StreamingDataset(remote=str(root)).manifest.digest
    state, _ = read_one_step(root)
    change(root)
    now = StreamingDataset(remote=str(root)).manifest.digest
    loader = loader_of(root)
    with pytest.raises(CursorError, match=r"`version=`.*to begin an epoch anew.*`set_epoch`") as caught:
        loader.load_state_dict(state)
    assert (caught.value.what, caught.value.saved, caught.value.found) == ("data set digest", then, now)
    assert then in str(caught.value)
    assert now in str(caught.value)


def test_h4_the_version_of_the_state_continues_exactly(tmp_path):
    root = write_set(tmp_path / "set", 30)
    state, rest = read_one_step(root)
    publish_larger_version(root)
    loader = loader_of(root, version=1)
    loader.load_state_dict(state)
    assert ids(loader) == rest
    assert len(rest) == 26


def test_h4_an_epoch_of_the_new_data_can_be_begun_after_the_refusal(tmp_path):
    root = write_set(tmp_path / "set", 30)
    state, _ = read_one_step(root)
    publish_larger_version(root)
    loader = loader_of(root)
    with pytest.raises(CursorError):
        loader.load_state_dict(state)
    loader.streaming_dataset.set_epoch(2)
    assert sorted(ids(loader)) == list(range(31))
    assert loader.state_dict()["epoch"] == 3


def test_h4_a_running_epoch_keeps_its_version_to_the_end(tmp_path):
    root = write_set(tmp_path / "set", 30)
    loader = loader_of(root)
    batches = iter(loader)
    first = next(batches)["id"].tolist()
    publish_larger_version(root)
    assert sorted(first + ids(batches)) == list(range(30))
    assert sorted(ids(loader)) == list(range(30)), "and so do its next epochs"


def test_h4_a_closed_dataset_keeps_its_version_when_used_again(tmp_path):
    root = write_set(tmp_path / "set", 30)
    state, rest = read_one_step(root)
    loader = loader_of(root)
    loader.load_state_dict(state)
    loader.streaming_dataset.close()
    publish_larger_version(root)
    assert ids(loader) == rest
    assert loader.streaming_dataset.manifest.version == 1


def test_h4_a_closed_dataset_refuses_other_data_when_used_again(tmp_path):
    root = write_set(tmp_path / "set", 30)
    state, _ = read_one_step(root)
    loader = loader_of(root)
    loader.load_state_dict(state)
    loader.streaming_dataset.close()
    replace_by_another_set(root)
    with pytest.raises(SmaltiError):
        list(loader)


# ---------------------------------------------------------------------- H5: broken states

MIXED = {
    "mixture": {},
    "stratified": {"batching_method": "stratified"},
    "per_stream": {"batching_method": "per_stream"},
    "device_per_stream": {"batching_method": "device_per_stream"},
    "fixed": {"sampling_method": "fixed", "sampling_granularity": 2, "epoch_size": 30},
    "changed": {"change_weights": True},
}
FORMS = ["plain", *MIXED]
CASES_EACH = sized(1600, part=10)  # 7 forms: 11,200 states with fresh seeds


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_known_set(tmp_path_factory.mktemp("known") / "root")


def dataset_of(root, form):
    where = {"remote": root}
    if form in MIXED:
        streams = [Stream(remote=root, proportion=2), Stream(remote=f"{root}/1", proportion=1)]
        where = {"streams": streams, "num_canonical_nodes": 2, **MIXED[form]}
    return StreamingDataset(batch_size=3, shuffle=True, **grouped(**where))


def valid_state(root, form):
    dataset = dataset_of(root, form)
    batches = dataset.batches()
    next(batches), next(batches)
    state = json.loads(json.dumps(dataset.state_dict(6)))
    batches.close()
    return state


def outcome(dataset, other, state):
    """Return `refused`, or `read` if the cursor is in the epoch, the next step is read and its state loads again."""
    try:
        dataset.load_state_dict(state)
    except CursorError:
        return "refused"
    cursor = dataset.cursor()
    assert type(cursor.samples) is type(cursor.epoch) is int
    assert 0 <= cursor.samples < cursor.epoch_size
    assert cursor.epoch >= 0
    batches = dataset.batches()
    read = next(batches)["id"].tolist()
    batches.close()
    assert 1 <= len(read) <= 3
    assert set(read) <= set(range(22))
    other.load_state_dict(json.loads(json.dumps(dataset.state_dict(3))))
    return "read"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_h5_a_mutated_state_is_either_refused_or_valid(root, form):
    sound, rng = valid_state(root, form), random.Random(form)
    dataset, other = dataset_of(root, form), dataset_of(root, form)
    found = {"refused": 0, "read": 0}
    for case in range(CASES_EACH):
        state = mutated(sound, rng)
        try:
            found[outcome(dataset, other, state)] += 1
            dataset.load_state_dict(sound)
            other.load_state_dict(sound)
        except Exception as fault:
            raise AssertionError(f"case {case}: {str(state)[:1000]}") from fault
    assert found["refused"] > CASES_EACH // 4
    assert found["read"] > CASES_EACH // 80, "or the mutations prove little about what is accepted"


def test_h5_a_refused_state_changes_nothing(root):
    loader = StreamingDataLoader(
        StreamingDataset(
            remote=root,
            **grouped(tail="short", **KNOWN),
        ),
        4,
    )
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(CursorError):
        loader.load_state_dict(state | {"sample_in_epoch": -5})
    assert loader.state_dict() == state
    assert ids(loader) == FIRST_EPOCH[4:]
