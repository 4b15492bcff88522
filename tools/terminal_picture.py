"""Makes docs/images/terminal.svg: the commands of the first hour in a terminal, with what they really print.

    python tools/terminal_picture.py      (half a minute; `pip install 'smalti[train,cli]'` first)

The programs are those of docs/first-hour.md.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS = 100
PROGRAMS = ("draw.py", "read.py")
COMMANDS = (
    "smalti convert photos shapes --split-by split --setting validation_fraction=0.2",
    "smalti head shapes --split train -n 3 --columns class_name,image,label",
    "smalti verify shapes",
    "python read.py",
)
# A picture makes no request to another server.
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def program(name: str) -> str:
    """Return the program of the page with this name."""
    page = (DOCS / "first-hour.md").read_text(encoding="utf-8")
    found = re.search(rf"`{re.escape(name)}`:\n\n```python\n(.*?)```", page, re.DOTALL)
    if found is None:
        raise SystemExit(f"docs/first-hour.md has no program {name}")
    return found[1]


def output(command: str, folder: Path) -> str:
    """Return what a command prints in a folder; one that fails ends this program."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "TTY_COMPATIBLE": "0"}
    return subprocess.run(
        shlex.split(command), cwd=folder, env=environment, text=True, check=True, stdout=subprocess.PIPE, timeout=300
    ).stdout


def main() -> None:
    """Run the commands, and write the picture."""
    with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w", encoding="utf-8") as nothing:
        folder, console = Path(name), Console(record=True, width=COLUMNS, file=nothing)
        for file in PROGRAMS:
            (folder / file).write_text(program(file), encoding="utf-8")
        output("python draw.py", folder)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            console.print(Text.from_ansi(output(command, folder).rstrip()))
    picture = console.export_svg(title="smalti", code_format=TEMPLATE, unique_id="smalti")
    (DOCS / "images" / "terminal.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
