"""The environment of the comparison: a virtual environment of its own, laid over the project's.

The project's packages are found behind its own, so that everybody runs on the same torch, numpy and Arrow, and nothing
that is installed here can change what the project is tested with.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv" / "bench"
PYTHON = FOLDER / "bin" / "python"
_HERE = Path(__file__).parent
_MINUTES = 15


def is_inside() -> bool:
    """Whether this process runs in it."""
    return Path(sys.prefix).resolve() == FOLDER.resolve()


def setup() -> int:
    """Creates it, or brings it up to date; returns an exit status."""
    if is_inside():
        print("setup runs under the project's own Python: .venv/bin/python -m benchmarks setup", file=sys.stderr)
        return 1
    if not PYTHON.exists():
        print(f"==> creating {FOLDER}", flush=True)
        venv.EnvBuilder(with_pip=True).create(FOLDER)
    base = sysconfig.get_paths()["purelib"]
    paths = {"base": os.fspath(FOLDER), "platbase": os.fspath(FOLDER)}
    # `addsitedir` also follows the .pth file by which the project itself is installed.
    link = Path(sysconfig.get_path("purelib", vars=paths), "zz_project.pth")
    link.write_text(f"import site; site.addsitedir({base!r})\n")
    steps = (
        ["-r", str(_HERE / "requirements.txt"), "-c", str(ROOT / "constraints.txt")],
        ["--no-deps", "-r", str(_HERE / "requirements-bare.txt")],
    )
    for step in steps:
        print(f"==> pip install {' '.join(step)}", flush=True)
        command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step]
        if subprocess.run(command, check=False, timeout=60 * _MINUTES).returncode:
            return 1
    return 0
