"""Shard sets written to a volume and streamed by worker processes with their own login."""

import io
import pickle

import pytest

from smalti.cache import CacheOptions
from smalti.errors import SmaltiError
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import sample, write_set

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

ROOT = "dbfs:/Volumes/main/default/vol/set"


def read(loader):
    return {number: text for batch in loader for number, text in zip(batch["id"].tolist(), batch["text"], strict=True)}


@pytest.mark.parametrize(
    "start",
    ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.nightly)],  # both of the latter pickle the dataset
)
def test_workers_of_every_start_method_read_a_volume(files_api, tmp_path, start):
    """The parent has read first: workers must not inherit its connection."""
    write_set(ROOT, 60, compression="zstd")
    # A fork server may have started before the login was in the environment: its workers need the options.
    login = {"host": files_api.url, "token": files_api.token} if start == "forkserver" else None
    dataset = StreamingDataset(
        remote=ROOT,
        cache=CacheOptions(local=str(tmp_path / "cache")),
        shuffle=True,
        batch_size=7,
        storage_options=login,
    )
    assert dataset[0]["text"] == sample(0)["text"]
    files_api.log.clear()
    loader = StreamingDataLoader(dataset, num_workers=1, worker_kind="process", multiprocessing_context=start)
    assert read(loader) == {number: sample(number)["text"] for number in range(60)}
    assert any(path.endswith(".zstd") for verb, path in files_api.log if verb == "GET"), "workers fetched shards"


def test_a_dataset_carries_no_found_token_and_a_worker_names_the_missing_login(files_api, tmp_path, clean_environment):
    write_set(ROOT, 60)
    dataset = StreamingDataset(remote=ROOT, cache=CacheOptions(local=str(tmp_path / "cache")), batch_size=7)
    assert dataset[0]["id"] == 0
    data = io.BytesIO()
    pickle.dump(dataset, data)
    assert files_api.token.encode() not in data.getvalue()
    clean_environment.delenv("DATABRICKS_TOKEN")  # as on a host without it
    with pytest.raises(SmaltiError, match="Spark executors need them too"):
        read(StreamingDataLoader(pickle.loads(data.getvalue())))
