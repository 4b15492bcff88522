"""Resources that an environment asks for, and the options that they hand to the library."""

import json
import re
from typing import Any

import dagster as dg
import pytest

from pipelines.home import REPOSITORY
from resources import executor_of_runs, resources_of_stage
from resources.stages import STAGES as OWN_STAGES
from smalti.storage import LocalStore
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.deployment import STAGES, detect_resources
from smalti_dagster.resources.storage import (
    AzureSasToken,
    AzureStorage,
    FsspecStorage,
    GcsStorage,
    LocalStorage,
    OciStorage,
    S3Storage,
    StorageResource,
    VolumesStorage,
)


def test_the_default_needs_no_environment_at_all() -> None:
    resources = resources_of_stage({})
    assert (type(resources["smalti_storage"]), resources["smalti_storage"].root) == (
        LocalStorage,
        str(REPOSITORY / "data"),
    )
    assert resources["smalti_trainer"].run_dir("one") == str(REPOSITORY / "data" / "runs" / "one")
    assert isinstance(resources["smalti_storage"].store("shards"), LocalStore)


ENVIRONMENTS = [
    {"SMALTI_ROOT": "/data"},
    {"SMALTI_ROOT": "s3://b/p", "AWS_REGION": "eu-1", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"},
    {"SMALTI_ROOT": "s3://b/p", "AWS_ENDPOINT_URL": "http://here", "AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "r"},
    {"SMALTI_ROOT": "gs://b/p", "GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_APPLICATION_CREDENTIALS": "/key.json"},
    {"SMALTI_ROOT": "gs://b/p", "GCS_KEY": "k", "GCS_SECRET": "s"},
    {"SMALTI_ROOT": "abfs://c/p", "AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "k"},
    {"SMALTI_ROOT": "abfs://c/p", "AZURE_ACCOUNT_NAME": "a", "AZURE_STORAGE_SAS_TOKEN": "s"},
    {"SMALTI_ROOT": "abfs://c/p", "AZURE_ACCOUNT_NAME": "a"},
    {"SMALTI_ROOT": "abfs://c/p", "AZURE_STORAGE_CONNECTION_STRING": "c", "AZURE_STORAGE_ACCOUNT_NAME": "a"},
    {"SMALTI_ROOT": "dbfs:/Volumes/c/s/v", "DATABRICKS_HOST": "https://h", "DATABRICKS_TOKEN": "t"},
    {"SMALTI_ROOT": "dbfs:/Volumes/c/s/v", "DATABRICKS_CLIENT_ID": "i", "DATABRICKS_CLIENT_SECRET": "s"},
    {"SMALTI_ROOT": "oci://b@n/p", "OCI_REGION": "eu-1"},
    {"SMALTI_ROOT": "sftp://me@host/p"},
]


@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=range(len(ENVIRONMENTS)))
def test_the_stages_of_this_repository_are_what_a_project_without_resources_gets(environ: dict[str, str]) -> None:
    """`resources/` shows in Python what the package reads from a table."""
    assert set(OWN_STAGES) == set(STAGES)
    for stage in STAGES:
        chosen = {**environ, "SMALTI_STAGE": stage}
        ours, theirs = resources_of_stage(chosen), detect_resources(chosen)
        assert {key: (type(each), each.model_dump()) for key, each in ours.items()} == {
            key: (type(each), each.model_dump()) for key, each in theirs.items()
        }


def test_another_executor_is_a_setting() -> None:
    assert executor_of_runs({"SMALTI_EXECUTOR": "dagster:in_process_executor"}) is dg.in_process_executor
    for wrong in ("dagster:k9s_executor", "nothing", "no.such.module:executor"):
        with pytest.raises(ValueError, match=f"SMALTI_EXECUTOR must be module:name of an executor, found '{wrong}'"):
            executor_of_runs({"SMALTI_EXECUTOR": wrong})


def test_a_relative_root_is_made_absolute_because_steps_may_run_elsewhere() -> None:
    assert detect_resources({"SMALTI_ROOT": "somewhere"})["smalti_storage"].url("a").startswith("/")


@pytest.mark.parametrize("name", ["staging", "production"])
def test_a_stage_without_its_root_says_which_variable_is_missing(name: str) -> None:
    with pytest.raises(ValueError, match="SMALTI_ROOT"):
        detect_resources({"SMALTI_STAGE": name})


def test_an_unknown_stage_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="local, staging, production, found 'aws'"):
        detect_resources({"SMALTI_STAGE": "aws"})


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        ("/data", LocalStorage),
        ("s3://b/p", S3Storage),
        ("s3a://b/p", S3Storage),
        ("oci://b@n/p", OciStorage),
        ("gs://b/p", GcsStorage),
        ("abfs://c@acct.dfs.core.windows.net/p", AzureStorage),
        ("dbfs:/Volumes/c/s/v", VolumesStorage),
        ("/Volumes/c/s/v", VolumesStorage),
        ("sftp://me@host/p", FsspecStorage),
    ],
)
def test_the_backend_follows_from_the_scheme_of_the_root(root: str, kind: type[StorageResource]) -> None:
    assert type(detect_resources({"SMALTI_ROOT": root})["smalti_storage"]) is kind


