"""Several shard sets opened as one run of samples with one cache."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from smalti import MDSWriter
from smalti.cache import CacheOptions
from smalti.errors import CursorError, FormatError, SchemaError, StoreNotFound, VersionNotFound
from smalti.stream import OpenStreams, Stream, StreamOptions, open_streams
from smalti.stream.shard_set import find_shard_set
from tests.shard_sets import sample, write_set

COUNTS = (23, 0, 40, 7)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return [str(write_set(folder / str(number), count)) for number, count in enumerate(COUNTS)]


def opened(roots, **options):
    return OpenStreams([StreamOptions(root, **options) for root in roots])


def where(sample_id):
    """Stream and id within it, by hand: 23, none, 40 and 7."""
    if sample_id < 23:
        return 0, sample_id
    return (2, sample_id - 23) if sample_id < 63 else (3, sample_id - 63)


def test_ids_count_over_all_streams_and_an_empty_one_takes_none(roots):
    streams = opened(roots)
    assert len(streams) == 70
    assert [streams.sample(number)["id"] for number in range(70)] == [where(number)[1] for number in range(70)]
    assert streams.stream_of(np.arange(70)).tolist() == [where(number)[0] for number in range(70)]


def test_a_batch_holds_samples_of_all_streams_in_the_order_asked_for(roots):
    ids = np.array([69, 0, 23, 22, 62, 63, 0, 40])
    batch = opened(roots).batch(ids)
    assert batch["id"].tolist() == [6, 0, 0, 22, 39, 0, 0, 17]
    assert batch["text"] == [sample(number)["text"] for number in batch["id"].tolist()]
    assert batch["vector"][:, 0].tolist() == batch["id"].tolist()


@pytest.mark.parametrize("bad", [-1, 70])
def test_an_id_outside_all_streams_is_refused(roots, bad):
    with pytest.raises(IndexError, match="which has 70: expected numbers from 0 on"):
        opened(roots).batch(np.array([3, bad]))


def test_streams_share_a_cache_and_shards_of_one_digest_are_fetched_once(roots, tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem

    store = MemoryFileSystem()
    for name in ("a", "b"):
        store.put(roots[2], f"/several-{name}", recursive=True)
    remote = [f"memory://several-{name}" for name in "ab"]
    local = str(tmp_path / "cache")
    streams = OpenStreams([StreamOptions(url, cache=CacheOptions(local=local)) for url in remote])
    batch = streams.batch(np.array([0, 79, 40, 39]))
    assert batch["id"].tolist() == [0, 39, 0, 39]
    streams.close()
    # One data set at two places is one digest: its shards are fetched once.
    assert len(list((tmp_path / "cache").rglob("*.mds"))) == 2
    apart = OpenStreams([StreamOptions(url, cache=CacheOptions(local=str(tmp_path / url[-1]))) for url in remote])
    assert apart.batch(np.array([0, 79]))["id"].tolist() == [0, 39]
    assert all(list((tmp_path / name).rglob("*.mds")) for name in "ab")


def test_each_stream_has_its_own_options(roots, tmp_path):
    packed = write_set(tmp_path / "packed", 12, compression="zstd")
    streams = OpenStreams(
        [
            StreamOptions(roots[0], cache=CacheOptions(download_retry=1, download_timeout=60.0)),
            StreamOptions(
                str(packed), cache=CacheOptions(local=str(tmp_path / "here"), keep_zip=True, download_retry=7)
            ),
        ]
    )
    assert [(each.sources[0].options.download_retry, each.sources[0].options.keep_zip) for each in streams.sets] == [
        (1, False),
        (7, True),
    ]
    assert streams.batch(np.array([23, 34]))["id"].tolist() == [0, 11]
    assert streams.sets[0].sources[0].options.download_timeout == 60.0


def test_options_that_a_stream_leaves_none_take_the_datasets_value():
    stream = Stream(remote="a", storage_options={"key": "own"})
    chosen = CacheOptions(download_retry=9, keep_zip=True, validate_hash="md5")
    options = stream.options(cache=chosen, split="train", storage_options={"key": "all"})
    assert options == StreamOptions("a", cache=chosen, split="train", storage_options={"key": "own"})


def test_missing_streams_are_named(roots, tmp_path):
    with pytest.raises(StoreNotFound, match="missing"):
        opened([roots[0], str(tmp_path / "missing")])
    with pytest.raises(VersionNotFound, match="9"):
        OpenStreams([StreamOptions(roots[0]), StreamOptions(roots[2], version=9)])


def test_a_sample_that_does_not_decode_is_reported_with_its_stream(tmp_path, roots):
    with MDSWriter(out=str(tmp_path / "bad"), columns={"meta": "json"}) as writer:
        for number in range(3):
            writer.write({"meta": {"number": number}})
    (shard,) = (tmp_path / "bad").rglob("*.mds")
    shard.write_bytes(
        shard.read_bytes().replace(b'{"number":1}', b'{"number":1 ').replace(b'{"number": 1}', b'{"number": 1 ')
    )
    streams = opened([roots[0], str(tmp_path / "bad")])
    with pytest.raises(FormatError) as caught:
        streams.sample(24)
    assert str(tmp_path / "bad") in str(caught.value)


def test_streams_with_different_columns_are_refused_in_one_batch(tmp_path, roots):
    with MDSWriter(out=str(tmp_path / "other"), columns={"label": "str"}) as writer:
        writer.write({"label": "x"})
    streams = opened([roots[0], str(tmp_path / "other")])
    assert streams.batch(np.array([23]))["label"] == ["x"]
    assert streams.batch(np.array([22]))["id"].tolist() == [22]
    with pytest.raises(SchemaError, match="different columns"):
        streams.batch(np.array([22, 23]))


def test_reopened_streams_keep_their_versions(tmp_path):
    roots = [str(write_set(tmp_path / name, 10)) for name in "ab"]
    options = [StreamOptions(root) for root in roots]
    before = open_streams(options)
    before.close()
    write_set(roots[1], 30, exist_ok=True)
    assert len(open_streams(options, before.versions)) == 20
    assert len(open_streams(options)) == 40


def test_a_replaced_stream_without_versions_is_refused(tmp_path, roots):
    from smalti.catalog import merge_index

    root = tmp_path / "plain"
    for number in range(2):
        write_set(root / str(number), 10)
    merge_index(str(root))
    options = [StreamOptions(roots[0]), StreamOptions(str(root))]
    before = open_streams(options)
    assert not before.sets[1].manifest.version
    write_set(root / "2", 5)
    merge_index(str(root))
    with pytest.raises(CursorError, match=f"{root}: this dataset has read digest"):
        open_streams(options, before.versions)


def test_open_streams_can_be_pickled(roots):
    streams = opened(roots)
    streams.sample(3)
    copy = pickle.loads(pickle.dumps(streams))
    assert copy.batch(np.array([69, 0]))["id"].tolist() == [6, 0]
    assert [each.options for each in copy.sets] == [each.options for each in streams.sets]


def test_a_stream_is_a_value():
    stream = Stream(remote="a", repeat=2)
    assert stream == Stream(remote="a", repeat=2.0)
    assert replace(stream, repeat=None, choose=3).weight.choose == 3
    with pytest.raises(AttributeError):
        stream.repeat = 3  # type: ignore[misc]  # frozen


def test_sets_that_were_found_before_are_opened_together(tmp_path):
    for name, count in (("a", 12), ("b", 5)):
        write_set(tmp_path / name, count)
    options = [StreamOptions(str(tmp_path / name)) for name in "ab"]
    streams = OpenStreams(list(map(find_shard_set, options)))
    assert streams.versions == OpenStreams(options).versions
    assert [streams.sample(number)["id"] for number in (11, 12, 16)] == [11, 0, 4]
