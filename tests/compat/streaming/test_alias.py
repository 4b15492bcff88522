"""`streaming` as a name of smalti.compat.streaming: in this process, in its children, and beside another one."""

import contextlib
import importlib
import importlib.metadata
import inspect
import json
import os
import pickle
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import smalti.compat.streaming
from smalti.compat.streaming import alias, install, uninstall
from tests.peer_program import SOURCE
from tests.spark.writing.test_clusters import cluster

PROGRAM = Path(__file__).parent / "alias_program.py"
ALIAS = {
    "same": True,
    "name": "smalti.compat.streaming.base.constant",
    "tick": 0.007,
    "version": ["0.13.0", "0.13.0"],
}


@pytest.fixture
def installed(monkeypatch):
    """The alias, until the end of the test."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    install()
    yield
    uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "streaming"]
    assert os.environ["PYTHONPATH"] == "/elsewhere"


def run(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, **options)


@pytest.mark.process
def test_children_of_every_kind_have_the_alias():
    done = run("-m", "smalti.compat.streaming", PROGRAM, "main", "--flag")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("argv") == ["main", "--flag"]
    assert found == dict.fromkeys(["here", "spawn", "forkserver", "fork", "program"], ALIAS)


@pytest.mark.usefixtures("installed")
def test_a_module_has_one_copy_under_both_names():
    there = importlib.import_module("streaming.base.constant")
    assert there is importlib.import_module("smalti.compat.streaming.base.constant")
    assert there.__spec__.name == there.__name__ == "smalti.compat.streaming.base.constant"
    assert sys.modules["streaming"] is smalti.compat.streaming
    assert importlib.reload(there) is there


@pytest.mark.usefixtures("installed")
def test_a_function_with_the_name_of_its_module_stays_a_function():
    module = importlib.import_module("streaming.base.converters.dataframe_to_mds")
    converters = importlib.import_module("streaming.base.converters")
    assert inspect.isfunction(converters.dataframe_to_mds)
    assert module.dataframe_to_mds is converters.dataframe_to_mds


@pytest.mark.usefixtures("installed")
def test_a_class_pickles_by_its_own_name_and_loads_by_either():
    from streaming.base.format.index import get_index_basename

    assert pickle.loads(pickle.dumps(get_index_basename)) is get_index_basename
    assert pickle.loads(b"cstreaming.base.format.index\nget_index_basename\n.") is get_index_basename


@pytest.mark.usefixtures("installed")
def test_a_module_that_does_not_exist_is_said_to_be_missing_under_its_alias():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'streaming.base.nothing'"):
        importlib.import_module("streaming.base.nothing")


@pytest.mark.usefixtures("installed")
def test_installing_twice_changes_nothing():
    before = list(sys.meta_path), list(sys.path), os.environ["PYTHONPATH"]
    install()
    assert (sys.meta_path, sys.path, os.environ["PYTHONPATH"]) == before
    assert os.environ["PYTHONPATH"] == os.pathsep.join([alias.FOLDER, "/elsewhere"])
    assert importlib.metadata.version("mosaicml-streaming") == "0.13.0"


@pytest.mark.usefixtures("installed")
def test_a_module_runs_as_a_program_under_its_alias():
    found = runpy.run_module("streaming.base.constant", run_name="as_program")
    assert (found["__name__"], found["TICK"]) == ("as_program", 0.007)


def test_another_streaming_that_is_imported_already_is_an_error_that_names_its_file(monkeypatch):
    other = ModuleType("streaming")
    other.__file__ = "/site-packages/streaming/__init__.py"
    monkeypatch.setitem(sys.modules, "streaming", other)
    with pytest.raises(ImportError, match=r"from /site-packages/streaming/__init__\.py\. Call .*install\(\) before"):
        install()
    assert sys.modules["streaming"] is other


@pytest.mark.process
def test_the_alias_goes_before_an_installed_package_and_one_in_the_current_folder(tmp_path):
    (tmp_path / "streaming").mkdir()
    (tmp_path / "streaming/__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "program.py").write_text("import streaming; print(streaming.__name__)")
    done = run("-u", "-W", "error", "-m", "smalti.compat.streaming", "-m", "program", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("smalti.compat.streaming\n", "")


@pytest.mark.process
def test_the_sitecustomize_of_the_environment_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = __name__")
    code = "import os, streaming; print(os.environ['THEIRS'], streaming.__name__)"
    path = run("-m", "smalti.compat.streaming", "--path").stdout.strip()
    done = run("-c", code, env={**os.environ, "PYTHONPATH": os.pathsep.join([path, str(tmp_path), str(SOURCE)])})
    assert (done.stdout, done.stderr) == ("sitecustomize smalti.compat.streaming\n", "")


@pytest.mark.process
def test_an_interpreter_without_smalti_finds_no_alias(tmp_path):
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    code = "import importlib.util; print(importlib.util.find_spec('streaming'))"
    environment = {**os.environ, "PYTHONPATH": alias.FOLDER}
    command = [tmp_path / "other/bin/python", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("None\n", "")


@pytest.mark.process
def test_the_command_says_how_it_is_used():
    done = run("-m", "smalti.compat.streaming")
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m smalti.compat.streaming SCRIPT [ARGUMENT...]")
    refused = run("-E", "-m", "smalti.compat.streaming", "script.py")
    assert "PYTHONPATH, which -E and -I ignore: omit them" in refused.stderr


SPARK = """
import sys
from smalti.compat.streaming import install

