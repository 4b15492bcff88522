"""A guide of docs/, followed literally: its files are saved, and its commands run in their order.

A block is saved under the name in backquotes that stands last in the paragraph before it. One with a title, such as
`title="before"`, is code of another library, which need not be installed: it is not run.
"""

import doctest
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from smalti.cli import main
from tests.cli.test_page import masked

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^( *)```(\w+)( title=\"[^\"]+\")?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w.-]+\.(?:py|yaml|sbatch))`")
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_FILES = ("python", "yaml", "bash")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_MAY_FAIL = {"doctor": (0, 3), "diff": (0, 4)}
"""Exit statuses of commands that find something: `doctor` also looks at the machine of the tests."""


class Guide:
    """A page, with texts of it replaced by what the tests have."""

    def __init__(self, name, **replaced):
        self.text = (DOCS / name).read_text(encoding="utf-8")
        for old, new in replaced.items():
            assert old in self.text
            self.text = self.text.replace(old, new)

    def blocks(self, kind, containing=""):
        """Return the blocks of a kind that contain a text, without their indentation."""
        found = [match for match in _BLOCK.finditer(self.text) if match[2] == kind and not match[3]]
        texts = [re.sub(rf"^{match[1]}", "", match[4], flags=re.MULTILINE) for match in found]
        return [text for text in texts if containing in text]

    def block(self, kind, containing=""):
        """Return the only such block."""
        [text] = self.blocks(kind, containing)
        return text

    def foreign_code(self):
        """Return the programs of another library."""
        return [match[4] for match in _BLOCK.finditer(self.text) if match[2] == "python" and match[3]]

    def write_files(self, folder):
        """Write each block that the paragraph before it names as a file; return their names."""
        begin, written = 0, []
        for match in _BLOCK.finditer(self.text):
            before = self.text[begin : match.start()].rstrip().rpartition("\n\n")[2]
            names = _NAMED.findall(before)
            if match[2] in _FILES and not match[3] and names:
                (folder / names[-1]).write_text(match[4], encoding="utf-8")
                written.append(names[-1])
            begin = match.end()
        return written

    def commands(self):
        """Yield the commands of the page with their outputs, `...` for what differs."""
        for block in self.blocks("console"):
            yield from _COMMAND.findall(block)

    def run_commands(self, capsys):
        """Run the commands, all but `pip install`, and compare what they print; return what each printed.

        Then run the programs again, as readers do who change a line: each has to succeed a second time.
        """
        printed = {}
        for line, expected in self.commands():
            if "pip install" in line:
                continue
            printed[line] = _output_of(line, capsys)
            assert not expected or same(expected, printed[line]), f"$ {line}\n{printed[line]}"
        for line in printed:
            if line.startswith("python "):
                _output_of(line, capsys)
        return printed


def _output_of(line, capsys):
    """Return what a command prints: a program of the page, or a command of `smalti`."""
    program, *words = shlex.split(line)
    if program == "torchrun":
        return _output_of_torchrun(words)
    if program == "python":
        run_program(*words)
    else:
        assert program == "smalti"
        assert main(words) in _MAY_FAIL.get(words[0], (0,)), "".join(capsys.readouterr())
    return capsys.readouterr().out


def _output_of_torchrun(words):
    command = [str(Path(sys.executable).parent / "torchrun"), *words]
    path = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_program(name, *words):
    """Run a program of the current folder, which may import others of the folder; torch takes one thread.

    Several threads of torch wait for each other where other tests use the cores.
    """
    folder, known, threads, before = str(Path.cwd()), set(sys.modules), torch.get_num_threads(), sys.argv
    sys.path.insert(0, folder)
    sys.argv = [name, *words]
    torch.set_num_threads(1)
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        assert end.code is None  # noqa: PT017 - the end that the page means
    finally:
        torch.set_num_threads(threads)
        sys.argv = before
        sys.path.remove(folder)
        for each in set(sys.modules) - known:
            if str(getattr(sys.modules[each], "__file__", None)).startswith(folder):
                del sys.modules[each]


def same(expected, printed):
    """Return whether two outputs are equal, but for digests, times, sizes and what `...` stands for.

    Sizes of encoded images differ with the version of their encoder.
    """
    texts = (re.sub(r"[\d.,]+ (KiB|bytes)", "SIZE", masked(text)) for text in (expected, printed))
    return doctest.OutputChecker().check_output(*texts, _FLAGS)


def check_shell(text):
    """Check that a shell can parse a script."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (0, ""), text


def check_all_shell_blocks(guide):
    for kind in ("sh", "bash"):
        for text in guide.blocks(kind):
            check_shell(text)


def draw_photos(each):
    """Write the program of docs/first-hour.md that draws photos, for so many of each class in place of 200."""
    text = Guide("first-hour.md").block("python", "random.seed(7)")
    assert text.count("range(200)") == 1
    Path("draw.py").write_text(text.replace("range(200)", f"range({each})"))


def torchrun_options(words):
    """Return the arguments of `torchrun` as its own parser reads them."""
    from torch.distributed.run import get_args_parser

    return get_args_parser().parse_args(words)
