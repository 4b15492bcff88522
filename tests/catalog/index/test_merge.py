"""One index file over many sets: both of MosaicML's forms, on any store, and what is refused."""

import json
import threading

import pytest

from smalti.catalog import load_manifest, merge_index, verify
from smalti.errors import CatalogError, IndexFileError, StoreError, StoreTimeout
from smalti.format import Schema, ShardBuilder, ShardOptions, emit_index
from smalti.storage import LocalStore
from tests.format.text_sets import builder
from tests.shard_sets import write_set
from tests.stores import MemoryStore


def fill(store, folder, count, first=0):
    """Write a set of plain MDS shards, of a few samples each, to a folder of the store."""
    made = ShardBuilder(Schema.from_columns({"id": "int"}), ShardOptions(size_limit=215))
    filled = [shard for number in range(first, first + count) for shard in made.add({"id": number})] + made.finish()
    built = [shard.seal() for shard in filled]
    for shard in built:
        store.put(f"{folder}/{shard.info.raw.basename}", bytes(shard.payloads[0]))
    store.put(f"{folder}/index.json", emit_index([shard.info for shard in built]))
    return [f"{folder}/{shard.info.raw.basename}" for shard in built]


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


def names(store):
    return [shard.raw.basename for shard in load_manifest(store).shards]


# ------------------------------------------------------------------ what is merged


def test_a_root_is_merged_at_any_depth_in_the_order_of_its_parts(store):
    deep = fill(store, "10/a/b/c", 7, 20)
    wanted = fill(store, "9", 7) + fill(store, "9-1", 7, 10) + deep
    merge_index(store)
    assert names(store) == wanted
    assert len(wanted) > 6
    assert load_manifest(store).rows == 21
    assert verify(store).ok


def test_only_the_parts_of_a_list_are_merged_in_its_order(tmp_path):
    store = LocalStore(tmp_path)
    one, two, _ = fill(store, "1", 4), fill(store, "2/x", 4), fill(store, "3", 4)
    merge_index([f"{tmp_path}/2/x/index.json", f"{tmp_path}/1/index.json", f"{tmp_path}/2/x/index.json"], str(tmp_path))
    assert names(store) == two + one, "the one that stands twice is taken once, as MosaicML does"
    merge_index(index_file_urls=[f"{tmp_path}/1/index.json"], out=tmp_path)
    assert names(store) == one


@pytest.mark.parametrize(
    ("args", "options"),
    [((), {}), ((True, 30), {}), ((), {"keep_local": False}), ((False,), {"download_timeout": 30})],
)
@pytest.mark.parametrize("by_name", [True, False])
def test_the_forms_of_the_call_mean_the_same(args, options, by_name):
    store = MemoryStore()
    wanted = fill(store, "1", 4)
    if by_name:
        merge_index(out=store, **options)
    else:
        merge_index(store, *args, **options)
    assert names(store) == wanted


def test_a_remote_and_a_local_root_both_get_the_result(tmp_path):
    remote, local = LocalStore(tmp_path / "remote"), LocalStore(tmp_path / "local")
    wanted = fill(remote, "1", 4)
    merge_index((str(tmp_path / "local"), str(tmp_path / "remote")), keep_local=False)
    assert not (tmp_path / "local").exists()
    merge_index((str(tmp_path / "local"), str(tmp_path / "remote")))
    assert local.get("index.json") == remote.get("index.json")
    assert names(remote) == wanted


def test_the_local_file_of_a_pair_is_read_if_it_exists(tmp_path):
    remote, local = LocalStore(tmp_path / "remote"), LocalStore(tmp_path / "local")
    wanted = fill(remote, "1", 4) + fill(remote, "2", 4)
    local.put("1/index.json", remote.get("1/index.json"))
    remote.put("1/index.json", b"not the one that is read")
    pairs = [(f"{tmp_path}/local/{part}/index.json", f"{tmp_path}/remote/{part}/index.json") for part in "12"]
    merge_index(pairs, (str(tmp_path / "local"), str(tmp_path / "remote")))
    assert names(remote) == wanted


def test_merging_again_gives_the_same_and_never_merges_the_result_into_itself(store):
    fill(store, "1", 4)
    merge_index(store)
    first = store.get("index.json")
    merge_index(store)
    assert store.get("index.json") == first
    wanted = names(store) + fill(store, "2", 4)
    merge_index(store)
    assert names(store) == wanted


def test_empty_partitions_add_nothing():
    store = MemoryStore()
    store.put("0/index.json", b'{"shards": [], "version": 2}')
    wanted = fill(store, "1", 4)
    merge_index(store)
    assert names(store) == wanted


def test_formats_may_be_mixed_and_meta_files_are_moved_along():
    store = MemoryStore()
    fill(store, "1", 4)
    made = builder("csv", {"id": "int"}, compression="zstd", size_limit=None)
    made.add({"id": 1})
    shard = made.finish()[0].seal()
    for file, data in zip(shard.info.stored_files, shard.payloads, strict=True):
        store.put(f"2/{file.basename}", data)
    store.put("2/index.json", emit_index([shard.info]))
    merge_index(store)
    assert json.loads(store.get("index.json"))["shards"][-1]["zip_meta"]["basename"] == "2/shard.00000.csv.meta.zstd"
    assert verify(store).ok
    store.delete("2/shard.00000.csv.meta.zstd")
    with pytest.raises(CatalogError, match="is not there"):
        merge_index(store)


