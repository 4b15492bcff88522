"""E11 without hashes: an object that is replaced while it is read is one version or the other, never a mixture."""

import warnings

import pytest

from smalti.cache import CacheOptions
from smalti.errors import StoreError
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter
from tests.faultstore import Toxic

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLES, SIZE = 144, 128 << 10
READERS = [
    pytest.param({}, id="streamed"),
    pytest.param({"default_fill_cache": False}, id="ranged"),
]
"""One request for the rest of an object, or one for every 8 MiB, by options of s3fs."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two sets of one shard of 18 MB each, of equal size, with different letters."""
    roots = {}
    for letter in "ab":
        roots[letter] = tmp_path_factory.mktemp("replaced") / letter
        with MDSWriter(out=str(roots[letter]), columns={"x": "str"}, size_limit=32 << 20, hashes=()) as writer:
            for _ in range(SAMPLES):
                writer.write({"x": letter * SIZE})
    return roots


def open_pair(faults, pair, tmp_path, reader, retry):
    """Return a dataset on the first set, and the key of the second one's shard."""
    faults.put_folder(pair["a"], "set/")
    faults.put_folder(pair["b"], "other/")
    other = next(path for path in pair["b"].rglob("*.mds"))
    dataset = StreamingDataset(
        remote="s3://bucket/set",
        cache=CacheOptions(local=str(tmp_path / "cache"), download_retry=retry, download_timeout=30.0),
        batch_size=8,
        storage_options=reader,
    )
    return dataset, "other/" + other.relative_to(pair["b"]).as_posix()


def letters(dataset):
    """Return for each sample the letters that occur in it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no hashes.*")
        return ["".join(sorted(set(text))) for batch in StreamingDataLoader(dataset) for text in batch["x"]]


def replacement(source, reader):
    """Return faults that replace the object after the first reply, which breaks off, or after the first range."""
    broken = [Toxic("reset_peer", key="set/*.mds", after=9 << 20, count=1)] if not reader else []
    return [*broken, Toxic("swap_body", key="set/*.mds", nth=2, count=1, source=source)]


@pytest.mark.parametrize("reader", READERS)
def test_e11_a_set_without_hashes_is_read_from_one_object_after_a_second_attempt(faults, pair, tmp_path, reader):
    dataset, source = open_pair(faults, pair, tmp_path, reader, retry=2)
    faults.plant(*replacement(source, reader))
    assert letters(dataset) == ["b"] * SAMPLES
    assert "swap_body" in [kind for entry in faults.log("GET", ".mds") for kind in entry.toxics]


@pytest.mark.parametrize("reader", READERS)
def test_e11_a_set_without_hashes_replaced_in_the_only_attempt_is_an_error(faults, pair, tmp_path, reader):
    dataset, source = open_pair(faults, pair, tmp_path, reader, retry=1)
    faults.plant(*replacement(source, reader))
    with pytest.raises(StoreError, match=r"shard 0 .*changed while it was read"):
        letters(dataset)
