"""Reading a set of 60 samples from the fault store as users do, with loader workers of each kind and number."""

import atexit
import functools
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from smalti.cache import CacheOptions
from smalti.errors import SmaltiError
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.combinations import nightly
from tests.reading_options import grouped
from tests.shard_sets import sample, write_set

COUNT = 60
ORDER = {"shuffle": True, "shuffle_seed": 4, "batch_size": 6}
SHARD = "shard.00003"
ROOT = "s3://bucket/set"
DEADLINE = 280.0
"""Seconds in which an epoch must end; far more than any takes, far less than a hang."""


def way(number, kind, *marks):
    """Return a test parameter of so many workers of a kind."""
    return pytest.param({"num_workers": number, "worker_kind": kind}, id=f"{kind}-{number}", marks=marks)


FEW_WAYS = [
    pytest.param({}, id="alone"),
    way(2, "thread", pytest.mark.slow),
    way(2, "process", pytest.mark.process, pytest.mark.slow),
]
"""One consumer, two threads, two processes."""
WAYS = [
    *FEW_WAYS,
    *(way(number, "thread", pytest.mark.slow, pytest.mark.nightly) for number in (1, 4)),
    *(way(number, "process", pytest.mark.process, pytest.mark.slow, pytest.mark.nightly) for number in (1, 4)),
]


ALONE = [FEW_WAYS[0], *nightly(FEW_WAYS[1:])]
"""Of replies that a store's retries heal, so that no worker knows of them."""
ALONE_AND_PROCESSES = [FEW_WAYS[0], *nightly(FEW_WAYS[1:2]), FEW_WAYS[2]]
"""Of errors that arrive as others do, which threads raise in each of `FEW_WAYS`."""
ALONE_AND_THREADS = [*FEW_WAYS[:2], *nightly(FEW_WAYS[2:])]
"""Of what processes do and hand on as in the tests that run in each of `FEW_WAYS`."""


def crossed(ways, values):
    """Return test parameters: every way with the first value, and every other value with the first way.

    Replies are handled by the store and errors by the workers, so that not every combination is needed.
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
    """Write a set on this disk, once; it is removed at the end. Return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="smalti-e-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_set(folder / "set", COUNT, **options)


def serve(faults, **options):
    """Put a set into the store, and return the store."""
    faults.put_folder(written(**options), "set/")
    return faults


def open_set(tmp_path, *, root=ROOT, timeout=60.0, retry=3, store=None, **options):
    """Open the dataset, with a cache of its own and deadlines that a busy machine meets."""
    return StreamingDataset(
        remote=root,
        storage_options={"request_timeout": timeout, **(store or {})},
        **grouped(local=str(tmp_path / "cache"), download_retry=retry, download_timeout=timeout, **ORDER, **options),
    )


def read(loader, found=None):
    """Read an epoch, and return its ids and texts in order; those read before an error are in `found`."""
    begin, found = time.monotonic(), [] if found is None else found
    for batch in loader:
        found += zip(batch["id"].tolist(), batch["text"], strict=True)
    assert time.monotonic() - begin < DEADLINE
    return found


@functools.cache
def expected(**options):
    """Return the epoch as read without faults, after comparing its samples with those that were written."""
    whole = StreamingDataset(
        remote=str(written(**options)), cache=CacheOptions(local=str(written(**options).parent / "cache")), **ORDER
    )
    found = read(StreamingDataLoader(whole))
    assert sorted(found) == [(number, sample(number)["text"]) for number in range(COUNT)]
    return found


def assert_exact(dataset, way, **options):
    """Assert that an epoch has every sample in its position."""
    assert read(StreamingDataLoader(dataset, **way)) == expected(**options)


def assert_fails(dataset, way, error, match="shard"):
    """Assert that an epoch ends with this error before the deadline; return its loader and the samples read so far."""
    begin, taken, loader = time.monotonic(), [], StreamingDataLoader(dataset, **way)
    with pytest.raises(error, match=match) as caught:
        read(loader, taken)
    assert time.monotonic() - begin < DEADLINE
    assert isinstance(caught.value, SmaltiError)
    return loader, taken


def assert_resumes(loader, taken, **options):
    """Assert that an epoch that failed can be resumed from the state of its loader."""
    loader.load_state_dict(loader.state_dict())
    assert taken + read(loader) == expected(**options)


def assert_every_consumer_fails(dataset, error, number):
    """Assert that four threads that request one sample all get the error, and none hangs."""
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
    """Return the names of all files in the cache."""
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def remove_cache(tmp_path):
    """Remove all copies."""
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def key_of(root, number):
    """Return the key of a shard, compressed or not, relative to its set."""
    return next(path.relative_to(root).as_posix() for path in root.rglob(f"shard.{number:05}.*") if path.is_file())
