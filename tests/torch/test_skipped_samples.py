"""Skipped samples under loaders: the same batches, errors, states and ledgers with every kind of workers."""

import json

import pytest
from torch.utils.data import DataLoader

from smalti.errors import SkipLimitExceeded
from smalti.images import DecodeImages
from smalti.ledger import check_ledger, read_sample_order
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.loader import open_ledger
from smalti.world import World
from tests.bad_sets import write_bad_set
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

COUNT, BAD = 45, {3, 9, 10, 27, 44}
WAYS = [
    pytest.param({}, id="alone"),
    pytest.param({"num_workers": 2, "worker_kind": "thread"}, id="threads"),
    pytest.param({"num_workers": 2, "worker_kind": "process"}, id="processes", marks=pytest.mark.process),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_bad_set(tmp_path_factory.mktemp("bad") / "root", COUNT, BAD)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("whole") / "root", COUNT))


def opened(root, **options):
    return StreamingDataset(
        remote=root, batch_size=4, shuffle=True, include_ids=True, world=World(), **({"on_error": "skip"} | options)
    )


def rows(batch):
    return list(zip(*(batch[name].tolist() for name in ("id", "_sample_id", "_position")), strict=True))


@pytest.fixture(scope="module")
def epoch(root):
    """The batches of an epoch as the dataset alone reads them."""
    return [rows(batch) for batch in opened(root).batches()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reads", ["columns", "samples", "collated"])
def test_a_run_that_skips_is_the_same_resumes_and_is_proven(root, epoch, tmp_path, way, reads):
    """Five steps, then a resume from there to the epoch's end; the ledger names every planned sample."""
    dataset = {"transform": dict} if reads == "samples" else {}
    options = way | ({"collate_fn": lambda samples: samples} if reads == "collated" else {})
    found, state = [], None
    for stop in (5, None):
        loader = StreamingDataLoader(opened(root, **dataset), ledger=tmp_path, **options)
        if state is not None:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader, 1):
            found.append(
                [(each["id"], each["_sample_id"], each["_position"]) for each in batch]
                if reads == "collated"
                else rows(batch)
            )
            if number == stop:
                break
        state = loader.state_dict()
    assert found == epoch
    report = check_ledger(tmp_path)
    assert report.ok, report.problems
    (of_epoch,) = report.epochs
    assert (of_epoch.taken, of_epoch.skipped, of_epoch.expected, of_epoch.repeats) == (40, 5, 45, 3)
    assert {each["sample_id"] for each in report.skipped} == BAD
    assert all("column 'meta': not a value of json" in each["cause"] for each in report.skipped)
    assert read_sample_order(tmp_path)[0] == [
        sample for batch in epoch for _, sample, position in batch if position >= 0
    ]


@pytest.mark.parametrize("way", WAYS)
def test_the_batch_with_one_too_many_raises_and_the_state_is_before_it(root, epoch, way):
    counts = [sum(position < 0 for _, _, position in batch) for batch in epoch]
    last = next(number for number in range(12) if sum(counts[: number + 1]) > 2)
    loader, taken = StreamingDataLoader(opened(root, max_skipped=2), **way), []
    with pytest.raises(SkipLimitExceeded, match=r"`max_skipped` allows 2\. The first are: sample "):
        taken.extend(rows(batch) for batch in loader)
    assert taken == epoch[:last]
    assert loader.state_dict()["sample_in_epoch"] == 4 * last


def test_all_samples_of_a_step_may_fail(whole):
    """Every rank still takes all steps: 45 samples in 4 steps of 3 x 4, however many can be read."""

    def fail(sample):
        if sample["id"] != 7:
            raise ValueError("no good")
        return {"id": sample["id"]}

    for rank in range(3):
        dataset = StreamingDataset(
            remote=whole, world=World.flat(rank, 3), transform=fail, include_ids=True, on_error="skip", max_skipped=0.99
        )
        batches = [rows(batch) for batch in StreamingDataLoader(dataset, 4)]
        assert [len(batch) for batch in batches] == [4] * 4
        assert {row[:2] for batch in batches for row in batch} == {(7, 7)}


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_has_the_same_batches_and_counts(root, epoch, workers):
    dataset = opened(root)
    _ = dataset.size  # opened here, the workers share its counters
    found = [rows(batch) for batch in DataLoader(dataset, batch_size=4, num_workers=workers)]
    in_turn = [(one, sample, position) for batch in epoch for one, sample, position in batch]
    assert sorted(row for batch in found for row in batch) == sorted(in_turn)
    assert found == epoch
    assert dataset.stats().samples_skipped == 5
    if not workers:  # torch waits five seconds for each worker of an iteration that failed
        with pytest.raises(SkipLimitExceeded):
            list(DataLoader(opened(root, max_skipped=0), batch_size=4))


def test_states_of_samples_resume_exactly_among_skipped_ones(root):
    """The iterator's own state, as torchdata saves it, at every place of an epoch."""

    def read(samples):
        return [(each["_sample_id"], each["_position"]) for each in samples]

    whole = read(opened(root))
    for place in range(0, len(whole), 5):
        iterator = iter(opened(root))
        for _ in range(place):
            next(iterator)
        other = iter(opened(root))
        other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert read(other) == whole[place:]


@pytest.mark.parametrize("mode", ["steps", "digest"])
def test_both_modes_of_a_ledger_prove_what_was_skipped(root, tmp_path, mode):
    dataset = opened(root)
    for _ in StreamingDataLoader(dataset, ledger=open_ledger(tmp_path, World(), mode)):
        pass
    sizes = dataset.stream.shard_sizes

    def plan(cursor):
        from smalti.dataset.order import window_plan

        return window_plan(cursor, [sizes])

    report = check_ledger(tmp_path, plan)
    assert report.ok, report.problems
    assert (report.epochs[0].taken, report.epochs[0].skipped, report.epochs[0].repeats) == (40, 5, 3)
    assert sorted(each["sample_id"] for each in report.skipped) == sorted(BAD)


def test_images_that_threads_decode_are_skipped_too(tmp_path):
    import io

    from PIL import Image

    from smalti.writer import MDSWriter

    stored = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stored, "jpeg")
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", "image": "bytes"}) as writer:
        for number in range(COUNT):
            writer.write({"id": number, "image": stored.getvalue()[: 50 if number in BAD else None]})
    decode = DecodeImages(size=8, columns=("image",), num_threads=2)
    loader = StreamingDataLoader(opened(str(tmp_path / "set"), transform=decode), num_workers=2, worker_kind="thread")
    batches = list(loader)
    assert {tuple(batch["image"].shape) for batch in batches} == {(4, 8, 8, 3)}
    read = [sample for batch in batches for _, sample, position in rows(batch) if position >= 0]
    assert sorted(read) == sorted(set(range(COUNT)) - BAD)
