"""Shard sets opened by a tag, and saved runs that continue in the version that the tag named then."""

import pickle
import time

import pytest

import smalti
from smalti import MDSWriter, Stream
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import CursorError, StoreNotFound, VersionNotFound
from tests.reading_options import grouped
from tests.shard_sets import write_set


@pytest.fixture
def root(tmp_path):
    write_set(tmp_path / "set", 20)
    smalti.tag(str(tmp_path / "set"), "first")
    return str(write_set(tmp_path / "set", 30, exist_ok=True))


def opened(root, **options):
    return StreamingDataset(remote=root, batch_size=4, shuffle=True, **grouped(tail="short", **options))


def ids(dataset):
    return [sample["id"] for sample in dataset]


def test_a_tag_opens_its_version_and_a_dataset_stays_with_it(root):
    dataset = smalti.open_dataset(root, tag="first")
    smalti.tag(root, "first", 2, move=True)
    assert (dataset.manifest.version, len(dataset)) == (1, 20)
    assert dataset[19]["id"] == 19
    dataset.close()
    assert dataset[19]["id"] == 19, "closed and used again, it opens what it had"
    assert dataset.manifest.version == 1
    dataset.close()
    moved = smalti.open_dataset(root, tag="first")
    assert (moved.manifest.version, len(moved)) == (2, 30)
    moved.close()


def test_an_unknown_tag_and_a_tag_with_a_version_are_refused(root):
    with pytest.raises(VersionNotFound, match="has no tag 'best'; its tags: 'first'"):
        smalti.open_dataset(root, tag="best")
    with pytest.raises(ValueError, match="give one of them"):
        smalti.open_dataset(root, tag="first", version=1)
    with pytest.raises(ValueError, match="`version` is 1 and `tag` is 'first'; give one of them"):
        StreamingDataset(remote=root, tag="first", version=1)
    with pytest.raises(ValueError, match="`version` is 1 and `tag` is 'first'; give one of them"):
        Stream(remote=root, tag="first", version=1)
    with pytest.raises(ValueError, match="give either `streams`, each with its"):
        StreamingDataset(streams=[Stream(remote=root)], tag="first")
    smalti.untag(root, "first")
    with pytest.raises(VersionNotFound, match="its tags: none"):
        smalti.open_dataset(root, tag="first")


def test_a_tag_at_an_address_without_a_set_is_a_missing_set(root, tmp_path):
    wrong = str(tmp_path / "sett")
    for options in ({}, {"split": "train"}):
        with pytest.raises(StoreNotFound, match=r"sett holds no shard set: neither index.json nor"):
            smalti.open_dataset(wrong, tag="first", **options)


def test_a_dataset_and_each_stream_of_a_mixture_take_a_tag(root, tmp_path):
    assert sorted(ids(opened(root, tag="first"))) == list(range(20))
    other = str(write_set(tmp_path / "other", 5))
    smalti.tag(root, "second", 2)
    mixed = StreamingDataset(
        streams=[Stream(remote=root, tag="first"), Stream(remote=other), Stream(remote=root, tag="second")],
        batch_size=4,
    )
    assert [manifest.rows for manifest in mixed.manifests] == [20, 5, 30]
    assert mixed.size == 55


def test_a_pickled_copy_reads_the_same_version(root):
    dataset = opened(root, tag="first")
    _ = dataset.stream
    sent = pickle.dumps(dataset)
    smalti.tag(root, "first", 2, move=True)
    assert pickle.loads(sent).manifest.version == 1


def test_a_tag_is_found_in_the_folder_of_a_split(tmp_path):
    """MosaicML lays out each split as a set of its own."""
    for count in (3, 4):
        with MDSWriter(out=str(tmp_path / "train"), columns={"id": "int"}, exist_ok=True) as writer:
            for number in range(count):
                writer.write({"id": number})
    smalti.tag(str(tmp_path / "train"), "old", 1)
    dataset = smalti.open_dataset(str(tmp_path), split="train", tag="old")
    assert (dataset.manifest.version, dataset.size) == (1, 3)
    with pytest.raises(VersionNotFound, match="has no tag 'new'"):
        smalti.open_dataset(str(tmp_path), split="train", tag="new")


# ---------------------------------------------------------------------- saved states