def test_a_root_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="hf:// cannot hold data"):
        detect_resources({"SMALTI_ROOT": "hf://datasets/a/b"})


def test_stages_with_the_same_root_keep_their_data_apart() -> None:
    roots = {
        name: detect_resources({"SMALTI_STAGE": name, "SMALTI_ROOT": "s3://b"})["smalti_storage"].root
        for name in STAGES
    }
    assert roots == {
        "local": "s3://b",
        "staging": "s3://b/stage-staging",
        "production": "s3://b/stage-production",
    }


def stored(key: str, *, after: str | None = None) -> dg.AssetsDefinition:
    """An asset that uses the storage, as those of a data set do."""

    @dg.asset(key=key.split("/"), deps=[after.split("/")] if after else [])
    @with_resources
    def made(storage: StorageResource) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"root": storage.root})

    return made


PHOTOS = stored("photos/shards")
MODEL = stored("photos/model", after="photos/shards")
MOTHS = stored("moths/shards")


def run_in_stage(asset: dg.AssetsDefinition, stage: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    resources = {"smalti_storage": LocalStorage(root=f"/{stage}", stage=stage)}
    return dg.materialize([asset], resources=resources, instance=instance)


@pytest.mark.parametrize("asset", [PHOTOS, MODEL])
def test_an_asset_that_another_stage_has_made_is_neither_made_nor_used(
    asset: dg.AssetsDefinition, instance: dg.DagsterInstance
) -> None:
    done = run_in_stage(PHOTOS, "staging", instance)
    tagged = instance.get_run_by_id(done.run_id)
    assert tagged is not None
    assert tagged.tags["smalti/stage"] == "staging"
    with pytest.raises(dg.Failure, match=f"asset photos/shards .* by run {done.run_id} of the stage staging"):
        run_in_stage(asset, "production", instance)
    assert run_in_stage(asset, "staging", instance).success


def test_two_code_locations_with_storages_of_two_stages_share_an_instance(instance: dg.DagsterInstance) -> None:
    for _ in range(2):
        made = {
            asset.key.to_user_string(): run_in_stage(asset, stage, instance)
            .asset_materializations_for_node(asset.op.name)[0]
            .metadata["root"]
            .value
            for asset, stage in ((PHOTOS, "staging"), (MOTHS, "production"))
        }
        assert made == {"photos/shards": "/staging", "moths/shards": "/production"}


def options_in_a_step(storage: StorageResource) -> dict[str, object]:
    """Options that fsspec gets in a step, where references to variables are resolved."""
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
    environment = {"SMALTI_ROOT": "abfs://c/p", **variables}
    storage = detect_resources(environment)["smalti_storage"]
    assert options_in_a_step(storage) == options


def test_an_azure_root_that_names_no_account_says_which_variable_is_missing() -> None:
    with pytest.raises(ValueError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        detect_resources({"SMALTI_ROOT": "abfs://c/p"})


def test_every_variable_of_a_stage_is_one_that_docs_storage_names() -> None:
    """But those of Google's project and of Smalti itself."""
    files = ("src/smalti_dagster/resources/environment.py", "resources/storage.py")
    code = "".join((REPOSITORY / name).read_text() for name in files)
    docs = (REPOSITORY / "docs" / "storage.md").read_text()
    named = set(re.findall(r"\b(?:AWS|AZURE|DATABRICKS|GOOGLE|GCS|OCI|S3)_[A-Z_]+\b", code))
    assert len(named) >= 10
    assert {name for name in named if f"`{name}`" not in docs} == {"GOOGLE_CLOUD_PROJECT"}


def test_secrets_stay_references_until_a_run_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "SMALTI_ROOT": "s3://bucket/prefix",
        "S3_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ACCESS_KEY_ID": "canary-id",
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
    }
    storage = detect_resources(environment)["smalti_storage"]
    assert "canary" not in repr(storage) + json.dumps(storage.model_dump(), default=str)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, environment[name])
    assert options_in_a_step(storage) == {
        "key": "canary-id",
        "secret": "canary-secret",
        "endpoint_url": "http://127.0.0.1:9000",
    }


