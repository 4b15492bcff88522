"""The Java that Spark runs on: found without starting Spark, and advice on how to install one."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smalti.errors import MissingDependency

MIN_JAVA = 17
"""Oldest Java that Spark 4 runs on; Spark 3.5 runs on it too."""

JAVA_PROGRAMS = (
    "/usr/lib/jvm/*17*/bin/java",
    "/usr/lib/jvm/*21*/bin/java",
    "/usr/lib/jvm/*/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",  # Homebrew links no Java into PATH
    "/usr/local/opt/openjdk*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)
"""Patterns of the usual paths of Java programs on Linux and macOS, best first."""

PROBE_SECONDS = 20.0  # `java -version` answers in 0.1 s; a cold disk or a busy machine may need longer
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A Java runtime on this machine."""

    home: Path
    """The folder for JAVA_HOME."""
    version: int
    """Feature release: 17, 21 and so on."""


def detect_java(places: Sequence[str] = JAVA_PROGRAMS) -> Java:
    """Return the Java to run Spark on: that of JAVA_HOME, else of PATH, else of `places`; blocks below a second.

    Args:
        places: Paths of `java`, or patterns of them, that are tried last.

    Raises:
        MissingDependency: None is new enough; the message explains how to install one on this machine.

    Examples:
        >>> java = detect_java()
        >>> java.version >= 17
        True
    """
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    programs = [Path(home) / "bin" / "java"] if home else []
    programs += [Path(on_path)] if on_path else []
    for pattern in places:
        programs += sorted(Path("/").glob(pattern.lstrip("/")))
    seen: dict[Path, str] = {}
    for program in filter(Path.is_file, programs):
        if program.resolve() not in seen:
            version = _ask_version(program)
            if version is not None and version >= MIN_JAVA:
                return Java(program.resolve().parent.parent, version)
            seen[program.resolve()] = f"{program} is version {version}" if version else f"{program} does not run"
    found = "; ".join(seen.values()) or "none, neither in JAVA_HOME, on PATH nor in the usual places"
    raise MissingDependency(
        f"Spark needs Java {MIN_JAVA} or newer; found: {found}. {install_advice(platform.system())}",
        found=tuple(seen.values()),
    )


def install_advice(system: str) -> str:
    """Return one sentence on how to install Java on `system` ("Linux", "Darwin", ...)."""
    if system == "Darwin":
        return "Install it with `brew install openjdk@17` (https://brew.sh); it is found without further settings."
    if system == "Linux":
        return (
            "Install it with `sudo apt-get install -y openjdk-17-jre-headless` (Debian, Ubuntu) or "
            "`sudo dnf install -y java-17-openjdk-headless` (Fedora, RHEL)."
        )
    return "Install a build from https://adoptium.net and set JAVA_HOME to its folder."


def _ask_version(program: Path) -> int | None:
    """Return the feature release of a Java program; None if it fails, as macOS's stub without a Java does."""
    try:
        done = subprocess.run(  # noqa: S603  the program is a Java that the user installed
            [str(program), "-version"], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match.group(1)) if done.returncode == 0 and match else None