def saved(root, **options):
    """Return the whole order and the state of a run after twelve samples."""
    dataset = opened(root, **options)
    order = ids(dataset)
    return order, opened(root, **options).state_dict(12)


def test_a_run_continues_in_the_version_its_tag_named_and_warns_that_it_moved(root):
    order, state = saved(root, tag="first")
    smalti.tag(root, "first", 2, move=True)
    resumed = opened(root, tag="first")
    with pytest.warns(
        UserWarning, match="tag 'first' .* names version 2 now, .* the content of version 1, which is"
    ) as warned:
        resumed.load_state_dict(state)
    assert [each.filename for each in warned] == [__file__]
    assert ids(resumed) == order[12:]
    assert (resumed.manifest.version, resumed.size) == (1, 20)
    assert sorted(ids(resumed)) == list(range(20)), "and so do the epochs after it"
    fresh = opened(root, tag="first")
    assert fresh.manifest.version == 2, "who loads no state begins with what the tag names now"


def test_a_tag_with_the_same_content_does_not_warn(root):
    """Warnings are errors in tests."""
    order, state = saved(root, tag="first")
    smalti.rollback(root, 1)
    smalti.tag(root, "first", 3, move=True)
    resumed = opened(root, tag="first")
    resumed.load_state_dict(state)
    assert (resumed.manifest.version, ids(resumed)) == (3, order[12:])


def test_a_dataset_opened_by_number_does_not_follow_a_moved_tag(root):
    """Only streams opened by tag follow the tag's former meaning."""
    _, state = saved(root, tag="first")
    with pytest.raises(CursorError, match="open the version and split that the state was saved with"):
        opened(root, version=2).load_state_dict(state)
    with pytest.raises(CursorError, match="open the version and split that the state was saved with"):
        opened(root).load_state_dict(state)


def test_a_saved_version_that_no_longer_exists_is_reported_with_the_tag(root, tmp_path):
    other = str(write_set(tmp_path / "other", 7))
    state = opened(other).state_dict(4)
    with pytest.raises(CursorError, match=r"tag 'first' of .* names version 1 now.*no version that can be opened"):
        opened(root, tag="first").load_state_dict(state)


def test_only_streams_whose_tag_moved_are_reopened_in_the_saved_version(root, tmp_path):
    other = str(write_set(tmp_path / "other", 5))
    smalti.tag(other, "first", 1)

    def mixed():
        streams = [Stream(remote=other, tag="first"), Stream(remote=root, tag="first")]
        return StreamingDataset(streams=streams, batch_size=5, shuffle=True, order=OrderOptions(tail="short"))

    order, state = ids(mixed()), mixed().state_dict(10)
    smalti.tag(root, "first", 2, move=True)
    resumed = mixed()
    with pytest.warns(UserWarning, match="tag 'first'") as caught:
        resumed.load_state_dict(state)
    assert len(caught) == 1
    assert [manifest.rows for manifest in resumed.manifests] == [5, 20]
    assert ids(resumed) == order[10:]


def test_a_stream_without_a_tag_keeps_its_version(root, tmp_path):
    other = str(write_set(tmp_path / "other", 5))

    def mixed():
        return StreamingDataset(streams=[Stream(remote=root, tag="first"), Stream(remote=other)], batch_size=5)

    state = mixed().state_dict(10)
    write_set(other, 6, exist_ok=True)
    with pytest.raises(CursorError, match="saved with digest of stream 1"):
        mixed().load_state_dict(state)


def test_a_saved_version_removed_by_vacuum_is_reported_with_the_tag(root):
    _, state = saved(root, tag="first")
    smalti.tag(root, "first", 2, move=True)
    time.sleep(0.02)  # older than nothing at all, by the clock of the disk
    smalti.vacuum(root, older_than=0, unsafe_ttl=True, dry_run=False)
    with pytest.raises(CursorError, match="a vacuum removed it, or the state is that of another data set"):
        opened(root, tag="first").load_state_dict(state)


def test_a_dataset_that_was_read_already_does_not_change_its_version(root):
    """Loader workers may use the opened streams: another version requires another dataset."""
    _, state = saved(root, tag="first")
    smalti.tag(root, "first", 2, move=True)
    dataset = opened(root, tag="first")
    ids(dataset)
    with pytest.raises(CursorError, match="data set digest"):
        dataset.load_state_dict(state)
    assert sorted(ids(dataset)) == list(range(30))