def there(frames):
    import streaming
    for frame in frames:
        yield frame.assign(name=streaming.__name__)[["name"]]

if sys.argv[2] == "before":
    install()
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executorEnv.PYTHONPATH", sys.argv[3])
spark = builder.config("spark.executor.memory", "512m").getOrCreate()
if sys.argv[2] == "after":
    install()
print(spark.range(2).mapInPandas(there, "name string").limit(1).collect())
rows = spark.sparkContext.parallelize([1], 1).barrier().mapPartitions(lambda rows: [__import__("streaming").__name__])
print(rows.collect(), spark.sparkContext.environment["PYTHONPATH"].split(":")[1])
spark.stop()
"""
MASTERS = ["local[1]", "local-cluster[2,1,1024]", "standalone"]


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("master", MASTERS)
def test_python_workers_of_a_spark_session_have_the_alias(tmp_path, master, when):
    """The worker of the standalone cluster was started by hand, and inherits nothing from the driver."""
    place = cluster(tmp_path) if master == "standalone" else contextlib.nullcontext(master)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with place as address:
        done = run("-c", SPARK, address, when, str(Path(smalti.__path__[0]).parent), env=environment)
    lines = [
        "[Row(name='smalti.compat.streaming')]",
        "['smalti.compat.streaming'] " + str(Path(smalti.__path__[0]).parent),
    ]
    assert done.stdout.splitlines() == lines, done.stderr[-3000:]


def test_spark_sends_the_folder_with_functions_of_contexts_made_before_and_after():
    context = importlib.import_module("pyspark").SparkContext
    before, after = object.__new__(context), object.__new__(context)
    before.environment = {}
    install()
    try:
        after.environment = {"PYTHONPATH": "/theirs"}
        assert before.environment == {"PYTHONPATH": alias.FOLDER}
        assert after.environment == {"PYTHONPATH": os.pathsep.join([alias.FOLDER, "/theirs"])}
    finally:
        uninstall()
    assert "environment" not in vars(context)
    assert after.environment["PYTHONPATH"].endswith("/theirs")


ZIPPED = """
import sys

sys.path.insert(0, sys.argv[1])
from smalti.compat.streaming import install, uninstall

install()
from pyspark.core.context import SparkContext

assert "environment" in vars(SparkContext)
uninstall()
import pyspark.core.other

assert "environment" not in vars(SparkContext)
"""


@pytest.mark.process
def test_a_spark_in_a_zip_file_forgets_the_alias_too(tmp_path):
    modules = {"__init__": "", "core/__init__": "", "core/context": "class SparkContext: pass", "core/other": ""}
    with zipfile.ZipFile(tmp_path / "spark.zip", "w") as archive:
        for name, code in modules.items():
            archive.writestr(f"pyspark/{name}.py", code)
    done = run("-c", ZIPPED, tmp_path / "spark.zip")
    assert done.returncode == 0, done.stderr


def test_the_version_stands_in_mosaicmls_private_module_too():
    assert importlib.import_module("smalti.compat.streaming._version").__version__ == "0.13.0"
