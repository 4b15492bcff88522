"""torchdata's StatefulDataLoader over a StreamingDataset: exact, for the same processes and workers."""

import pytest

from smalti.errors import CursorError
from smalti.torch import StreamingDataset
from smalti.world import World
from tests.combinations import each_value_once
from tests.frameworks.page import ids_of as page_ids
from tests.frameworks.page import run_section
from tests.shard_sets import write_set

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

from examples import stateful_dataloader as example  # noqa: E402 - only where it is installed

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 calls it
]

SIZE = 50
WORKERS = [0, 2]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("stateful") / "root", SIZE))


def ids_of(samples):
    return [sample["id"] for sample in samples]


def loader_of(root, workers, *, epoch=0, batch=4, world=None, **options):
    dataset = StreamingDataset(remote=root, batch_size=batch, shuffle=True, world=world)
    dataset.set_epoch(epoch)  # worker processes cannot know it otherwise
    return stateful_dataloader.StatefulDataLoader(
        dataset, batch_size=batch, num_workers=workers, collate_fn=ids_of, **options
    )


@pytest.mark.parametrize(("workers", "taken"), each_value_once(WORKERS, [0, 1, 5, 12]))
def test_the_rest_of_the_epoch_follows(root, workers, taken):
    whole = list(loader_of(root, workers))
    first = loader_of(root, workers)
    batches = iter(first)
    before = [next(batches) for _ in range(taken)]
    resumed = loader_of(root, workers)
    resumed.load_state_dict(first.state_dict())
    assert before + list(resumed) == whole
    assert {number for batch in whole for number in batch} == set(range(SIZE))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.slow
def test_a_run_may_be_stopped_repeatedly(root, workers):
    whole, state, seen = list(loader_of(root, workers)), None, []
    for _ in range(5):
        loader = loader_of(root, workers)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        seen += [next(batches) for _ in range(2)]
        state = loader.state_dict()
    assert seen == whole[:10]


def test_a_later_epoch_resumes_in_that_epoch_and_continues_with_the_next(root):
    second, third = list(loader_of(root, 0, epoch=1)), list(loader_of(root, 0, epoch=2))
    first = loader_of(root, 0, epoch=1)
    batches = iter(first)
    before = [next(batches) for _ in range(3)]
    resumed = loader_of(root, 0)
    resumed.load_state_dict(first.state_dict())
    assert before + list(resumed) == second
    assert list(resumed) == third


def test_a_state_between_snapshots_is_exact_too(root):
    whole = list(loader_of(root, 2))
    first = loader_of(root, 2, snapshot_every_n_steps=4)
    batches = iter(first)
    before = [next(batches) for _ in range(7)]
    resumed = loader_of(root, 2, snapshot_every_n_steps=4)
    resumed.load_state_dict(first.state_dict())
    assert before + list(resumed) == whole


@pytest.mark.slow
def test_two_ranks_read_every_sample_once_over_both_lives(root):
    lives = []
    for rank in range(2):
        options = {"world": World.flat(rank, 2), "epoch": 1}
        first = loader_of(root, 2, **options)
        batches = iter(first)
        before = [next(batches) for _ in range(3)]
        resumed = loader_of(root, 2, **options)
        resumed.load_state_dict(first.state_dict())
        lives.append(before + list(resumed))
        assert lives[rank] == list(loader_of(root, 2, **options))
    assert [len(batches) for batches in lives] == [7, 7]
    assert {number for batches in lives for batch in batches for number in batch} == set(range(SIZE))


@pytest.mark.parametrize(
    ("change", "what"),
    [({"world": World.flat(0, 2)}, "num_ranks 1, and here it is 2"), ({"batch": 5}, "batch_size 4, and here it is 5")],
)
def test_other_ranks_or_batch_sizes_are_refused_with_advice(root, change, what):
    first = loader_of(root, 0)
    next(iter(first))
    resumed = loader_of(root, 0, **change)
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(CursorError, match=rf"saved with {what}.*smalti\.StreamingDataLoader holds for any"):
        next(iter(resumed))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.slow
def test_the_state_of_a_finished_epoch_resumes_with_the_next(root, workers):
    first = loader_of(root, workers)
    list(first)
    resumed = loader_of(root, workers, epoch=1)
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) == list(loader_of(root, workers, epoch=1))


def test_the_example_runs(capsys):
    example.main()
    assert "6 + 7 steps, 50 of 50 samples seen" in capsys.readouterr().out


def test_the_page_runs_as_it_is_printed(tmp_path):
    names = run_section("StatefulDataLoader", tmp_path)
    assert len(names["first"]) == 6
    assert set(page_ids(names["first"] + names["rest"])) == set(range(SIZE))


def test_the_pages_loader_of_torch_runs_as_it_is_printed(tmp_path):
    names = run_section("Torch's own DataLoader", tmp_path)
    whole = names["DataLoader"](StreamingDataset(remote=names["url"], batch_size=4, shuffle=True), batch_size=4)
    assert page_ids(names["rest"]) == page_ids(whole)[24:]
    assert set(page_ids(names["second_epoch"])) == set(range(SIZE))
