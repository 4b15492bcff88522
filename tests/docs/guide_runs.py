"""A guide of docs/ followed literally: its files are saved, and its commands run in their order, in an empty folder.

A block of Python is saved under the name in backquotes that stands last before it. One with a title, such as
`title="before"`, is code of another library, which need not be installed: it is not run.
"""

import doctest
import re
import runpy
import shlex
import sys
from pathlib import Path

import torch

from smalti.cli import main
from tests.cli.test_page import masked

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)( title=\"[^\"]+\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(\w+\.py)`")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
QUESTION = re.compile(r"^\*\*[^*\n]+\*\* \S", re.MULTILINE)


def page(name):
    """Return the text of a page."""
    return (DOCS / name).read_text(encoding="utf-8")


def foreign_code(name):
    """Return the blocks of a page that are not run."""
    return [text for kind, title, text in BLOCK.findall(page(name)) if kind == "python" and title]


def save_files(name):
    """Write the files of a page into the current folder; return their names."""
    text, begin, names = page(name), 0, []
    for block in BLOCK.finditer(text):
        if block[1] == "python" and not block[2]:
            names.append(NAMED.findall(text[begin : block.start()])[-1])
            Path(names[-1]).write_text(block[3], encoding="utf-8")
        begin = block.end()
    return names


def follow(name, capsys):
    """Run the commands of a page, and compare what they print with what it shows; return what each printed."""
    printed = {}
    for kind, _, text in BLOCK.findall(page(name)):
        for line, expected in COMMAND.findall(text) if kind == "console" else ():
            printed[line] = output_of(line, capsys)
            assert not expected or same(expected, printed[line]), f"$ {line}\n{printed[line]}"
    return printed


def output_of(line, capsys):
    """Return what a command prints: a program of the page, or a command of `smalti`."""
    program, *words = shlex.split(line)
    if program == "python":
        run_program(words[0])
    else:
        assert program == "smalti"
        assert main(words) in ((0, 4) if words[0] == "diff" else (0,)), "".join(capsys.readouterr())
    return capsys.readouterr().out


def run_program(name):
    """Run a program of the current folder, which may import others of the folder; torch takes one thread."""
    folder, known, threads = str(Path.cwd()), set(sys.modules), torch.get_num_threads()
    sys.path.insert(0, folder)
    torch.set_num_threads(1)
    try:
        runpy.run_path(name, run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(folder)
        for each in set(sys.modules) - known:
            if str(getattr(sys.modules[each], "__file__", None)).startswith(folder):
                del sys.modules[each]


def same(expected, printed):
    """Return whether two outputs are equal; sizes of encoded images differ with the version of their encoder."""
    texts = (re.sub(r"[\d.]+ (KiB|bytes)", "SIZE", masked(text)) for text in (expected, printed))
    return doctest.OutputChecker().check_output(*texts, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
