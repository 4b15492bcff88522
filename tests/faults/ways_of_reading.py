"""Reading a set of 60 samples from the fault store, as a user does, in all ways that there are."""

import atexit
import functools
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from smalti.errors import SmaltiError
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import sample, write_set

COUNT = 60
ORDER = {"shuffle": True, "shuffle_seed": 4, "batch_size": 6}
SHARD = "shard.00003"
ROOT = "s3://bucket/set"
DEADLINE = 90.0
"""Seconds in which an epoch ends one way or the other; far more than any takes, far less than a hang."""


def way(number, kind, *marks):
    """So many workers of a kind."""
    return pytest.param({"num_workers": number, "worker_kind": kind}, id=f"{kind}-{number}", marks=marks)


FEW_WAYS = [
    pytest.param({}, id="alone"),
    way(2, "thread", pytest.mark.slow),
    way(2, "process", pytest.mark.process, pytest.mark.slow),
]
"""One consumer, two threads, two processes."""
WAYS = [
    *FEW_WAYS,
    *(way(number, "thread", pytest.mark.slow) for number in (1, 4)),
    *(way(number, "process", pytest.mark.process, pytest.mark.slow) for number in (1, 4)),
]


def crossed(ways, values):
    """Every way with the first value, and every other value with the first way.

    What a reply is like is the store's matter, and what becomes of an error that of those who read: not each with each.
    """
    pairs = [(way, values[0]) for way in ways] + [(ways[0], value) for value in values[1:]]
    return [
        pytest.param(
            *way.values,
            *(value if isinstance(value, tuple) else (value,)),
            id=f"{way.id}-{'-'.join(map(str, value)) if isinstance(value, tuple) else value}",
            marks=(*way.marks, *((pytest.mark.slow,) if value != values[0] else ())),
        )
        for way, value in pairs
    ]


@functools.cache
def written(**options):
    """A set on this disk, written once; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="smalti-e-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_set(folder / "set", COUNT, **options)


def serve(faults, **options):
    """Puts a set into the store, and empties the log."""
    faults.put_folder(written(**options), "set/")
    return faults


def open_set(tmp_path, *, root=ROOT, timeout=20.0, retry=3, store=None, **options):
    """The dataset, with a cache of its own and deadlines that a busy machine meets."""
    return StreamingDataset(
        remote=root,
        local=str(tmp_path / "cache"),
        **ORDER,
        download_timeout=timeout,
        download_retry=retry,
        storage_options={"request_timeout": timeout, **(store or {})},
        **options,
    )


def read(loader, found=None):
    """What one epoch delivers: ids and texts, in order; into `found`, which keeps them when the epoch fails."""
    begin, found = time.monotonic(), [] if found is None else found
    for batch in loader:
        found += zip(batch["id"].tolist(), batch["text"], strict=True)
    assert time.monotonic() - begin < DEADLINE
    return found


@functools.cache
def expected(**options):
    """The epoch that a reader without faults has, whose samples are those that were written."""
    whole = StreamingDataset(remote=str(written(**options)), local=str(written(**options).parent / "cache"), **ORDER)
    found = read(StreamingDataLoader(whole))
    assert sorted(found) == [(number, sample(number)["text"]) for number in range(COUNT)]
    return found


def assert_exact(dataset, way, **options):
    """One epoch, every sample in its place."""
    assert read(StreamingDataLoader(dataset, **way)) == expected(**options)


def fails(dataset, way, error, match="shard"):
    """An epoch that ends with this error before the deadline; its loader, and what it had delivered."""
    begin, taken, loader = time.monotonic(), [], StreamingDataLoader(dataset, **way)
    with pytest.raises(error, match=match) as caught:
        read(loader, taken)
    assert time.monotonic() - begin < DEADLINE
    assert isinstance(caught.value, SmaltiError)
    return loader, taken


def assert_goes_on(loader, taken, **options):
    """The rest of an epoch that failed, from the state that the loader has then."""
    loader.load_state_dict(loader.state_dict())
    assert taken + read(loader) == expected(**options)


def assert_every_consumer_fails(dataset, error, number):
    """Four threads that ask for one sample: each has the error, none waits for ever."""
    raised = []

    def ask():
        try:
            raised.append(dataset[number])
        except Exception as found:
            raised.append(found)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert [type(found) for found in raised] == [error] * 4


def cached(tmp_path):
    """Names of all files in the cache."""
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def remove_cache(tmp_path):
    """An empty cache."""
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def key_of(root, number):
    """The key of a shard below its set, compressed or not."""
    return next(path.relative_to(root).as_posix() for path in root.rglob(f"shard.{number:05}.*") if path.is_file())