@pytest.mark.parametrize(
    ("storage", "options"),
    [
        (LocalStorage(root="/data"), {}),
        (S3Storage(root="s3://b"), {}),
        (S3Storage(root="s3://b", use_unsigned_session=True), {"anon": True}),
        (
            S3Storage(root="s3://b", region_name="eu-1", aws_session_token="t"),
            {"token": "t", "client_kwargs": {"region_name": "eu-1"}},
        ),
        (GcsStorage(root="gs://b", project="p", token="/key.json"), {"project": "p", "token": "/key.json"}),
        (
            GcsStorage(root="gs://b", endpoint_url="http://here", anonymous=True),
            {"token": "anon", "endpoint_url": "http://here"},
        ),
        (OciStorage(root="oci://b@n", region_name="eu-1"), {"client_kwargs": {"region_name": "eu-1"}}),
        (FsspecStorage(root="sftp://u@h/p", storage_options={"port": 2}), {"port": 2}),
        (AzureStorage(root="abfs://c", storage_account="a"), {"account_name": "a", "anon": False}),
        (
            AzureStorage(root="abfs://c", storage_account="a", credential=AzureSasToken(token="s")),
            {"account_name": "a", "sas_token": "s"},
        ),
        (VolumesStorage(root="dbfs:/Volumes/c/s/v", host="https://h", token="t"), {"host": "https://h", "token": "t"}),
    ],
    ids=[
        "local",
        "s3",
        "s3 public",
        "s3 session",
        "gcs",
        "gcs public",
        "oci",
        "other",
        "azure",
        "azure signed",
        "volumes",
    ],
)
def test_each_storage_says_what_fsspec_needs(storage: StorageResource, options: dict[str, object]) -> None:
    assert storage.options() == options
    assert storage.url("shards", "train") == f"{storage.root}/shards/train"


def test_credentials_go_to_addresses_of_the_same_service_only() -> None:
    storage = S3Storage(root="s3://ours", aws_access_key_id="k", aws_secret_access_key="s")
    assert storage.options_for("s3://theirs/photos") == {"key": "k", "secret": "s"}
    for other in ("gs://theirs/photos", "/local/photos", "s3cret/photos", "https://host/photos.tgz"):
        assert storage.options_for(other) == {}


def test_training_runs_are_kept_below_the_root_unless_a_variable_says_where() -> None:
    def run_dir(**environ: str) -> str:
        found: str = detect_resources(environ)["smalti_trainer"].run_dir("flowers/1")
        return found

    assert run_dir(SMALTI_ROOT="/mnt/lake") == "/mnt/lake/runs/flowers/1"
    assert run_dir(SMALTI_ROOT="s3://b/p") == "s3://b/p/runs/flowers/1"
    assert run_dir(SMALTI_ROOT="dbfs:/Volumes/c/s/v", SMALTI_STAGE="production") == (
        "dbfs:/Volumes/c/s/v/stage-production/runs/flowers/1"
    )
    assert run_dir(SMALTI_ROOT="s3://b/p", SMALTI_RUNS="/mnt/runs") == "/mnt/runs/flowers/1"
    assert run_dir(SMALTI_ROOT="/mnt/lake", SMALTI_RUNS="gs://b/runs/") == "gs://b/runs/flowers/1"
