"""Tests the library with the packages that its metadata allows: the newest ones, or the oldest (`lowest-direct`).

Makes an environment of its own for the Python that runs this program, and runs in it the tests of the library that need
neither a server beside it nor the code location. Needs uv. torch is taken from PyTorch's index of CPU builds; where it
is not available, the tests without it run, and the last line says so.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EXTRAS = "cli,spark,s3,gcs,azure,oci,sftp,hf,https,databricks"
TEST_PACKAGES = [
    "hypothesis>=6.120",
    "pytest>=9.1",
    "pytest-timeout>=2.4",
    "pytest-xdist>=3.8",
    "moto[s3,server]>=5.1",
    "trustme>=1.2",
    "gcp-storage-emulator>=2026.7",
]
FOLDERS = (
    "format", "catalog", "writer", "dataset", "cache", "stream", "order", "images", "ledger", "sources", "storage",
    "hostile", "golden", "cli", "conversion", "exporting", "exchange", "inspection", "diagnosis",
)  # fmt: skip
SPARK = ("spark/writing/test_convert.py", "spark/prepared/test_prepare.py")
LOADERS = ("torch/test_loader.py", "torch/test_plain_loader.py")


def main() -> int:
    """Make the environment, run the tests, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resolution", choices=("highest", "lowest-direct"), default="highest")
    parser.add_argument("--wheel", type=Path, help="test this wheel (default: this folder)")
    parser.add_argument("--no-spark", action="store_true", help="leave out the tests that start Java")
    options = parser.parse_args()
    folder = ROOT / ".venv" / f"python{platform.python_version()}-{options.resolution}"
    python = folder / "bin" / "python"
    has_torch = _make_environment(python, options.resolution, options.wheel)
    folders = [f"tests/{name}" for name in FOLDERS if (ROOT / "tests" / name).exists()]
    loaders = [f"tests/{name}" for name in LOADERS] if has_torch else []
    marks = "not slow and not spark" if has_torch else "not slow and not spark and not torch"
    without = [] if has_torch else [f"--ignore={path}" for path in _files_with_torch(folders)]
    status = _test(python, [*folders, *loaders, *without], marks)
    if status == 0 and not options.no_spark:
        status = _test(python, [f"tests/{name}" for name in SPARK], "not torch and not nightly")
    if not has_torch:
        print(f"torch cannot be had from {CPU_INDEX}: the tests that need it did not run")
    return status


def _make_environment(python: Path, resolution: str, wheel: "Path | None") -> bool:
    """Install the library and what its tests need; return whether torch is there too."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "-q", "--python", str(python)]
    target = ["-e", f"{ROOT}[{EXTRAS}]"] if wheel is None else [f"smalti[{EXTRAS}] @ {wheel.resolve().as_uri()}"]
    declared = [str(ROOT / "pyproject.toml"), *(f"--extra={extra}" for extra in EXTRAS.split(","))]
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(python.parents[1])], check=True)
    torch = subprocess.run([*install, "--index-url", CPU_INDEX, "torch"], check=False)
    # The tests' own packages are the newest ones that go with the library's.
    pins = python.parents[1] / "library.txt"
    compiled = [uv, "pip", "compile", "-q", "--python", str(python), "--resolution", resolution, "-o", str(pins)]
    subprocess.run([*compiled, *declared], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*install, "-c", str(pins), *target, *TEST_PACKAGES], check=True)
    return torch.returncode == 0


def _files_with_torch(folders: "list[str]") -> "list[str]":
    """Return the test files that import torch when they are collected."""
    pattern = re.compile(
        r"^(from smalti\.torch|import torch|from torch|from tests\.dataset\.mixture_rank_process)", re.MULTILINE
    )
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return [str(file.relative_to(ROOT)) for file in files if pattern.search(file.read_text())]


def _test(python: Path, paths: "list[str]", marks: str) -> int:
    """Run tests beside the installed library; return pytest's exit status."""
    command = [str(python), "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command += ["-W", "ignore:The distutils package is deprecated"]  # PySpark 3.5 imports it
    command += ["-m", marks]
    environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
    return subprocess.run([*command, *paths], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
