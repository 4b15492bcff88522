"""An address at which no set can be: the error names the file, the bucket or the server that is at fault."""

import pytest

import smalti
from smalti import MDSWriter
from smalti.catalog import load_manifest, publish
from smalti.errors import SmaltiError, StoreError, StoreNotFound
from smalti.exchange import copy_version, sync
from smalti.storage import open_store
from smalti.storage.errors import translate
from smalti.storage.schemes import SCHEME_BY_NAME
from smalti.writer import compact, delete
from tests.stores import MemoryStore


def write(out):
    with MDSWriter(out=out, columns={"id": "int"}) as writer:
        writer.write({"id": 1})


@pytest.fixture(scope="module")
def good():
    store = MemoryStore()
    write(store)
    return store


TAKE_A_PLACE = {
    "MDSWriter": lambda place, _: write(place),
    "MDSWriter, append": lambda place, _: MDSWriter(out=place, columns={"id": "int"}, mode="append"),
    "MDSWriter, local and remote": lambda place, good: MDSWriter(
        out=(place, "memory://remote"), columns={"id": "int"}, keep_local=True
    ),
    "publish": lambda place, good: publish(place, load_manifest(good).redraft("another-write")),
    "copy to": lambda place, good: copy_version(good, place),
    "copy from": lambda place, _: copy_version(place, MemoryStore(url="memory-store://target")),
    "sync to": lambda place, good: sync(good, place),
    "sync from": lambda place, _: sync(place, MemoryStore(url="memory-store://target")),
    "merge_index": lambda place, _: smalti.merge_index(place),
    "load_manifest": lambda place, _: load_manifest(place),
    "info": lambda place, _: smalti.info(place),
    "head": lambda place, _: smalti.head(place),
    "stats": lambda place, _: smalti.stats(place),
    "history": lambda place, _: smalti.history(place),
    "diff": lambda place, _: smalti.diff(place, 1, 2),
    "rollback": lambda place, _: smalti.rollback(place, 1),
    "write_index": lambda place, _: smalti.write_index(place),
    "tag": lambda place, _: smalti.tag(place, "best"),
    "tags": lambda place, _: smalti.tags(place),
    "untag": lambda place, _: smalti.untag(place, "best"),
    "vacuum": lambda place, _: smalti.vacuum(place),
    "verify": lambda place, _: smalti.verify(place),
    "compact": lambda place, _: compact(place),
    "delete": lambda place, _: delete(place, [1]),
}


@pytest.mark.parametrize("name", TAKE_A_PLACE)
@pytest.mark.parametrize("below", ["", "/set"])
def test_a_file_where_a_folder_is_needed_is_named(tmp_path, good, name, below):
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"x")
    with pytest.raises(StoreError, match=r"photo\.jpg is a file, and a folder is needed there"):
        TAKE_A_PLACE[name](f"{file}{below}", good)
    assert file.read_bytes() == b"x"


IN_A_BUCKET = {
    "MDSWriter", "publish", "copy to", "sync from", "load_manifest", "merge_index", "head", "tag", "vacuum", "delete",
}  # fmt: skip
"""One of each way to open a place; the others are nightly, and at a file, above, all are in the default run."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_A_BUCKET else pytest.mark.nightly) for name in TAKE_A_PLACE],
)
def test_a_missing_bucket_is_named(s3_server, s3_bucket, clean_environment, good, name):
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    with pytest.raises(StoreNotFound, match=r"no bucket, container or volume 'no-such-bucket'"):
        TAKE_A_PLACE[name]("s3://no-such-bucket/set", good)


def test_an_object_in_a_missing_folder_of_a_bucket_is_no_fault_of_the_bucket(s3_server, s3_bucket, clean_environment):
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    store = open_store(f"s3://{s3_bucket}/nothing")
    assert list(store.list()) == []
    with pytest.raises(StoreNotFound, match="holds no shard set"):
        load_manifest(store)


class CodedError(Exception):
    def __init__(self, code, text=""):
        super().__init__(text)
        self.error_code = code


@pytest.mark.parametrize(
    ("scheme", "error"),
    [
        ("s3", CodedError("NoSuchBucket")),
        ("abfs", CodedError("ContainerNotFound")),
        ("gs", FileNotFoundError("The specified bucket does not exist.")),
    ],
)
def test_the_words_of_each_service_for_a_missing_bucket_are_known(scheme, error):
    error.status_code = 404
    facts = {"key": "k", "url": f"{scheme}://photos/set"}
    found = translate(error, what="cannot read k", scheme=SCHEME_BY_NAME[scheme], detail=str(error), facts=facts)
    assert "no bucket, container or volume 'photos'" in str(found)


@pytest.mark.parametrize("use", [lambda store: store.get("k"), lambda store: store.put("k", b"1")], ids=["get", "put"])
def test_a_refused_connection_names_the_variables_of_the_endpoint(clean_environment, use):
    keys = {"key": "AKIDTEST", "secret": "SECRETTEST", "request_attempts": 1}
    clean_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(
        StoreError, match=r"127\.0\.0\.1:9.*check that it runs.*`endpoint_url`.*AWS_ENDPOINT_URL"
    ) as caught:
        use(open_store("s3://bucket/set", keys))
    assert isinstance(caught.value, SmaltiError)
