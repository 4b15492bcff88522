"""docs/s3.md and docs/azure.md: their commands and programs, in their order, against servers of their protocols."""

import runpy
from pathlib import Path

import pytest
import yaml

from smalti.cli import main
from smalti.errors import StoreAuthError, StoreNotFound
from smalti.storage import open_store
from smalti.torch.train.config import TrainConfig
from tests.docs.guide import Guide, check_all_shell_blocks, draw_photos, run_program, torchrun_options
from tests.storage.conftest import azurite_http, clean_environment, container, s3_bucket, s3_server

__all__ = ["azurite_http", "clean_environment", "container", "s3_bucket", "s3_server"]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]
TENTH = {"600 ": "60 ", "480 ": "48 ", "2 steps of 256 samples, 32 repeats": "1 steps of 256 samples, 208 repeats"}
"""A tenth of the photos, and what the page then shows."""
SHORT = {"epochs: 12": "epochs: 1\nmodel: tests.torch.train.tiny_models:convolution"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, in which programs and commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("CACHE", "cache")
    return tmp_path


def upload_photos(url):
    """Put what the pages begin with into a store: 20 photos of each of three classes."""
    draw_photos(each=20)
    run_program("draw.py")
    store = open_store(url)
    for path in sorted(Path("photos").rglob("*.jpg")):
        store.put_file(path.relative_to("photos").as_posix(), path)


@pytest.fixture
def s3_guide(here, s3_server, s3_bucket, clean_environment):
    """The page, with a bucket of moto that has photos."""
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    upload_photos(f"s3://{s3_bucket}/photos")
    guide = Guide("s3.md", **{"my-bucket": s3_bucket}, **TENTH, **SHORT)
    guide.write_files(here)
    return guide


def test_the_guide_to_s3_leads_from_photos_to_a_trained_model(s3_guide, s3_bucket, here, capsys):
    assert len(s3_guide.run_commands(capsys)) == 6
    runs = open_store(f"s3://{s3_bucket}/runs/flowers-1")
    assert runs.exists("result.json")
    assert (here / "flowers.html").stat().st_size > 10_000
    two_machines_read_the_set_once(s3_guide, capsys)
    usual_errors_have_the_messages_of_the_table(s3_guide, s3_bucket, capsys)


def two_machines_read_the_set_once(guide, capsys):
    """48 samples are less than a step of 64, which is filled with repeated samples."""
    options = guide.block("bash", "torchrun").replace("read.py", "").split()[1:]
    given = torchrun_options([*options, "read.py"])
    assert (given.nnodes, given.nproc_per_node, given.training_script) == ("2", "4", "read.py")
    for rank in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            variables = {
                "RANK": rank,
                "WORLD_SIZE": 2,
                "LOCAL_RANK": 0,
                "LOCAL_WORLD_SIZE": 1,
                "CACHE": f"cache-{rank}",
            }
            for name, value in variables.items():
                patch.setenv(name, str(value))
            runpy.run_path("read.py", run_name="__main__")
        assert capsys.readouterr().out.startswith(f"rank {rank}: 32 samples, ")


def usual_errors_have_the_messages_of_the_table(guide, bucket, capsys):
    table = guide.text.split("## When something fails")[1]
    for message in ("no credentials were found", "no such object, bucket or volume", "already holds a data set"):
        assert f"`{message}` |" in table
    assert main(["convert", f"s3://{bucket}/photos", f"s3://{bucket}/sets/flowers"]) == 1
    assert "already holds a data set" in capsys.readouterr().err
    assert "| `there is no bucket, container or volume`, " in table
    with pytest.raises(StoreNotFound, match="there is no bucket, container or volume"):
        open_store("s3://no-such-bucket-here/set").get("k")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(StoreAuthError, match="no credentials were found"):
            open_store(f"s3://{bucket}/set").get("k")


@pytest.fixture
def azure_guide(here, azurite_http, container, clean_environment):
    """The page, with a container of Azurite that has photos."""
    clean_environment.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_http.connection_string)
    replaced = {"abfs://data/": f"abfs://{container}/", "cache_dir: /mnt/smalti": "cache_dir: cache"}
    upload_photos(f"abfs://{container}/photos")
    guide = Guide("azure.md", **replaced, **{"600 ": "60 "}, **SHORT)
    guide.write_files(here)
    return guide


def test_the_guide_to_azure_leads_from_photos_to_a_trained_model(azure_guide, container, capsys):
    assert len(azure_guide.run_commands(capsys)) == 4
    assert open_store(f"abfs://{container}/runs/flowers-1").exists("result.json")


@pytest.mark.parametrize("name", ["s3.md", "azure.md"])
def test_each_file_of_configuration_has_fields_of_a_training(name):
    fields = yaml.safe_load(Guide(name).block("yaml", "# config.yaml"))
    assert TrainConfig(**fields).run_dir.endswith("/runs/flowers-1")
    check_all_shell_blocks(Guide(name))


def test_pods_of_azure_use_the_identity_of_their_service_account():
    guide = Guide("azure.md")
    account = yaml.safe_load(guide.block("yaml", "kind: ServiceAccount"))
    pod = yaml.safe_load(guide.block("yaml", "serviceAccountName"))["template"]
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"] == "trainer"
    assert "system:serviceaccount:default:trainer" in guide.block("bash", "federated-credential")
    assert pod["metadata"]["labels"] == {"azure.workload.identity/use": "true"}
