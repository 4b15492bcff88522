"""docs/databricks.md: its cells run on a Spark of the tests, and its job has fields that Databricks' SDK knows."""

import inspect
import json
import re
import textwrap
from types import SimpleNamespace

import dagster
import pytest
import yaml

from assets.drawing import draw_flower
from smalti.storage import open_store
from smalti_dagster.resources.databricks.compute import DatabricksResource
from smalti_dagster.resources.databricks.settings import read_databricks
from tests.docs.guide import Guide, check_all_shell_blocks
from tests.spark.conftest import spark
from tests.spark.photos import put

__all__ = ["spark"]
CELLS = (
    "smalti.diagnose",
    "prepare_images(",
    "spark.table(",
    "smalti.spark.register",
    "smalti.history",
    "TrainConfig(",
    "dbutils.secrets",
)
SHORT = 'epochs=1, batch_size=4, model="tests.torch.train.tiny_models:convolution"'


@pytest.fixture
def volumes(tmp_path):
    """Two folders in place of the volumes: 12 photos of three classes, and nothing."""
    (tmp_path / "sets").mkdir()
    for name in ("daisy", "roses", "tulips"):
        for number in range(4):
            put(tmp_path / "photos" / name / f"{number}.jpg", draw_flower(name, number=number, size=(64, 48)))
    return tmp_path


@pytest.mark.spark
@pytest.mark.torch
@pytest.mark.slow
def test_the_cells_write_a_set_look_at_it_and_train(spark, volumes, capsys):
    replaced = {
        "/tmp/": f"{volumes}/",
        "/Volumes/main/trees": str(volumes),
        "/local_disk0": str(volumes),
        "main.trees.measurements": "measurements",
        "len(folder.classes)}": 'len(folder.classes), "image_size": 24}',
        "epochs=12": SHORT,
    }
    guide = Guide("databricks.md", **replaced)
    rows = spark.createDataFrame([(1.5, 0.2, "oak"), (2.5, 0.3, "elm")], ["height", "width", "species"])
    rows.createOrReplaceTempView("measurements")
    spark.conf.set("spark.databricks.workspaceUrl", "dbc-1.cloud.databricks.com")
    secrets = SimpleNamespace(get=lambda scope, key: f"{scope}/{key}")
    names = {"spark": spark, "dbutils": SimpleNamespace(secrets=secrets)}
    for mark in CELLS:
        exec(guide.block("python", mark), names)
    shown = capsys.readouterr().out
    assert "1 12 ('daisy', 'roses', 'tulips')" in shown
    assert "1 12 overwrite\nTrue\n" in shown
    assert names["result"].steps == 3
    assert open_store(str(volumes / "sets" / "runs" / "1")).exists("result.json")
    assert (volumes / "photos.html").stat().st_size > 10_000
    distributed = names["distributed"]
    assert (distributed.launcher, distributed.num_processes) == ("spark", 4)
    assert dict(distributed.storage_options) == {"host": "dbc-1.cloud.databricks.com", "token": "trees/token"}
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(DatabricksResource), re.DOTALL)
    names = {"dg": dagster, "DatabricksResource": DatabricksResource}
    exec(textwrap.dedent(example), names)
    assert isinstance(names["databricks"], DatabricksResource)
    assert names["count"](print, "measurements") == {"rows": 2}
    assert capsys.readouterr().out == "2 rows\n"


def test_the_job_has_fields_that_the_sdk_knows_and_no_others():
    from databricks.sdk.service.jobs import JobSettings  # of a package that takes seconds to import

    guide = Guide("databricks.md")
    [job] = yaml.safe_load(guide.block("yaml", "# databricks.yml"))["resources"]["jobs"].values()
    assert JobSettings.from_dict(job).as_dict() == job
    check_all_shell_blocks(guide)


def test_the_settings_of_the_pipeline_are_accepted():
    guide = Guide("databricks.md")
    settings = json.loads(guide.block("json", "secret_scope"))
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    found = read_databricks(json.dumps(settings), "s3://bucket/prefix", environment)
    assert found.environment["AWS_SECRET_ACCESS_KEY"] == "{{secrets/trees/AWS_SECRET_ACCESS_KEY}}"
