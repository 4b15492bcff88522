"""`pkl`: nothing is unpickled without `allow_unsafe_types=True`."""

import pickle

import pytest

from smalti.errors import FormatError, SchemaError
from smalti.format import Schema, Shard, ShardBuilder, ShardOptions, parse_encoding, parse_index
from smalti.format.reading.batch import OpenOptions
from tests.format.shards import write

UNSAFE = parse_encoding("pkl", allow_unsafe_types=True)


class Bomb:
    """An object that ends the test run when it is unpickled."""

    def __reduce__(self):
        return exit, (3,)


class Stubborn:
    def __reduce__(self):
        raise RuntimeError("my secret")


def test_values_come_back():
    for value in ({"a": [1, (2, None)]}, b"".join, 10**30, {1, 2}):
        assert UNSAFE.decode(UNSAFE.encode(value)) == value


def test_stored_bytes_equal_mosaicmls_default_pickle():
    assert UNSAFE.encode({"a": 1}) == pickle.dumps({"a": 1})


def test_bytes_are_stored_only_if_they_are_a_pickle_and_are_not_executed():
    bomb = pickle.dumps(Bomb())
    assert UNSAFE.encode(bomb) == bomb
    for data in (b"", b"text", bomb[:-1], bomb + b".", b"\x80\x04"):
        with pytest.raises(SchemaError, match=r"these bytes are not a pickle|something follows"):
            UNSAFE.encode(data)


def test_damaged_pickle_is_a_format_error_without_content():
    for data in (b"", b"garbage", pickle.dumps([1, 2])[:-2], b"cno_such_module\nname\n."):
        with pytest.raises(FormatError) as caught:
            UNSAFE.decode(data)
        assert "no_such_module" not in str(caught.value)


def test_value_that_cannot_be_pickled_is_refused_without_content():
    for value in (lambda: 1, Stubborn()):
        with pytest.raises(SchemaError) as caught:
            UNSAFE.encode(value)
        assert "secret" not in str(caught.value)


def test_writer_refuses_a_pickled_column():
    with pytest.raises(SchemaError, match="runs code"):
        ShardBuilder(Schema.from_columns({"x": "pkl"}, allow_unsafe_types=True), ShardOptions())


def test_shard_with_a_pickled_column_opens_only_if_unsafe_types_are_allowed(tmp_path):
    # The same shard as one of bytes: the encoding is named in the index alone.
    info, shard = write(tmp_path, {"x": "bytes"}, [{"x": pickle.dumps([1, 2])}])
    entry = {**info.to_json(), "column_encodings": ["pkl"]}
    text = str({"shards": [entry], "version": 2}).replace("'", '"').replace("None", "null")
    (unsafe,), _ = parse_index(text.encode(), where="index.json")
    assert unsafe.schema.encodings == ("pkl",)
    path = tmp_path / info.raw.basename
    with pytest.raises(SchemaError, match="runs code"):
        Shard.open(path, unsafe)
    assert Shard.open(path, unsafe, OpenOptions(allow_unsafe_types=True))[0] == {"x": [1, 2]}
    shard.close()
