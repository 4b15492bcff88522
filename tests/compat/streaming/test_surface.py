"""MosaicML's public interface, as its installed package has it, is that of smalti.compat.streaming.

Modules, names, signatures with defaults, constants, members and bases of classes, attributes of objects. The table
"Left out" of docs/mosaicml.md lists what is missing or different, with the reasons.
"""

import importlib
import inspect
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.peer_program import SOURCE, fork_alone, minimal_env, run_beside

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "described_surface.py"
PACKAGE = ROOT / "src/smalti/compat/streaming"
PAGE = (ROOT / "docs/mosaicml.md").read_text(encoding="utf-8")
LEFT_OUT = dict(re.findall(r"^\| `(.*?)` \| (.*?) \|$", PAGE.split("## Left out\n")[1].split("\n## ")[0], re.MULTILINE))
STUBS = ROOT / "tests/golden/peer_stubs"


@pytest.fixture(scope="module")
def surfaces(peer, tmp_path_factory):
    """Return the descriptions of both, by name."""
    python, paths = peer
    folder = tmp_path_factory.mktemp("surface")
    there, here = folder / "there.json", folder / "here.json"
    fork_alone(python, paths, [PROGRAM, there, folder / "there"])
    alias = [sys.executable, "-m", "smalti.compat.streaming"]
    run_beside([*alias, PROGRAM, here, folder / "here", there], minimal_env([STUBS, SOURCE]))
    return json.loads(there.read_text()), json.loads(here.read_text())


def differs(there, here):
    """Return whether a program could notice: more base classes than there are allowed, and a setter."""
    if here is None or here.keys() != there.keys():
        return True
    if "bases" in there:
        return here["class"] != there["class"] or not set(there["bases"]) <= set(here["all bases"])
    return here != there and (there, here) != ({"attribute": "readable"}, {"attribute": "settable"})


def differences(surfaces):
    there, here = surfaces
    return {key: f"{there[key]} there, {here[key]} here" for key in there if differs(there[key], here[key])}


def covers(entry, key):
    return any(fnmatchcase(key, entry + rest) for rest in ("", ".*", ":*", " *"))


def listed(key):
    return any(covers(entry, key) for entry in LEFT_OUT)


def test_the_interface_is_mosaicmls_but_for_the_list(surfaces):
    found = differences(surfaces)
    assert {key: both for key, both in found.items() if not listed(key)} == {}


def test_nothing_stands_in_the_list_that_is_there(surfaces):
    found = differences(surfaces)
    assert [entry for entry in LEFT_OUT if not any(covers(entry, key) for key in found)] == []


def test_the_description_of_there_is_not_empty(surfaces):
    there, _ = surfaces
    assert len(there) > 800
    assert len(LEFT_OUT) > 5
    assert there["streaming.base.util:bytes_to_int"] == {"function": "(positional or keyword bytes_str)"}
    assert there["streaming.base.format.mds.writer:MDSWriter"]["all bases"] == ["JointWriter", "Writer"]


def test_type_checkers_see_each_name_that_is_imported_on_first_use():
    found = {str(path.parent.relative_to(PACKAGE)): names_of(path) for path in PACKAGE.rglob("__init__.py")}
    lazy = {folder: names for folder, names in found.items() if names is not None}
    assert set(lazy) == {".", "base"}
    assert [folder for folder, (at_runtime, for_checkers) in lazy.items() if at_runtime != for_checkers] == []


def names_of(path):
    """Return the names that a package imports on first use, and those that it imports for type checkers."""
    code = path.read_text()
    if "lazy_package(" not in code:
        return None
    module = importlib.import_module(".".join(path.parent.relative_to(PACKAGE.parents[2]).parts))
    homes = inspect.getclosurevars(module.__getattr__).nonlocals["homes"]
    for_checkers = re.findall(
        rf"^    from {re.escape(module.__name__)}\.[\w.]* import (\w+) as \1$", code, re.MULTILINE
    )
    return set(homes), set(for_checkers)


