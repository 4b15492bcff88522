"""The first errors that a newcomer meets: each belongs to the error tree, and says what to write instead."""

import pytest

from smalti import MDSWriter
from smalti.cache import CacheOptions
from smalti.errors import ArgumentError, ArgumentTypeError, SampleIndexError, SchemaError, SmaltiError, StoreNotFound
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("first") / "root", 20))


def loaded(root, **options):
    return StreamingDataLoader(StreamingDataset(remote=root), **{"batch_size": 4, **options})


MISTAKES = {
    "no batch size for a loop over the dataset": (
        lambda root: next(iter(StreamingDataset(remote=root))),
        ArgumentError,
        "or use StreamingDataLoader(dataset, batch_size=...)",
    ),
    "no batch size for a loader": (lambda root: loaded(root, batch_size=None), ArgumentError, "`batch_size` is needed"),
    "a batch size of 0": (lambda root: loaded(root, batch_size=0), ArgumentError, "from 1 to 2147483647, found 0"),
    "a batch size of 10^30": (lambda root: loaded(root, batch_size=10**30), ArgumentError, "from 1 to 2147483647"),
    "workers as a text": (lambda root: loaded(root, num_workers="2"), ArgumentError, "found '2'"),
    "fewer than no workers": (lambda root: loaded(root, num_workers=-1), ArgumentError, "a whole number from 0"),
    "shuffle at the loader": (lambda root: loaded(root, shuffle=True), ArgumentError, "give it `shuffle=True`"),
    "a list as dataset": (lambda _: StreamingDataLoader([1], 2), ArgumentTypeError, "torch's own DataLoader"),
    "shuffle as a text": (
        lambda root: StreamingDataset(remote=root, shuffle="no"),
        ArgumentTypeError,
        "`shuffle` must be True or False, found 'no'",
    ),
    "a transform that is none": (
        lambda root: StreamingDataset(remote=root, transform=3),
        ArgumentTypeError,
        "`transform` must be a function, found 3",
    ),
    "options of a store as a text": (
        lambda root: StreamingDataset(remote=root, storage_options="key=SECRET"),
        ArgumentTypeError,
        'must be a mapping such as {"key": "value"}, found str',
    ),
    "a deadline as a text": (
        lambda root: StreamingDataset(remote=root, cache=CacheOptions(download_timeout="long")),
        ArgumentError,
        "a number of seconds above 0, found 'long'",
    ),
    "no address": (lambda _: StreamingDataset(), ArgumentError, "`remote` is needed"),
    "one column as a text": (
        lambda root: StreamingDataset(remote=root, columns="id"),
        ArgumentTypeError,
        "write ['id']",
    ),
    "a sample behind the last one": (
        lambda root: StreamingDataset(remote=root)[20],
        SampleIndexError,
        "it has samples 0 to 19",
    ),
    "a split of a set without splits": (
        lambda root: len(StreamingDataset(remote=root, split="trian")),
        StoreNotFound,
        "has no splits, and no folder 'trian' with a shard set of its own: leave `split` out",
    ),
    "the name of another program's type": (
        lambda root: MDSWriter(out=f"{root}-2", columns={"id": "integer"}),
        SchemaError,
        "did you mean 'int'?",
    ),
    "a misspelt encoding": (
        lambda root: MDSWriter(out=f"{root}-2", columns={"id": "jpg"}),
        SchemaError,
        "did you mean 'jpeg'?",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_about_a_usual_mistake_says_what_to_write(root, mistake):
    call, kind, says = MISTAKES[mistake]
    with pytest.raises(SmaltiError) as caught:
        call(root)
    assert type(caught.value) is kind
    assert says in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_hundreds_of_threads_are_warned_of(root):
    with pytest.warns(UserWarning, match="`num_workers` is 5000"):
        loaded(root, num_workers=5000)
