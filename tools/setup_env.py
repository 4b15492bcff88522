"""Makes the project's virtual environment: what `make setup` runs, with any Python 3.10+ and nothing else installed.

torch comes first and alone: on Linux its default build brings gigabytes of CUDA, which a machine without a GPU does not
want. Tried in this order: a wheel that pip is configured to find on this machine, PyTorch's index of CPU builds, PyPI.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PEER_REQUIREMENTS = ROOT / "tools" / "peer-requirements.txt"
SERVERS = ROOT / "tools" / "servers"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
HEARTBEAT_SECONDS = 15


def main() -> int:
    """Create the environment or bring it up to date; returns an exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--extras", default="all,dev")
    options = parser.parse_args()
    if sys.version_info < (3, 10):
        return _fail(f"Smalti needs Python 3.10 or newer, this is {platform.python_version()}: make PYTHON=python3.12")
    started = time.monotonic()
    python = _create(options.venv)
    if python is None:
        return 1
    log = options.venv / "install.log"
    log.write_text("")
    if not (_install_torch(python, log) and _install_project(python, options.extras, log)):
        return _fail(f"the installation failed; its last lines, from {log}:\n" + _tail(log))
    _install_peer(python, options.venv / "peer", log)
    _install_servers(options.venv / "servers", log)
    print(f"==> ready in {time.monotonic() - started:.0f} s: {options.venv}")
    _check_java()
    return 0


def _create(folder: Path) -> "Path | None":
    python = folder / "bin" / "python"
    if python.exists():
        return python
    print(f"==> creating {folder} with Python {platform.python_version()}", flush=True)
    try:
        venv.EnvBuilder(with_pip=True).create(folder)
    except (subprocess.CalledProcessError, SystemExit, ImportError):
        shutil.rmtree(folder, ignore_errors=True)  # half an environment would look like a whole one next time
        _fail(
            "Python could not create a virtual environment; its `venv` module is incomplete. On Debian and Ubuntu: "
            "sudo apt-get install python3-venv"
        )
        return None
    return python


def _install_torch(python: Path, log: Path) -> bool:
    if not _wants_cpu_build():
        return True
    pin = _pin("torch")
    if _has(python, "torch"):
        return True
    attempts = [
        ("a wheel on this machine", ["--no-index", pin]),
        ("PyTorch's CPU builds", ["--index-url", CPU_INDEX, "--timeout", "20", "--retries", "1", pin]),
    ]
    for where, arguments in attempts:
        # Its dependencies are ordinary ones, and come with the project's.
        if _pip(python, ["--no-deps", *arguments], log, f"torch from {where}"):
            return True
    print("==> no CPU build of torch can be had here: taking PyPI's, which may bring CUDA libraries (gigabytes)")
    return True


def _install_project(python: Path, extras: str, log: Path) -> bool:
    """Install with uv, which takes a part of pip's time, or with pip if uv is not available or fails."""
    arguments, what = ["-e", f"{ROOT}[{extras}]", "-c", str(CONSTRAINTS)], f"smalti[{extras}]"
    if _pip(python, [_pin("uv")], log, "uv"):
        # pip takes the best version of all indexes; uv by default stops at the first index that has any.
        options = ["--python", str(python), "--index-strategy", "unsafe-best-match", *_sources_of_pip(python)]
        if _run([str(python.parent / "uv"), "pip", "install", *options, *arguments], log, what):
            return True
        print("==> note: uv failed (see install.log); pip tries the same")
    return _pip(python, arguments, log, what)


def _sources_of_pip(python: Path) -> "list[str]":
    """Return where pip is configured to look for packages, as options of uv, which does not read pip's files."""
    command = [str(python), "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    found = [re.fullmatch(r".*\.([a-z-]+)='(.*)'", line) for line in lines]
    settings = {match[1]: match[2] for match in found if match is not None}
    names = ("find-links", "extra-index-url", "index-url")
    return [part for name in names for each in settings.get(name, "").split() for part in (f"--{name}", each)]


def _install_peer(python: Path, folder: Path, log: Path) -> None:
    if (folder / "streaming").is_dir():
        return
    arguments = ["--no-deps", "--target", str(folder), "-r", str(PEER_REQUIREMENTS)]
    if not _pip(python, arguments, log, "MosaicML Streaming beside it, for tests of interoperability"):
        print("==> note: that failed (see install.log); the tests that need it will be skipped, nothing else needs it")


def _install_servers(folder: Path, log: Path) -> None:
    """Azurite, which the tests of Azure talk to; it comes from npm, with every version pinned by the lock file."""
    lock = (SERVERS / "package-lock.json").read_bytes()
    kept = folder / "package-lock.json"
    if kept.is_file() and kept.read_bytes() == lock and (folder / "node_modules" / "azurite").is_dir():
        return
    if shutil.which("npm") is None or shutil.which("node") is None:
        print("==> note: no node and npm here; the tests of Azure's storage need them, nothing else does")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SERVERS / name, folder / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    if not _run(command, log, "Azurite, for the tests of Azure's storage"):
        kept.unlink(missing_ok=True)
        print("==> note: that failed (see install.log); the tests of Azure's storage need it, nothing else does")


def _pip(python: Path, arguments: "list[str]", log: Path, what: str) -> bool:
    return _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments], log, what)


def _run(command: "list[str]", log: Path, what: str) -> bool:
    print(f"==> installing {what}", flush=True)
    with log.open("a") as out:
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        started = time.monotonic()
        while True:
            try:
                return child.wait(HEARTBEAT_SECONDS) == 0
            except subprocess.TimeoutExpired:
                print(f"    ... {time.monotonic() - started:.0f} s", flush=True)


def _wants_cpu_build() -> bool:
    # PyPI's builds for macOS hold no CUDA.
    return platform.system() == "Linux" and shutil.which("nvidia-smi") is None


def _pin(package: str) -> str:
    found = re.search(rf"^{package}==\S+$", CONSTRAINTS.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{CONSTRAINTS} pins no version of {package}.")
    return found.group()


def _has(python: Path, module: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([str(python), "-c", probe], check=False).returncode == 0


def _check_java() -> None:
    if shutil.which("java") is None:
        print(
            "==> note: no Java was found. Spark needs Java 17 or newer:\n"
            "    Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless\n"
            "    Fedora, RHEL:    sudo dnf install java-17-openjdk-headless\n"
            "    macOS:           brew install openjdk@17, and follow its note on PATH"
        )


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _fail(message: str) -> int:
    print(f"setup: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
