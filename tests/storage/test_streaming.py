"""Shard sets written to a store and streamed by a loader through the cache, also with a missing shard."""

import shutil

import pytest

from smalti.cache import CacheOptions
from smalti.errors import ShardNotFound
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import sample, write_set

pytestmark = [pytest.mark.torch, pytest.mark.process]


def read(loader):
    return {number: text for batch in loader for number, text in zip(batch["id"].tolist(), batch["text"], strict=True)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_on_s3_streams_through_the_cache(s3_server, s3_bucket, clean_environment, tmp_path, workers):
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    root = f"s3://{s3_bucket}/set"
    write_set(root, 60, compression="zstd")
    dataset = StreamingDataset(
        remote=root, cache=CacheOptions(local=str(tmp_path / "cache")), shuffle=True, batch_size=7
    )
    found = read(StreamingDataLoader(dataset, num_workers=workers))
    assert found == {number: sample(number)["text"] for number in range(60)}
    assert list((tmp_path / "cache").rglob("*.mds"))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_missing_shard_is_an_error_on_the_consumer_and_never_a_short_epoch(tmp_path, workers):
    """E5: MosaicML's reader ended the epoch early with 0 or 1 workers, and hung with 2."""
    root = write_set(tmp_path / "set", 60, compression="zstd")
    max(root.rglob("*.zstd")).unlink()
    dataset = StreamingDataset(
        remote=str(root), cache=CacheOptions(local=str(tmp_path / "cache")), shuffle=True, batch_size=7
    )
    with pytest.raises(ShardNotFound, match="shard"):
        read(StreamingDataLoader(dataset, num_workers=workers))


def test_a_cache_that_is_deleted_between_epochs_is_filled_again(tmp_path):
    root = write_set(tmp_path / "set", 60, compression="zstd")
    cache = tmp_path / "cache"
    first = StreamingDataset(remote=str(root), cache=CacheOptions(local=str(cache)), batch_size=7)
    everything = read(StreamingDataLoader(first))
    first.close()
    shutil.rmtree(cache)
    second = StreamingDataset(remote=str(root), cache=CacheOptions(local=str(cache)), batch_size=7)
    assert read(StreamingDataLoader(second)) == everything