def test_a_module_of_mosaicmls_that_shares_one_here_has_its_names_also_to_assign(monkeypatch):
    paths = {f"base.format.{kind}.{part}" for kind in ("json", "xsv") for part in ("encodings", "reader", "writer")} | {
        f"base.shared.{part}" for part in ("array", "barrier", "memory", "prefix", "scalar")
    }
    for path in paths:
        home = importlib.import_module(f"smalti.compat.streaming.{path.rpartition('.')[0]}")
        module = importlib.import_module(f"smalti.compat.streaming.{path}")
        assert (module.__name__, home.__spec__.name) == (f"smalti.compat.streaming.{path}", home.__name__)
        assert all(getattr(module, name) is getattr(home, name) for name in home.__all__)
        monkeypatch.setattr(module, home.__all__[0], path)
        assert getattr(home, home.__all__[0]) == path
        monkeypatch.undo()


STARS = {
    "base.array": {"Array"},
    "base.compression": {
        "compress", "decompress", "get_compression_extension", "get_compressions", "is_compression",
    },
    "base.distributed": {
        "all_gather", "barrier", "broadcast", "get_local_rank", "get_local_world_size", "get_rank", "get_world_size",
    },
    "base.format.base": {"FileInfo", "Reader"},
    "base.format.base.reader": {"FileInfo", "JointReader", "Reader", "SplitReader"},
    "base.format.json": {"JSONReader", "JSONWriter", "is_json_encoded", "is_json_encoding"},
    "base.format.xsv": {
        "CSVReader", "CSVWriter", "TSVReader", "TSVWriter", "XSVReader", "XSVWriter", "is_xsv_encoding", "xsv_decode",
        "xsv_encode",
    },
    "base.hashing": {"get_hash", "get_hashes", "is_hash"},
    "base.sampling": {"get_sampling"},
    "base.spanner": {"Spanner"},
    "base.world": {"World"},
}  # fmt: skip


@pytest.mark.parametrize("path", STARS)
def test_a_star_import_of_a_path_that_shares_a_module_gives_the_names_of_that_path(path):
    names = {}
    exec(f"from smalti.compat.streaming.{path} import *", names)
    assert names.keys() - {"__builtins__"} == STARS[path]


def test_a_star_import_of_the_storage_gives_no_modules():
    names = {}
    exec("from smalti.compat.streaming.base.storage import *", names)
    assert {"S3Downloader", "S3Uploader", "download_file"} <= names.keys()
    assert not {"download", "upload"} & names.keys()


SERVED = {
    "distributed": ("base.world", "get_rank"),
    "hashing": ("base.compression", "is_hash"),
    "sampling": ("order.sampling", "get_sampling"),
    "spanner": ("base.array", "Spanner"),
}
PICKLE = """
import pickle
import sys
from importlib import import_module

import cloudpickle

path, home, name = sys.argv[1:]
module = import_module(f"smalti.compat.streaming.base.{path}")
assert pickle.loads(cloudpickle.dumps(module)) is module  # as in the functions that Spark sends
assert f"smalti.compat.streaming.{home}" not in sys.modules
assert home.replace(".", "/") in module.__file__
assert name in dir(module)
"""
PATCH = """
import sys
from importlib import import_module
from unittest import mock

path, home, name = sys.argv[1:]
module = import_module(f"smalti.compat.streaming.base.{path}")
assert f"smalti.compat.streaming.{home}" not in sys.modules
for _ in range(2):  # before the module has its names, and after that
    with mock.patch(f"smalti.compat.streaming.base.{path}.{name}", 7):
        home_module = sys.modules[f"smalti.compat.streaming.{home}"]
        assert (getattr(module, name), getattr(home_module, name)) == (7, 7)
    assert getattr(module, name) is getattr(home_module, name) != 7
"""


@pytest.mark.parametrize("path", SERVED)
def test_a_module_without_a_file_is_patched_together_with_the_one_that_has_its_names(path):
    run_beside([sys.executable, "-c", PATCH, path, *SERVED[path]], minimal_env([SOURCE]))


@pytest.mark.parametrize("path", SERVED)
def test_a_module_without_a_file_is_pickled_as_a_reference_and_lists_its_names(path):
    run_beside([sys.executable, "-c", PICKLE, path, *SERVED[path]], minimal_env([SOURCE]))
