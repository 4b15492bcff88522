"""Workers get every environment variable that a store reads or that docs/storage.md names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import smalti.storage
from smalti.storage.schemes import host_variables, store_variables

SOURCES = sorted(Path(smalti.storage.__file__).parent.glob("**/*.py"))
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
NO_STORE_READS = {"IMAGES_URL"}  # an example of a user's own variable
OF_THE_HOST = {"HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
"""Read by the clients of stores, and set by the administrators of each host."""
RIGHTS_OF_ORACLE = {"OBJECT_INSPECT", "OBJECT_READ", "OBJECT_CREATE", "OBJECT_OVERWRITE", "OBJECT_DELETE"}


def reads_the_environment(tree: ast.Module) -> bool:
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return bool(names & {"environ", "getenv", "detect"})


def variables_in(source: Path) -> set[str]:
    """Return the strings in a module that look like a variable's name, if it reads the environment at all."""
    tree = ast.parse(source.read_text())
    if not reads_the_environment(tree):
        return set()
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if VARIABLE.fullmatch(text)}


def in_the_docs() -> Iterator[str]:
    text = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
    for quoted in re.findall(r"`([^`\n]+)`", text):
        yield from VARIABLE.findall(quoted)


def carried(names: set[str]) -> set[str]:
    return set(store_variables(dict.fromkeys(names, "v")))


def test_every_variable_that_a_store_reads_is_carried() -> None:
    read = set().union(*map(variables_in, SOURCES))
    assert {"HF_ENDPOINT", "GCS_SECRET", "OCI_REGION", "COMPOSER_SFTP_KEY_FILE", "S3_ENDPOINT_URL"} <= read
    assert read - carried(read) - host_variables() == set()


def test_every_variable_that_the_docs_name_is_carried() -> None:
    named = set(in_the_docs()) - RIGHTS_OF_ORACLE - NO_STORE_READS - OF_THE_HOST
    assert {"HF_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME", "AWS_SESSION_TOKEN", "DATABRICKS_CLIENT_SECRET"} <= named
    assert named - carried(named) - host_variables() == set()


@pytest.mark.parametrize("name", ["PATH", "HOME", "HF_HOME", "HTTPS_PROXY", "SMALTI_ROOT", "IDENTITY_HEADER"])
def test_variables_of_this_host_are_not_carried(name: str) -> None:
    assert store_variables({name: "v"}) == {}


def test_a_variable_missing_in_the_registry_is_detected(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        'from smalti.storage.schemes import detect\nkey = detect("B2_KEY", "AWS_REGION")\n'
    )
    read = variables_in(tmp_path / "new.py")
    assert read - carried(read) == {"B2_KEY"}
