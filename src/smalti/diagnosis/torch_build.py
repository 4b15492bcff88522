"""Checks of PyTorch: its version, its build, and the GPUs of this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from smalti.diagnosis.findings import Finding, State
from smalti.diagnosis.packages import installed_version, requirement

IMPORT_SECONDS = 90.0
"""Time limit for a process that imports torch and starts its driver."""
_GPU_DEVICES = {"NVIDIA": ("dev/nvidia[0-9]*", "proc/driver/nvidia/gpus/*"), "AMD": ("dev/kfd",)}
_BUILD = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *'([^']+)'", re.MULTILINE)
_SELECTOR = "choose the build for your driver at https://pytorch.org/get-started/locally and install it with pip"
_ASK = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"


def check_torch(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield what is found about PyTorch; `root` is the folder below which the devices of GPUs are."""
    gpus = {maker: len(list(root.glob(patterns[0]))) for maker, patterns in _GPU_DEVICES.items()}
    gpus = {maker: number for maker, number in gpus.items() if number}
    shown = ", ".join(f"{number} of {maker}" for maker, number in gpus.items())
    version = installed_version("torch")
    if version is None:
        yield Finding("torch", State.SKIPPED, "PyTorch is not installed", "for training: pip install 'smalti[torch]'")
        return
    wanted = requirement("torch", "torch")
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        text = f"torch {version}; smalti[torch] needs torch{wanted.specifier}"
        yield Finding("torch", State.FAULT, text, f"pip install 'torch{wanted.specifier}'")
        return
    build = _build()
    what = f"torch {version}, built for {build or 'the CPU'}"
    yield Finding("torch", State.OK, what)
    if not gpus:
        yield Finding("gpu", State.OK, "none seen" if build is None else "none seen: this build would use one")
    elif build is None:
        text = f"{shown} in this machine, but torch {version} is a build for the CPU"
        yield Finding("gpu", State.FAULT, text, _SELECTOR)
    else:
        yield _use_of_gpus(shown, build)


def _build() -> str | None:
    """Return what torch was built for, such as "cuda 12.8", without importing it; None for the CPU."""
    spec = PathFinder.find_spec("torch")  # what is installed, also if another one was imported before
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / "version.py"
        if path.is_file():
            found = _BUILD.search(path.read_text(encoding="utf-8", errors="replace"))
            return f"{found[1]} {found[2]}" if found else None
    return None


def _use_of_gpus(shown: str, build: str) -> Finding:
    """Return whether torch can use the GPUs, asked in a process of its own: a broken driver can end it."""
    try:
        done = subprocess.run(  # noqa: S603 -- this very Python
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"{shown}, but torch did not answer within {IMPORT_SECONDS:.0f} s"
        return Finding("gpu", State.FAULT, text, "check the driver with `nvidia-smi`, and restart the machine")
    answer = done.stdout.split()
    if done.returncode == 0 and answer[:1] == ["True"]:
        return Finding("gpu", State.OK, f"{shown}, {answer[1]} usable by torch ({build})")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    why = f": {lines[-1][:200]}" if lines else ""
    text = f"{shown}, but torch (built for {build}) can use none{why}"
    return Finding("gpu", State.FAULT, text, f"update the driver, see `nvidia-smi`; or {_SELECTOR}")
