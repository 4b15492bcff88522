"""Encodings of users: docs/encodings.md is correct, and a bad encoding is refused before data is read or written."""

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smalti.errors import SchemaError
from smalti.format import Encoding, Schema, Shard, parse_encoding, register_encoding, unregister_encoding
from smalti.format.encodings.registry import built_in_encoding
from smalti.format.reading.batch import read_plan
from tests.format.shards import write

PAGE = Path(__file__).parents[3] / "docs" / "encodings.md"


def code_of_the_page():
    """Return the Python blocks of the page that run with Smalti."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if not block.startswith("# mosaicml")]


def test_the_example_of_the_documentation_runs(tmp_path):
    definition, use = code_of_the_page()
    names = {"folder": str(tmp_path / "set"), "__name__": "docs_encodings"}
    exec(compile(definition, PAGE, "exec"), names)
    exec(compile(use, PAGE, "exec"), names)
    codec = parse_encoding("signal:128")
    assert codec.decode(codec.encode(np.array([1 + 2j]))).tolist() == [1 + 2j]
    with pytest.raises(SchemaError, match="expected a row of complex128, found list"):
        codec.encode([1j])
    for name in ("signal", "signal:32"):
        with pytest.raises(SchemaError, match="write signal:64 or signal:128"):
            parse_encoding(name)


class Flag(Encoding):
    """Yes or no in one byte."""

    def __init__(self, name, parameters):
        super().__init__(name, 1)

    def encode(self, value):
        return b"\x01" if value else b"\0"

    def decode(self, data):
        return data == b"\x01"


def test_values_of_fixed_size_come_back_from_samples_and_batches(tmp_path):
    register_encoding("test-flag", Flag)
    info, shard = write(tmp_path, {"x": "test-flag", "y": "str"}, [{"x": i % 3 == 0, "y": "a"} for i in range(5)])
    assert info.schema.sizes == (1, None)
    assert [shard[i]["x"] for i in range(5)] == [True, False, False, True, False]
    assert list(shard.batch(np.array([3, 1]))["x"]) == [True, False]


def test_same_factory_may_be_registered_again_and_another_may_not():
    register_encoding("test.twice", Flag)
    register_encoding("test.twice", Flag)
    with pytest.raises(SchemaError, match="registered already"):
        register_encoding("test.twice", lambda name, _: Flag(name, ""))
    register_encoding("test.lambda", lambda name, _: Flag(name, ""))
    with pytest.raises(SchemaError, match="registered already"):
        register_encoding("test.lambda", lambda name, _: Flag(name, ""))


def test_newest_definition_is_used_when_a_notebook_cell_runs_twice():
    cell = """
class Shout(Encoding):
    def __init__(self, name, parameters):
        super().__init__(name)
    def encode(self, value):
        return value.upper().encode()
    def decode(self, data):
        return data.decode() + MARK
register_encoding("test_shout", Shout)
"""
    names = {"Encoding": Encoding, "register_encoding": register_encoding, "__name__": "notebook", "MARK": "!"}
    exec(cell, names)
    schema = Schema.from_columns({"x": "test_shout"})
    assert schema.codecs()[0].decode(b"A") == "A!"
    exec(cell.replace("MARK", "'?'"), names)
    assert schema.codecs()[0].decode(b"A") == "A?"
    assert parse_encoding("test_shout").decode(b"A") == "A?"


def test_a_shard_opened_after_the_cell_ran_again_is_read_by_the_newest_definition(tmp_path):
    cell = """
class Sign(Encoding):
    def __init__(self, name, parameters):
        super().__init__(name)
    def encode(self, value):
        return value.encode()
    def decode(self, data):
        return data.decode() + MARK
