"""A guide of docs/: its blocks of code, and its commands in their order."""

import doctest
import re
import runpy
import shlex
import subprocess
from pathlib import Path

from smalti.cli import main
from tests.cli.test_page import masked

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w.-]+\.(?:py|yaml|sbatch))`")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_MAY_FAIL = {"doctor": (0, 3), "diff": (0, 4)}
"""Exit statuses of commands that find something: `doctor` also looks at the machine of the tests."""


class Guide:
    """A page, with texts of it replaced by what the tests have."""

    def __init__(self, name, **replaced):
        self.text = (DOCS / name).read_text()
        for old, new in replaced.items():
            assert old in self.text
            self.text = self.text.replace(old, new)

    def blocks(self, kind, containing=""):
        """Return the blocks of a kind that contain a text, without their indentation."""
        found = [match for match in _BLOCK.finditer(self.text) if match[2] == kind]
        texts = [re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE) for match in found]
        return [text for text in texts if containing in text]

    def block(self, kind, containing=""):
        """Return the only such block."""
        [text] = self.blocks(kind, containing)
        return text

    def write_files(self, folder, kinds=("python", "yaml", "bash")):
        """Write each block that the sentence before it names as a file."""
        begin = 0
        for match in _BLOCK.finditer(self.text):
            before = self.text[begin : match.start()].rstrip().rpartition("\n\n")[2]
            names = _NAMED.findall(before)
            if match[2] in kinds and names:
                (folder / names[-1]).write_text(match[3])
            begin = match.end()

    def commands(self):
        """Yield the commands of the page with their outputs, `...` for what differs."""
        for block in self.blocks("console"):
            yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)

    def run_commands(self, capsys):
        """Run the commands of Python and Smalti in this process; return their number."""
        commands = list(self.commands())
        for line, expected in commands:
            program, *words = shlex.split(line)
            if program == "python":
                runpy.run_path(words[0], run_name="__main__")
            else:
                assert program == "smalti"
                assert main(words) in _MAY_FAIL.get(words[0], (0,)), "".join(capsys.readouterr())
            printed = capsys.readouterr().out
            assert not expected or same(expected, printed), f"$ {line}\n{printed}"
        return len(commands)


def same(expected, printed):
    """Return whether two outputs are equal, but for digests, times and what `...` stands for."""
    return doctest.OutputChecker().check_output(masked(expected), masked(printed), _FLAGS)


def check_shell(text):
    """Check that a shell can parse a script."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=30, check=False)
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
