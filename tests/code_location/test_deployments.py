"""Which resources an environment asks for, and what they hand to the library."""

import json
import re

import dagster as dg
import pytest

from pipelines.deployments import REPOSITORY, detect_resources
from resources.backends import AzureBackend, GcsBackend, LocalBackend, S3Backend, VolumesBackend
from resources.storage import StorageResource
from smalti.storage import LocalStore


def test_the_default_needs_no_environment_at_all() -> None:
    resources = detect_resources({})
    assert resources["storage"].backend == LocalBackend(root=str(REPOSITORY / "data"))
    assert resources["trainer"].run_dir("one") == str(REPOSITORY / "data" / "runs" / "one")
    assert isinstance(resources["storage"].store("shards"), LocalStore)


def test_a_relative_root_is_made_absolute_because_steps_may_run_elsewhere() -> None:
    assert detect_resources({"SMALTI_ROOT": "somewhere"})["storage"].url("a").startswith("/")


@pytest.mark.parametrize("name", ["s3", "gcs", "azure", "volumes"])
def test_a_deployment_without_its_root_says_which_variable_is_missing(name: str) -> None:
    with pytest.raises(ValueError, match="SMALTI_ROOT"):
        detect_resources({"SMALTI_DEPLOYMENT": name})


def test_an_unknown_deployment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="local, s3, gcs, azure, volumes, found 'aws'"):
        detect_resources({"SMALTI_DEPLOYMENT": "aws"})


def options_in_a_step(storage: StorageResource) -> dict[str, object]:
    """What fsspec gets in a step, where references to variables are resolved."""
    seen: dict[str, object] = {}

    @dg.asset
    def probe(storage: StorageResource) -> None:
        seen.update(storage.options())

    assert dg.materialize([probe], resources={"storage": storage}).success
    return seen


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_ACCOUNT_KEY": "k"},
            {"account_name": "acct", "account_key": "k"},
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_SAS_TOKEN": "s"},
            {"account_name": "acct", "sas_token": "s"},
        ),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "acct"}, {"account_name": "acct", "anon": False}),
        (
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=acct;AccountKey=k", "AZURE_STORAGE_ACCOUNT_NAME": "other"},
            {"connection_string": "AccountName=acct;AccountKey=k"},
        ),
    ],
    ids=["key", "signature", "identity", "connection string"],
)
def test_azure_is_reached_by_the_variables_of_the_docs(
    variables: dict[str, str], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment = {"SMALTI_DEPLOYMENT": "azure", "SMALTI_ROOT": "abfs://c/p", **variables}
    storage = detect_resources(environment)["storage"]
    assert options_in_a_step(storage) == options


def test_an_azure_deployment_that_names_no_account_says_which_variable_is_missing() -> None:
    with pytest.raises(ValueError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        detect_resources({"SMALTI_DEPLOYMENT": "azure", "SMALTI_ROOT": "abfs://c/p"})


def test_every_variable_of_a_deployment_is_one_that_docs_storage_names() -> None:
    """But those of Google's project and of Smalti itself."""
    code = (REPOSITORY / "pipelines" / "deployments.py").read_text()
    docs = (REPOSITORY / "docs" / "storage.md").read_text()
    named = set(re.findall(r"\b(?:AWS|AZURE|DATABRICKS|GOOGLE|S3)_[A-Z_]+\b", code))
    assert len(named) >= 10
    assert {name for name in named if f"`{name}`" not in docs} == {"GOOGLE_CLOUD_PROJECT"}


def test_secrets_stay_references_until_a_run_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "SMALTI_DEPLOYMENT": "s3",
        "SMALTI_ROOT": "s3://bucket/prefix",
        "S3_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ACCESS_KEY_ID": "canary-id",
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
    }
    storage = detect_resources(environment)["storage"]
    assert "canary" not in repr(storage) + json.dumps(storage.model_dump(), default=str)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, environment[name])
    assert options_in_a_step(storage) == {
        "key": "canary-id",
        "secret": "canary-secret",
        "endpoint_url": "http://127.0.0.1:9000",
    }


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (LocalBackend(root="/data"), {}),
        (S3Backend(root="s3://b"), {}),
        (S3Backend(root="s3://b", anonymous=True), {"anon": True}),
        (
            S3Backend(root="s3://b", region_name="eu-1", aws_session_token="t"),
            {"token": "t", "client_kwargs": {"region_name": "eu-1"}},
        ),
        (GcsBackend(root="gs://b", project="p", token="/key.json"), {"project": "p", "token": "/key.json"}),
        (AzureBackend(root="abfs://c", storage_account="a"), {"account_name": "a", "anon": False}),
        (
            AzureBackend(root="abfs://c", storage_account="a", sas_token="s"),
            {"account_name": "a", "sas_token": "s"},
        ),
        (VolumesBackend(root="dbfs:/Volumes/c/s/v", host="https://h", token="t"), {"host": "https://h", "token": "t"}),
    ],
    ids=["local", "s3", "s3 public", "s3 session", "gcs", "azure", "azure signed", "volumes"],
)
def test_each_backend_says_what_fsspec_needs(backend: LocalBackend, options: dict[str, object]) -> None:
    storage = StorageResource(backend=backend)
    assert storage.options() == options
    assert storage.url("shards", "train") == f"{backend.root}/shards/train"


def test_credentials_go_to_addresses_of_the_same_service_only() -> None:
    storage = StorageResource(backend=S3Backend(root="s3://ours", aws_access_key_id="k", aws_secret_access_key="s"))
    assert storage.options_for("s3://theirs/photos") == {"key": "k", "secret": "s"}
    for other in ("gs://theirs/photos", "/local/photos", "s3cret/photos", "https://host/photos.tgz"):
        assert storage.options_for(other) == {}
