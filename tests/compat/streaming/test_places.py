"""A new set lies as MosaicML's writer leaves it, appears all at once, and never mixes with that of another writer."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from smalti.catalog import load_manifest
from smalti.catalog.verify import verify
from smalti.compat.streaming import LocalDataset, MDSWriter, StreamingDataset
from smalti.compat.streaming.base.format.base.places import CLAIM, NewSet, NewVersion, SetUploader, open_place
from smalti.compat.streaming.base.util import merge_index
from smalti.errors import CommitUnknown, DatasetExists, StoreError, StoreTimeout
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import LocalStore
from smalti.writer import MDSWriter as NativeWriter
from smalti.writer import UploadOptions
from tests.stores import MemoryStore

ID = {"id": "int"}
SCHEMA = Schema.from_columns(ID)


def write(out, numbers, **options):
    with MDSWriter(columns=ID, out=out, size_limit=400, **options) as writer:
        for number in numbers:
            writer.write({"id": number})
    return writer


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def ids(**place):
    return sorted(sample["id"] for sample in StreamingDataset(batch_size=1, **place))


def merge_shard_groups(root):
    """Do what MosaicML's and LLM Foundry's programs do: rename the shards of all groups beside each other."""
    entries = []
    for group in sorted(path for path in root.iterdir() if path.is_dir()):
        for entry in json.loads((group / "index.json").read_text())["shards"]:
            kind = "zip_data" if entry["zip_data"] else "raw_data"
            begin, _, *rest = entry[kind]["basename"].split(".")
            renamed = ".".join([begin, f"{len(entries):05}", *rest])
            (group / entry[kind]["basename"]).rename(root / renamed)
            entry[kind]["basename"] = renamed
            entry["raw_data"]["basename"] = renamed.removesuffix(".zstd")
            entries.append(entry)
        (group / "index.json").unlink()
        group.rmdir()
    (root / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_groups_of_shards_that_a_program_renames_beside_each_other_are_one_set(tmp_path, compression):
    for group in range(3):
        write(str(tmp_path / str(group)), range(group * 20, group * 20 + 20), compression=compression)
    merge_shard_groups(tmp_path)
    assert ids(local=str(tmp_path)) == list(range(60))


def test_the_files_of_listdir_are_the_whole_set(tmp_path):
    write(str(tmp_path / "out"), range(20))
    (tmp_path / "bucket").mkdir()
    for name in os.listdir(tmp_path / "out"):
        shutil.copyfile(tmp_path / "out" / name, tmp_path / "bucket" / name)
    assert ids(remote=str(tmp_path / "bucket"), local=str(tmp_path / "cache")) == list(range(20))
    assert verify(tmp_path / "bucket").ok


def test_groups_are_merged_by_merge_index_and_the_merged_set_can_be_moved(tmp_path):
    for group in range(3):
        write(str(tmp_path / "root" / str(group)), range(group * 20, group * 20 + 20))
    merge_index(str(tmp_path / "root"), keep_local=True)
    (tmp_path / "root").rename(tmp_path / "moved")
    assert ids(local=str(tmp_path / "moved")) == list(range(60))


@pytest.mark.parametrize("pair", [False, True])
def test_every_place_of_a_new_set_has_the_shards_beside_the_index_and_nothing_else(tmp_path, pair):
    local, remote = tmp_path / "local", tmp_path / "remote"
    write((str(local), str(remote)) if pair else str(local), range(20), keep_local=pair)
    expected = ["index.json", "shard.00000.mds", "shard.00001.mds"]
    for place in (local, remote) if pair else (local,):
        assert sorted(os.listdir(place)) == expected
        assert ids(local=str(place)) == list(range(20))


def test_a_second_write_to_a_remote_place_is_a_version_in_a_folder_and_leaves_the_first_shards(tmp_path):
    remote = str(tmp_path / "remote")
    write((str(tmp_path / "a"), remote), range(20))
    before = {name: (tmp_path / "remote" / name).read_bytes() for name in names(remote) if name != "index.json"}
    write((str(tmp_path / "b"), remote), range(100, 105), keep_local=True)
    assert ids(remote=remote, local=str(tmp_path / "cache")) == list(range(100, 105))
    assert {name: (tmp_path / "remote" / name).read_bytes() for name in before} == before
    assert load_manifest(remote).version == 1
    assert names(tmp_path / "b") == ["index.json", "shard.00000.mds"]  # the local place is new


def test_the_engines_writer_replaces_a_new_set_by_a_version_and_appends_to_none(tmp_path):
    write(str(tmp_path), range(20))
    for mode in ("create", "append"):
        with pytest.raises(DatasetExists, match="smalti convert"):
            NativeWriter(columns=ID, out=str(tmp_path), mode=mode)
    with NativeWriter(columns=ID, out=str(tmp_path), mode="overwrite") as writer:
        writer.write({"id": 7})
    assert (load_manifest(tmp_path).version, ids(local=str(tmp_path))) == (1, [7])


def shard(number=1):
    builder = ShardBuilder(SCHEMA, ShardOptions(None, (), None, ("xxh3_64",)))
    builder.add({"id": number})
    (filled,) = builder.finish()
    return filled


def uploader(store):
    return SetUploader([store], UploadOptions(1, attempts=1))


def test_a_writer_that_dies_leaves_no_index_and_the_next_one_writes_beside_it():
    store = MemoryStore()
    died = uploader(store)
    died.write_shard(shard())
    died._uploader.finish()
    assert "index.json" not in store.objects
    following = uploader(store)
    following.write_shard(shard(2))
    (info,) = following.finish(SCHEMA)
    assert "/" in info.raw.basename
    assert load_manifest(store).version == 1
    assert "shard.00000.mds" in store.objects


def test_of_two_writers_of_a_new_place_the_second_has_a_folder_and_the_later_first_one_is_refused():
    store = MemoryStore()
    first, second = uploader(store), uploader(store)
    first.write_shard(shard(1))
    second.write_shard(shard(2))
    second.finish(SCHEMA)
    with pytest.raises(DatasetExists, match="another writer has made a set there"):
        first.finish(SCHEMA)
    assert load_manifest(store).rows == 1
    assert [key for key in store.objects if key.startswith("shard.") or key == CLAIM] == []


def test_of_two_writers_of_a_new_place_the_one_that_ends_last_is_the_newest():
    store = MemoryStore()
    first, second = uploader(store), uploader(store)
    first.write_shard(shard(1))
    first.finish(SCHEMA)
    assert load_manifest(store).version == 0
    second.write_shard(shard(2))
    second.finish(SCHEMA)
    assert load_manifest(store).version == 1


def test_a_lost_reply_to_the_claim_or_the_index_is_settled_by_what_is_there():
    for key in (CLAIM, "index.json"):
        store = MemoryStore()
        store.plant("put_if_absent", key=key, lost_ack=True, times=1)
        writer = uploader(store)
        writer.write_shard(shard())
        writer.finish(SCHEMA)
        assert sorted(store.objects) == ["index.json", "shard.00000.mds"]


def test_an_index_that_may_appear_later_keeps_the_shards():
    store = MemoryStore()
    writer = uploader(store)
    writer.write_shard(shard())
    store.plant("put_if_absent", key="index.json", error=StoreTimeout("no answer"))
    with pytest.raises(CommitUnknown, match="unknown whether the set appeared"):
        writer.finish(SCHEMA)
    writer.abort()
    assert "shard.00000.mds" in store.objects


def test_an_index_that_the_store_refuses_removes_the_shards():
    store = MemoryStore()
    writer = uploader(store)
    writer.write_shard(shard())
    store.plant("put_if_absent", key="index.json", error=StoreError("refused"))
    with pytest.raises(StoreError, match="refused"):
        writer.finish(SCHEMA)
    assert store.objects == {}


def test_a_claim_is_kept_by_its_first_writer():
    store = MemoryStore()
    first = open_place(store, "20260101t000000-0000000000000000")
    second = open_place(store, "20260101t000000-0000000000000001")
    assert (type(first), type(second)) == (NewSet, NewVersion)


def copied(source, target):
    """Copy index.json and the shards that it names, without _versions."""
    index = json.loads((source / "index.json").read_text())
    for name in ["index.json", *(entry["raw_data"]["basename"] for entry in index["shards"])]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return str(target)


@pytest.fixture
def copy_of_a_version(tmp_path):
    with NativeWriter(columns=ID, out=str(tmp_path / "set"), compression=None) as writer:
        for number in range(20):
            writer.write({"id": number})
    return copied(tmp_path / "set", tmp_path / "copy")


def test_a_copy_without_versions_is_read_as_a_foreign_set_by_every_reader(copy_of_a_version, tmp_path):
    place = copy_of_a_version
    assert ids(local=place) == ids(remote=place, local=str(tmp_path / "cache")) == list(range(20))
    assert [sample["id"] for sample in LocalDataset(place)] == list(range(20))
    assert (load_manifest(place).version, verify(place).ok) == (0, True)


def test_a_copy_without_versions_is_checked_by_what_its_index_declares(copy_of_a_version):
    (path,) = Path(copy_of_a_version).rglob("*.mds")
    data = np.fromfile(path, np.uint8)
    data[-1] ^= 1
    data.tofile(path)
    assert not verify(copy_of_a_version).ok


def test_a_copy_without_versions_is_never_written_to(copy_of_a_version):
    with pytest.raises(FileExistsError, match="copied without its _versions folder"):
        open_place(LocalStore(copy_of_a_version), "20260101t000000-0000000000000000")


def test_a_new_set_whose_index_another_program_changed_is_read_by_what_the_entries_say(tmp_path):
    write(str(tmp_path), range(20))
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"] = index["shards"][::-1]  # the hashes below Smalti's key belong to the old order
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert ids(local=str(tmp_path)) == list(range(20))


def test_without_its_index_a_new_set_is_gone_and_one_with_versions_is_not(tmp_path):
    write(str(tmp_path / "new"), range(20))
    (tmp_path / "new" / "index.json").unlink()
    with pytest.raises(RuntimeError, match="does not exist"):
        StreamingDataset(local=str(tmp_path / "new"), batch_size=1)
    with NativeWriter(columns=ID, out=str(tmp_path / "set")) as writer:
        writer.write({"id": 3})
    (tmp_path / "set" / "index.json").unlink()
    assert ids(local=str(tmp_path / "set")) == [3]
