"""Download the source distributions whose files `tests/nightly/test_corpora.py` converts, for `make test-nightly`.

    python tools/corpora.py

The packages, their versions and their hashes are in tools/corpora.txt. pip downloads no source distribution without
the metadata of a build, for which it would install compilers and run the packages' own programs. So the build backends
that it finds here are stand-ins: they return the PKG-INFO that every source distribution has.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("SMALTI_CORPORA", ROOT / ".venv" / "corpora"))
WANTED = ROOT / "tools" / "corpora.txt"
BACKENDS = (
    "flit_core.buildapi", "hatchling.build", "maturin", "mesonpy", "scikit_build_core.build", "setuptools.build_meta",
    "setuptools_reproducible",
)  # fmt: skip
BACKEND = """
from email.parser import BytesParser
from pathlib import Path


class Backend:
    def prepare_metadata_for_build_wheel(self, folder, config_settings=None):
        facts = Path("PKG-INFO").read_bytes()
        parsed = BytesParser().parsebytes(facts)
        name = parsed["Name"].replace("-", "_").replace(".", "_")
        target = Path(folder, f"{name}-{parsed['Version']}.dist-info")
        target.mkdir()
        (target / "METADATA").write_bytes(facts)
        return target.name

    def get_requires_for_build_wheel(self, config_settings=None):
        return []


__legacy__ = Backend()
prepare_metadata_for_build_wheel = __legacy__.prepare_metadata_for_build_wheel
get_requires_for_build_wheel = __legacy__.get_requires_for_build_wheel


def __getattr__(name):  # what backends within the packages import of these, and do not call
    if name.startswith("__"):
        raise AttributeError(name)
    return prepare_metadata_for_build_wheel
"""


def main() -> None:
    """Download the packages that are not there."""
    if (TARGET / WANTED.name).is_file() and (TARGET / WANTED.name).read_bytes() == WANTED.read_bytes():
        return
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in BACKENDS:
            for depth in range(1, name.count(".") + 2):
                package = Path(folder, *name.split(".")[:depth])
                package.mkdir(exist_ok=True)
                (package / "__init__.py").write_text(BACKEND)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        command += ["--no-build-isolation", "--ignore-requires-python", f"--dest={TARGET}", f"--requirement={WANTED}"]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": folder})
    (TARGET / WANTED.name).write_bytes(WANTED.read_bytes())


if __name__ == "__main__":
    main()
