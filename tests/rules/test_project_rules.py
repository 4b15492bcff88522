"""The rules of the project, run as its contributors run them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("src", "assets", "resources", "pipelines", "tests", "tools", "benchmarks")


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(("ruff", "check", "."), id="lint"),
        pytest.param(("ruff", "format", "--check", "."), id="format"),
        pytest.param(("mypy",), id="types", marks=pytest.mark.nightly),  # a minute; `make check` has it, too
        pytest.param(("lint-imports",), id="layers"),
    ],
)
def test_the_project_passes_its_own_rules(tool):
    done = run(str(Path(sys.executable).parent / tool[0]), *tool[1:])
    assert done.returncode == 0, done.stdout + done.stderr


def python_files():
    return [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]


def test_no_file_is_longer_than_700_lines():
    assert [str(path) for path in python_files() if len(path.read_text().splitlines()) > 700] == []


def test_dagster_folders_postpone_no_annotations():
    """Dagster resolves annotations when it loads."""
    forbidden = ("from __future__ import annotations", "TYPE_CHECKING")
    folders = [path for name in ("assets", "resources", "pipelines") for path in (ROOT / name).rglob("*.py")]
    assert folders
    assert [str(path) for path in folders if any(word in path.read_text() for word in forbidden)] == []


def test_the_library_never_prints_outside_the_command_line():
    library = [path for path in (ROOT / "src").rglob("*.py") if "cli" not in path.parts]
    assert [str(path) for path in library if "\n    print(" in path.read_text()] == []


def test_the_programs_own_random_numbers_are_left_alone():
    """A pause of ours, in whichever thread, must not change what a user's seeded program draws next."""
    drawn = re.compile(
        r"(?<![\w.])(np\.)?random\.(uniform|random|randint|randrange|choices?|sample|shuffle|seed|permutation)\("
    )
    library = (ROOT / "src").rglob("*.py")
    assert [str(path) for path in library if drawn.search(path.read_text())] == []


def test_pickle_is_loaded_nowhere():
    """But in the encoding behind `allow_unsafe_types`, and in what a program hands to processes of its own: workers by
    an unnamed file, ranks by a pipe or a Spark task."""
    banned = ("pickle.load", "torch.load(")
    allowed = {"worker_processes.py", "start.py"}
    encoding = ROOT / "src/smalti/format/encodings/text.py"
    library = [path for path in (ROOT / "src").rglob("*.py") if path != encoding and not allowed & set(path.parts)]
    assert [str(path) for path in library if any(word in path.read_text() for word in banned)] == []
