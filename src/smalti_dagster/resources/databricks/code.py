"""This code as a wheel, so that a cluster runs exactly the code that the Dagster process runs."""

import hashlib
import importlib.metadata
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = "smalti"
"""Name of the wheel's distribution: it replaces another version of the library that a cluster may have."""

ENTRY_POINT = "smalti-remote"
"""Name of the entry point that the job calls."""

_ENTRY = "smalti_dagster.resources.databricks.entry:main"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal code gives an equal wheel
_WITH_DAGSTER = ("dagster", "dagster-pipes")


@dataclass(frozen=True)
class CodeWheel:
    """A wheel, and the version that names its content."""

    version: str
    contents: bytes

    @property
    def filename(self) -> str:
        """Return the name that pip requires."""
        return f"{DISTRIBUTION}-{self.version}-py3-none-any.whl"


def build_wheel(packages: Sequence[str]) -> CodeWheel:
    """Return a wheel of packages as they are on this disk; its version contains a digest of all files.

    Raises:
        ValueError: a package cannot be found, or is a single module.
    """
    files = {name: contents for package in packages for name, contents in _files_of(package)}
    requirements = _requirements()
    digest = hashlib.sha256("\n".join(requirements).encode())
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    base = importlib.metadata.version(DISTRIBUTION).partition("+")[0]
    version = f"{base}+{digest.hexdigest()[:16]}"
    info = f"{DISTRIBUTION}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requirements)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n{needs}".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: smalti\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{ENTRY_POINT} = {_ENTRY}\n".encode()
    record = f"{info}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*sorted(files), record]).encode()
    return CodeWheel(version, _zipped(files))


def _files_of(package: str) -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"there is no package {package!r} to send to the cluster")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _requirements() -> list[str]:
    """Return the library's own requirements, and Dagster as it is here; Spark and pandas are the cluster's."""
    own = [each for each in importlib.metadata.requires(DISTRIBUTION) or () if "extra ==" not in each]
    return [*own, *(f"{name}=={importlib.metadata.version(name)}" for name in _WITH_DAGSTER)]


def _zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
    return stream.getvalue()
