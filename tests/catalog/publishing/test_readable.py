"""Versions that are published can be read; unreadable ones are refused, or do not hide the versions before them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.catalog import history, load_manifest, publish, rollback, tag, tags
from smalti.catalog.manifest import MAX_HEADER_BYTES, header_key
from smalti.catalog.publishing import replace_content
from smalti.catalog.table.arrow import table_of
from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import CatalogError, DeletedSamplesWarning, FormatError, IndexFileError, SchemaError, SmaltiError
from smalti.format import Encoding, Schema, register_encoding, unregister_encoding
from smalti.writer import MDSWriter
from tests.stores import MemoryStore

FIELDS = ("metadata", "lineage", "logical", "sidecars")


def nested(depth, inner=1, *, by=dict):
    """Return a value with `depth` objects, lists or tuples around `inner`."""
    for _ in range(depth):
        inner = {"a": inner} if by is dict else by([inner])
    return inner


def with_field(draft, name, value):
    return replace(draft, **{name: [value] if name == "sidecars" else value})


def cycle():
    value = {}
    value["again"] = value
    return value


REFUSED = {
    "61 objects": nested(61),
    "60 lists in an object": {"x": nested(60, by=list)},
    "60 tuples in an object": {"x": nested(60, by=tuple)},
    "a hundred thousand objects": nested(100_000),
    "an object in itself": cycle(),
    "NaN": {"x": float("nan")},
    "an infinity": {"x": [float("-inf")]},
    "a key twice, once as a number": {"x": {1: "a", "1": "b"}},
    "a number of 5,000 digits": {"x": 10**5000},
    "bytes": {"x": b"1"},
    "a set": {"x": {1}},
    "a key that is a tuple": {(1, 2): 3},
}
ACCEPTED = {
    "60 objects": nested(60),
    "a lone surrogate": {"\ud800": "\udfff"},
    "NUL and other control characters": {"\0": "\x00\x1f\x7f"},
    "a number of 4,000 digits": {"x": -(10**4000)},
    "a key of a megabyte": {"k" * (1 << 20): 1},
    "an empty key": {"": ""},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_a_value_that_could_not_be_read_back_is_refused_and_the_version_before_stays(make_draft, name):
    store = MemoryStore()
    publish(store, make_draft(store, 3))
    draft = make_draft(store, 5)
    for what, value in REFUSED.items():
        with pytest.raises(SchemaError, match=name):
            publish(store, with_field(draft, name, value), mode="overwrite")
        assert [info.rows for info in history(store)] == [3], what
    assert load_manifest(store).rows == 3


@pytest.mark.parametrize("name", ["metadata", "lineage"])
@pytest.mark.parametrize("what", ACCEPTED)
def test_a_value_that_is_published_is_read_back_as_it_was(make_draft, name, what):
    store, value = MemoryStore(), ACCEPTED[what]
    publish(store, make_draft(store, 3))
    publish(store, with_field(make_draft(store, 5), name, value), mode="overwrite")
    assert getattr(load_manifest(store), name) == value
    assert [info.rows for info in history(store)] == [3, 5]
    assert rollback(store, 1).rows == 3
    assert getattr(load_manifest(store, version=2), name) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
        | st.builds(lambda value, depth: nested(depth, value), inner, st.integers(15, 40))
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def good_set():
    """Return the objects of a set of one version, by key."""
    store = MemoryStore()
    with MDSWriter(out=store, columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    return {info.key: store.get(info.key) for info in store.list()}


@pytest.mark.slow
@given(metadata=st.dictionaries(st.text(max_size=3), JSON, max_size=2), name=st.sampled_from(["metadata", "lineage"]))
def test_whatever_is_published_can_be_opened_listed_and_rolled_back(good_set, metadata, name):
    store = MemoryStore()
    for key, data in good_set.items():
        store.put(key, data)
    good = load_manifest(store)
    try:
        publish(store, good.redraft("second-write", **{name: metadata}), mode="overwrite")
    except SmaltiError:
        assert [info.version for info in history(store)] == [1]
        assert load_manifest(store) == good
        return
    as_json = json.loads(json.dumps(metadata))  # keys that are numbers become text
    assert getattr(load_manifest(store), name) == as_json
    assert getattr(load_manifest(store, version=2), name) == as_json
    assert [info.problem for info in history(store)] == ["", ""]
    assert rollback(store, 1).digest == good.digest


def test_a_header_larger_than_readers_accept_is_refused(make_draft):
    store = MemoryStore()
    draft = make_draft(store, 3, metadata={"x": "y" * MAX_HEADER_BYTES})
    with pytest.raises(CatalogError, match="could not be read back, so it was not published"):
        publish(store, draft)
    assert not store.exists(header_key(1))


def test_a_deletion_record_that_could_not_be_read_back_is_refused(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 3))
    with pytest.raises(CatalogError, match="could not be read back"):
        replace_content(store, make_draft(store, 2), based_on=1, operation="delete", erased=(nested(70),))
    assert load_manifest(store).rows == 3


def test_tags_that_could_not_be_read_back_are_refused(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store))
    for value in REFUSED.values():
        with pytest.raises(SchemaError, match="metadata"):
            tag(store, "deep", metadata=value)
    assert tags(store) == {}


def test_more_columns_than_readers_accept_are_refused():
    with pytest.raises(SchemaError, match="100001 columns"):
        Schema.from_columns({f"c{number}": "int" for number in range(100_001)})


def test_a_table_that_lists_a_shard_twice_is_refused(make_draft):
    store = MemoryStore()
    draft = make_draft(store, 30)
    table = table_of(draft.shards)
    assert len(table) > 1
    doubled = replace(draft, shards=ShardTable(table.content, [0, 1, 0]))
    with pytest.raises(CatalogError, match="nothing was published"):
        publish(store, doubled)
    assert not store.exists(header_key(1))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_shard_whose_last_sample_cannot_be_read_is_not_published(compression):
    class WriteOnly(Encoding):
        def encode(self, value):
            return value

        def decode(self, data):
            if data.startswith(b"x"):
                raise ValueError("of no use")
            return data

    register_encoding("write-only", lambda name, _: WriteOnly(name, None))
    try:
        store = MemoryStore()
        with MDSWriter(out=store, columns={"x": "write-only"}, compression=compression) as writer:
            writer.write({"x": b"good"})
        with (
            pytest.raises(FormatError, match="of no use"),
            MDSWriter(out=store, columns={"x": "write-only"}, compression=compression, mode="overwrite") as writer,
        ):
            writer.write({"x": b"xyz"})
        assert load_manifest(store).version == 1
    finally:
        unregister_encoding("write-only")


def test_a_version_with_an_unreadable_header_is_listed_and_can_be_rolled_back(make_draft):
    store = MemoryStore()
    for rows in (3, 4):
        publish(store, make_draft(store, rows), mode="overwrite")
    store.put(header_key(2), json.dumps(nested(70)).encode())
    with pytest.raises(IndexFileError, match="nested more than 64 levels deep"):
        load_manifest(store)
    assert load_manifest(store, version=1).rows == 3
    first, second = history(store)
    assert (first.problem, first.rows) == ("", 3)
    assert "nested more than 64 levels deep" in second.problem
    with pytest.warns(DeletedSamplesWarning, match="versions 2 to 2 cannot be read"):
        assert rollback(store, 1).version == 3
    assert load_manifest(store).rows == 3
    assert [bool(info.problem) for info in history(store)] == [False, True, False]


def test_unreadable_headers_do_not_hide_a_readable_one_after_them(make_draft):
    store = MemoryStore()
    for rows in (3, 4, 5):
        publish(store, make_draft(store, rows), mode="overwrite")
    store.put(header_key(1), b"")
    store.put(header_key(2), b"{")
    store.put("index.json", b"{")
    assert load_manifest(store).rows == 5
    assert [bool(info.problem) for info in history(store)] == [True, True, False]
    assert publish(store, make_draft(store, 6), mode="append").rows == 11
    assert json.loads(store.get("index.json"))["smalti"]["version"] == 4, "a damaged index file is written anew"


def test_a_set_of_which_no_header_can_be_read_says_so(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store))
    store.put(header_key(1), b"{")
    for use in (load_manifest, lambda store: rollback(store, 1)):
        with pytest.raises(IndexFileError, match="not readable JSON"):
            use(store)
    assert [bool(info.problem) for info in history(store)] == [True]
