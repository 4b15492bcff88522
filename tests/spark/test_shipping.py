"""Functions whose modules only this process has: pickled here, and run by a Python that cannot import them."""

import base64
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smalti.spark.rows import ship_function

DRIVER = """
import base64, sys, threading
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from pyspark import cloudpickle
from smalti.spark.rows import ship_function
from mine.text import encode
session = SimpleNamespace(conf={"spark.master": sys.argv[2]})
print(*ship_function(session, encode))
print(base64.b64encode(cloudpickle.dumps(encode)).decode())
"""
EXECUTOR = "import base64, pickle, sys; print(pickle.loads(base64.b64decode(sys.argv[1]))('ab'))"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package whose function uses one in a module beside it, and one in a second package."""
    for name, code in {
        "mine/__init__.py": "",
        "mine/text.py": "from mine.codes import code\nfrom other import SHIFT\n"
        "def encode(text):\n    return [code(each) + SHIFT for each in text]\n",
        "mine/codes.py": "def code(letter):\n    return ord(letter)\n",
        "other.py": "SHIFT = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    return tmp_path


def test_a_function_runs_without_its_module_and_those_beside_it(project: Path) -> None:
    names, pickled = python("-c", DRIVER, str(project), "spark://host:7077").stdout.splitlines()
    assert names == "mine other"
    assert python("-c", EXECUTOR, pickled).stdout == "[98, 99]\n"


@pytest.mark.parametrize(
    ("master", "more"),
    [("local[2]", ""), ("spark://host:7077", "import threading\nLOCK = threading.Lock()\nold, code = code, "
      "lambda letter: (LOCK, old(letter))[1]\n")],
)  # fmt: skip
def test_a_local_master_and_what_cannot_be_pickled_by_value_keep_the_name_of_the_module(
    project: Path, master: str, more: str
) -> None:
    with (project / "mine" / "codes.py").open("a") as file:
        file.write(more)
    names, pickled = python("-c", DRIVER, str(project), master).stdout.splitlines()
    assert names == ""
    assert base64.b64decode(pickled).find(b"mine.text") > 0
    assert "No module named 'mine'" in python("-c", EXECUTOR, pickled).stderr


def test_an_installed_function_is_not_sent() -> None:
    session: Any = SimpleNamespace(conf={"spark.master": "yarn"})
    import pyarrow.compute

    assert ship_function(session, pyarrow.compute.cast) == []
    assert ship_function(session, base64.b64encode) == []
