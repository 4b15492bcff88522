"""Detection of Java: the right one is chosen, and its absence is explained."""

import pytest

from smalti.errors import MissingDependency
from smalti.java import detect_java, install_advice


def fake_java(home, line, status=0):
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{line}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Set up an environment without JAVA_HOME, whose PATH has only a shell."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return monkeypatch


def test_java_home_comes_first(bare, tmp_path):
    first = fake_java(tmp_path / "a", 'openjdk version "21.0.2" 2024-01-16')
    second = fake_java(tmp_path / "b", 'openjdk version "17.0.15" 2025-04-15')
    bare.setenv("JAVA_HOME", str(first))
    bare.setenv("PATH", str(second / "bin"))
    found = detect_java([])
    assert (found.home, found.version) == (first, 21)


def test_a_java_that_is_too_old_is_skipped_for_one_in_a_usual_place(bare, tmp_path):
    old = fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    fake_java(tmp_path / "jvm" / "java-17", 'openjdk version "17.0.15" 2025-04-15')
    bare.setenv("PATH", str(old / "bin"))
    assert detect_java([f"{tmp_path}/jvm/*/bin/java"]).version == 17


def test_an_old_java_is_named_in_the_message(bare, tmp_path):
    old = fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    bare.setenv("JAVA_HOME", str(old))
    with pytest.raises(MissingDependency, match=r"Java 17 or newer; found: .*old/bin/java is version 8"):
        detect_java([])


def test_the_stub_of_macos_is_no_java(bare, tmp_path):
    stub = fake_java(tmp_path / "stub", "Unable to locate a Java Runtime.", status=1)
    bare.setenv("PATH", str(stub / "bin"))
    with pytest.raises(MissingDependency, match="does not run"):
        detect_java([])


def test_without_java_the_message_explains_how_to_install_one(bare):
    with pytest.raises(MissingDependency, match="found: none") as caught:
        detect_java([])
    assert "nstall" in str(caught.value)


@pytest.mark.parametrize(
    ("system", "command"),
    [("Linux", "apt-get install"), ("Linux", "dnf install"), ("Darwin", "brew install openjdk@17")],
)
def test_the_advice_fits_the_system(system, command):
    assert command in install_advice(system)