register_encoding("test_sign", Sign)
"""
    names = {"Encoding": Encoding, "register_encoding": register_encoding, "__name__": "notebook"}
    exec(cell, {**names, "MARK": "!"})
    info, shard = write(tmp_path, {"x": "test_sign"}, [{"x": "a"}])
    assert (shard[0], shard.batch(np.array([0]))) == ({"x": "a!"}, {"x": ["a!"]})
    exec(cell, {**names, "MARK": "?"})
    shard = Shard.open(tmp_path / info.raw.basename, info)
    assert (shard[0], shard.batch(np.array([0]))) == ({"x": "a?"}, {"x": ["a?"]})


def test_threads_that_open_shards_of_a_new_schema_at_once_get_one_plan():
    """Otherwise their shards would look different, and every batch over them would take the slow path."""
    both = threading.Barrier(2, timeout=120)

    def slow(name, parameters):
        both.wait()
        return Flag(name, parameters)

    register_encoding("test-slow", slow)
    schema = Schema(("x",), ("test-slow",), (1,))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: read_plan(schema, allow_unsafe_types=False), range(2))
    assert first is second


@pytest.mark.parametrize(
    "name",
    ["int", "pkl", "jpeg", "float", "float32", "ndarray", "jpegarray", "", "Upper", "1st", "a b", "a:b", "é", "x" * 65],
)
def test_name_that_is_taken_or_unusable_is_refused(name):
    with pytest.raises(SchemaError):
        register_encoding(name, Flag)


def no_encoding(name, parameters):
    return object()


def other_name(name, parameters):
    return Flag("flag", parameters)


def no_size(name, parameters):
    encoding = Flag(name, parameters)
    encoding.size = 0
    return encoding


def raises(name, parameters):
    raise KeyError("no such table")


class NoConstructor(Flag):
    def __init__(self, name, parameters):
        pass


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (no_encoding, "expected a smalti.format.Encoding, found object"),
        (other_name, "expected an encoding of that name, found 'flag'"),
        (no_size, "a size of 1 byte"),
        (raises, "no such table"),
        (NoConstructor, "of that name, found None"),
    ],
)
def test_factory_that_returns_no_usable_encoding_is_refused(make, fault):
    name = f"test_bad_{make.__name__.lower()}"
    register_encoding(name, make)
    with pytest.raises(SchemaError, match=fault):
        Schema.from_columns({"x": name})


def test_built_in_names_are_never_looked_up_in_factories():
    with pytest.raises(SchemaError, match="unknown encoding"):
        parse_encoding("jpeg:90")
    with pytest.raises(SchemaError, match="unknown encoding"):
        parse_encoding("test-flag" + ":" + "x" * 2000)


PACKAGE_CODE = """
from smalti.format import Encoding
class Flag(Encoding):
    def __init__(self, name, parameters):
        super().__init__(name, 1)
        self.parameters = parameters
    def encode(self, value):
        return b"1" if value else b"0"
    def decode(self, data):
        return data == b"1"
"""

SHOW = """
import planted
from smalti.format import register_encoding
register_encoding('planted', planted.Flag)
codec = parse_encoding('planted:x')
print(codec.name, codec.size, codec.parameters)
"""


class Plain(Flag):
    """The same in text."""

    def encode(self, value):
        return b"y" if value else b"n"

    def decode(self, data):
        return data == b"y"


@pytest.fixture
def overridden():
    """Return names that have their encodings back afterwards."""
    names = ["int", "pkl", "ndarray", "Any Name"]
    yield names
    for name in names:
        unregister_encoding(name)
    assert parse_encoding("int").encode(1) == b"\x01" + bytes(7)


def test_an_encoding_that_overrides_one_of_mds_takes_its_columns_until_it_is_removed(overridden, tmp_path):
    for name in overridden:
        register_encoding(name, Plain, override=True)
        assert parse_encoding(name).encode(value=True) == b"y"  # of `pkl` without its risk
        assert built_in_encoding("int").encode(1) == b"\x01" + bytes(7)
    assert parse_encoding("ndarray:anything").size == 1
    info, shard = write(tmp_path, {"x": "int", "y": "Any Name"}, [{"x": True, "y": False}, {"x": False, "y": True}])
    assert [(shard[i]["x"], shard[i]["y"]) for i in range(2)] == [(True, False), (False, True)]
    assert list(shard.batch(np.array([1, 0]))["x"]) == [False, True]
    assert info.schema.sizes == (1, 1)
    unregister_encoding("int")
    assert parse_encoding("int").size == 8
    assert Schema.from_columns({"x": "int"}).codecs()[0].size == 8


def test_an_override_replaces_another_factory(overridden):
    register_encoding("any-flag", Flag)
    register_encoding("any-flag", Plain, override=True)
    assert parse_encoding("any-flag").encode(value=True) == b"y"
    unregister_encoding("any-flag")
    unregister_encoding("any-flag")  # no-op
    with pytest.raises(SchemaError, match="unknown encoding"):
        parse_encoding("any-flag")


@pytest.mark.parametrize("name", ["", "a:b", "x" * 65])
def test_an_override_needs_a_name_without_a_colon(name):
    with pytest.raises(SchemaError, match="without a colon"):
        register_encoding(name, Plain, override=True)


def install_package(folder, package, lines, code=PACKAGE_CODE):
    """Create an installed package, as `pip` leaves it."""
    (folder / f"{package}.py").write_text(code)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[smalti.encodings]\n" + "\n".join(lines) + "\n")


def in_a_fresh_process(folder, code):
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", f"from smalti.format import parse_encoding, Schema\n{code}"],
        env={**keep, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.process
def test_an_index_never_causes_an_import(tmp_path):
    """Fault S17: an encoding's name in a set must not choose what code runs, whether it is installed or not."""
    install_package(
        tmp_path, "planted", ["planted = planted:Flag"], f"open({str(tmp_path / 'ran')!r}, 'w')\n{PACKAGE_CODE}"
    )
    assert "unknown encoding 'planted'" in in_a_fresh_process(tmp_path, "parse_encoding('planted')")
    assert not (tmp_path / "ran").exists()
    assert in_a_fresh_process(tmp_path, SHOW) == "planted:x 1 x"