def test_parts_that_smalti_wrote_are_merged_and_their_splits_not_twice(tmp_path):
    write_set(tmp_path / "a", 12)
    write_set(tmp_path / "b", 12)
    split = LocalStore(tmp_path / "a")
    split.put("train/index.json", b'{"shards": [], "smalti": {"split": "train"}, "version": 2}')
    merge_index(tmp_path)
    assert load_manifest(tmp_path).rows == 24


def test_one_listing_and_one_read_for_each_part_are_all_requests():
    store = MemoryStore()
    for part in range(20):
        fill(store, f"{part}", 4)
    before = len(store.calls)
    merge_index(store)
    calls = [call.op for call in store.calls[before:]]
    assert (calls.count("list"), calls.count("get_range"), calls.count("put"), len(calls)) == (1, 20, 1, 22)


class FourReadersStore(MemoryStore):
    """A store whose `get` waits until four of them run at the same time."""

    def __init__(self):
        super().__init__()
        self.four_readers = threading.Barrier(4)

    def get(self, key):
        self.four_readers.wait(timeout=500)
        return super().get(key)


def test_parts_are_read_at_the_same_time():
    store = FourReadersStore()
    for part in range(8):
        fill(store, f"{part}", 2)
    merge_index(store)
    assert json.loads(store.objects["index.json"])["shards"]


# ------------------------------------------------------------------ what is refused


def check_refused(store, error, match, *args, **kwargs):
    before = store.get("index.json") if store.exists("index.json") else None
    with pytest.raises(error, match=match):
        merge_index(*(args or (store,)), **kwargs)
    assert (store.get("index.json") if store.exists("index.json") else None) == before, "nothing was put"


def test_a_file_that_is_missing_or_of_another_size_is_refused(store):
    wanted = fill(store, "1", 4)
    data = store.get(wanted[1])
    store.put(wanted[1], data[:-1])
    check_refused(store, CatalogError, f"has {len(data) - 1} bytes")
    store.delete(wanted[1])
    check_refused(store, CatalogError, "is not there")


def test_parts_that_name_the_same_file_are_refused():
    store = MemoryStore()
    fill(store, "a/1", 4)
    inner = json.loads(store.get("a/1/index.json"))
    for shard in inner["shards"]:
        shard["raw_data"]["basename"] = "1/" + shard["raw_data"]["basename"]
    store.put("a/index.json", json.dumps(inner).encode())  # merged before, one level down
    check_refused(store, CatalogError, "named by two index files")


def test_a_root_with_versions_is_refused(tmp_path):
    write_set(tmp_path, 12)
    fill(LocalStore(tmp_path), "more", 4)
    check_refused(LocalStore(tmp_path), CatalogError, "Smalti published")
    (tmp_path / "index.json").unlink()
    check_refused(LocalStore(tmp_path), CatalogError, "Smalti published")


def test_a_root_index_of_shards_beside_it_is_not_replaced():
    store = MemoryStore()
    for name in fill(store, "x", 4):
        store.put(name.removeprefix("x/"), store.get(name))
    store.put("index.json", store.get("x/index.json"))
    check_refused(store, CatalogError, "would not name")


@pytest.mark.parametrize("name", ["../2/shard.00000.mds", "/etc/passwd", "a/../../b", "s3://other/x"])
def test_names_that_leave_their_folder_are_refused(name):
    store = MemoryStore()
    fill(store, "1", 2)
    entry = json.loads(store.get("1/index.json"))
    entry["shards"][0]["raw_data"]["basename"] = name
    store.put("1/index.json", json.dumps(entry).encode())
    check_refused(store, IndexFileError, "not a safe file name")


@pytest.mark.parametrize(
    "url", ["/elsewhere/1/index.json", "{root}/../x/index.json", "{root}x/index.json", "index.json", ""]
)
def test_index_files_outside_the_root_are_refused(url, tmp_path):
    store = LocalStore(tmp_path / "set")
    fill(store, "1", 2)
    check_refused(store, CatalogError, "does not lie below", [url.format(root=store.url)], store.url)


def test_a_missing_or_malformed_index_file_is_refused(tmp_path):
    store = LocalStore(tmp_path)
    fill(store, "1", 2)
    check_refused(store, CatalogError, "is not there", [f"{tmp_path}/2/index.json"], str(tmp_path))
    store.put("1/index.json", b'{"shards": [')
    check_refused(store, IndexFileError, "1/index.json")


def test_a_root_without_parts_is_refused(tmp_path):
    check_refused(LocalStore(tmp_path), CatalogError, "there is no index.json", tmp_path)
    check_refused(LocalStore(tmp_path), CatalogError, "nothing to merge", [], tmp_path)


@pytest.mark.parametrize(
    ("args", "options"),
    [((), {}), ((["a"],), {}), (("a", "b"), {}), (("a", True, 1, 2), {}), ((), {"out": ["a"]}), (("a", 1), {}),
     ((), {"index_file_urls": "a", "out": "b"})],
)  # fmt: skip
def test_arguments_of_neither_form_are_a_type_error(args, options):
    with pytest.raises(TypeError, match="merge_index takes"):
        merge_index(*args, **options)


def test_a_store_that_fails_or_hangs_is_an_error_in_time():
    store = MemoryStore()
    fill(store, "1", 2)
    store.plant("get*", delay=1.0)
    check_refused(store, StoreTimeout, "no index file arrived within 0 s", store, download_timeout=0.1)
    store.heal()
    store.plant("get*", key="1/*")
    check_refused(store, StoreError, "planted")
    with pytest.raises(ValueError, match="download_timeout"):
        merge_index(store, download_timeout=0)
