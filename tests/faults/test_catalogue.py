"""The table in README.md: every fault has its row, and every test that a row names is there."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "tests" / "faults" / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \|([^|]*)\|$", TABLE, flags=re.MULTILINE))
COUNTS = {"A": 16, "B": 19, "C": 14, "E": 17, "F": 15, "G": 14, "H": 14, "I": 11, "J": 17}
NIGHTLY = "pytest.mark.nightly"
EXPECTED = [f"{section}{number}" for section, count in COUNTS.items() for number in range(1, count + 1)]


@functools.cache
def functions_of(path):
    """The names of the test functions of a file, and whether `make test` runs them."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    marks = " ".join(ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark = "))
    return {
        node.name: not any(NIGHTLY in text for text in (marks, *map(ast.unparse, _marks_of(node))))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def _marks_of(node):
    """Return the decorators of a function but for parameters, of which some may be nightly."""
    return [mark for mark in node.decorator_list if not ast.unparse(mark).startswith("pytest.mark.parametrize")]


def test_every_fault_has_one_row_in_its_order():
    assert re.findall(r"^\| ([A-Z]\d+) \|", TABLE, flags=re.MULTILINE) == EXPECTED


@pytest.mark.parametrize("row", EXPECTED)
def test_a_row_names_tests_that_there_are(row):
    named = re.findall(r"`([^`]+)`", ROWS[row])
    assert named
    for name in named:
        path, _, function = name.partition("::")
        assert function in functions_of(path), name


@pytest.mark.parametrize("row", EXPECTED)
def test_a_row_has_a_test_that_every_run_has(row):
    named = [name.partition("::") for name in re.findall(r"`([^`]+)`", ROWS[row]) if "::" in name]
    assert any(functions_of(path).get(function) for path, _, function in named)


def test_every_test_of_a_row_here_stands_in_that_row():
    for path in sorted((ROOT / "tests" / "faults").glob("test_[abcefghp]*.py")):
        for name in functions_of(path.relative_to(ROOT)):
            if found := re.match(r"test_([abcefgh]\d+)_", name):
                assert f"::{name}`" in ROWS.get(found[1].upper(), ""), f"{path.name}::{name}"
