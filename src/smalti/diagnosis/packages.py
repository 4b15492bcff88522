"""Checks of installed packages against what Smalti itself declares: its requirements, and those of its extras.

Only metadata are read; no package is imported, so that a broken one is found too.
"""

import importlib.metadata
from collections import defaultdict
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from smalti.diagnosis.findings import Finding, State

_COLLECTIONS = frozenset({"all", "dev"})
"""Extras that repeat others, or that serve this project's own development."""


def check_packages() -> Iterator[Finding]:
    """Yield a fault for each package that is missing or does not fit, or one finding that all of them fit."""
    try:
        declared = declared_requirements()
    except importlib.metadata.PackageNotFoundError:
        text = "smalti runs without the metadata of an installation"
        yield Finding("packages", State.SKIPPED, text, "install it with pip to have its requirements checked")
        return
    in_use = [extra for extra, wanted in declared.items() if not extra or all(map(_installed_version, wanted))]
    faults = [found for extra in in_use for each in declared[extra].values() if (found := _misfit(extra, each))]
    yield from dict.fromkeys(faults)
    if not faults:
        extras = ", ".join(sorted(filter(None, in_use))) or "no extra"
        yield Finding("packages", State.OK, f"all fit the requirements of smalti {_smalti_version()} ({extras})")


def declared_requirements() -> dict[str, dict[str, Requirement]]:
    """Return the requirements of the installed Smalti by extra ("" for all) and canonical name of the package.

    Raises:
        importlib.metadata.PackageNotFoundError: it was not installed.
    """
    found: dict[str, dict[str, Requirement]] = defaultdict(dict)
    metadata = importlib.metadata.metadata("smalti")
    extras = set(metadata.get_all("Provides-Extra") or ()) - _COLLECTIONS
    for line in importlib.metadata.requires("smalti") or ():
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name == "smalti":
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            found[""][name] = wanted
            continue
        for extra in extras:
            if wanted.marker.evaluate({"extra": extra}):
                found[extra][name] = wanted
    return dict(found)


def requirement(extra: str, package: str) -> Requirement | None:
    """Return the requirement of an extra on a package; None if there is none, or no metadata of Smalti."""
    try:
        return declared_requirements().get(extra, {}).get(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_version(package: str) -> Version | None:
    """Return the version of an installed package; None if it is not installed."""
    text = _installed_version(package)
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def _installed_version(package: str) -> str:
    """Return the version as text; "" if the package is not installed, or its metadata are broken."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _smalti_version() -> str:
    return importlib.metadata.version("smalti")


def _misfit(extra: str, wanted: Requirement) -> Finding | None:
    version = installed_version(wanted.name)
    if version is not None and wanted.specifier.contains(version, prereleases=True):
        return None
    whose = f"smalti[{extra}]" if extra else "smalti"
    text = f"{wanted.name} {version}" if version else f"{wanted.name} is not installed or has broken metadata"
    return Finding(
        "packages",
        State.FAULT,
        f"{text}; {whose} needs {wanted.name}{wanted.specifier}",
        f"pip install {_quoted(wanted)}",
    )


def _quoted(wanted: Requirement) -> str:
    return f"'{wanted.name}{wanted.specifier}'"
