"""The wheel and the sdist: what is in them, and that they work in environments with nothing but what they ask for.

Environments are made without network: the packages that an extra asks for, and theirs, are linked from this one.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import smalti
from smalti.catalog import load_manifest
from smalti.images.pixels import encode_jpeg
from smalti.storage import open_store
from tests.docs.guide import Guide

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
WRITE_AND_READ = """
import sys
from smalti import MDSWriter, StreamingDataset, verify
with MDSWriter(out=sys.argv[1], columns={"id": "int", "text": "str"}, compression="zstd") as writer:
    for i in range(100):
        writer.write({"id": i, "text": "row %d" % i})
assert verify(sys.argv[1]).ok
found = sorted((row["id"], row["text"]) for row in StreamingDataset(remote=sys.argv[1], shuffle=True, batch_size=10))
assert found == [(i, "row %d" % i) for i in range(100)], found
print("read", len(found))
"""
LOAD = """
import sys
from smalti import StreamingDataLoader, StreamingDataset
dataset = StreamingDataset(remote=sys.argv[1], shuffle=True, batch_size=10)
loader = StreamingDataLoader(dataset, batch_size=10, num_workers=1)
print("loaded", sum(len(batch["id"]) for batch in loader))
try:
    from smalti.torch.train import train
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist of this tree, and the wheel that was made from that sdist."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


def requirements(name: str, extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return the packages that a package asks for with these extras, and the extras that it asks of each."""
    found: dict[str, frozenset[str]] = {}
    for text in distribution(name).requires or ():
        each = Requirement(text)
        environments = [{"extra": extra} for extra in extras or {""}]
        if each.marker is None or any(each.marker.evaluate(environment) for environment in environments):
            known = found.get(canonicalize_name(each.name), frozenset())
            found[canonicalize_name(each.name)] = known | frozenset(each.extras)
    return found


def closure(*extras: str) -> set[str]:
    """Return the names of all packages that an environment of `smalti[extras]` has, without smalti."""
    seen: dict[str, frozenset[str]] = {}
    todo = [("smalti", frozenset(extras))]
    while todo:
        name, wanted = todo.pop()
        if name in seen and wanted <= seen[name]:
            continue
        seen[name] = seen.get(name, frozenset()) | wanted
        todo.extend(requirements(name, seen[name]).items())
    return set(seen) - {"smalti"}


def link_package(package: Distribution, site: Path) -> None:
    """Link the files and folders of an installed package into another site-packages."""
    for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."} - {"__pycache__"}:
        link = site / top
        if not link.exists():
            link.symlink_to(Path(str(package.locate_file(top))))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Return a function that makes an environment of the wheel and the packages of some extras, and gives its bin.

    pip installs the wheel into the first one; in the others its files are linked.
    """
    installed: list[Path] = []

    def make(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        site = next(folder.glob("lib/python*/site-packages"))
        for name in closure(*extras):
            link_package(distribution(name), site)
        if installed:
            for path in installed:
                (site / path.name).symlink_to(path)
        else:
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--no-index"]
            run(*pip, "--no-deps", "--quiet", "--disable-pip-version-check", str(wheel))
            installed.extend(site.glob("smalti*"))
            assert len(installed) == 3, installed
        return folder / "bin"

    return make


def run(*command: str | Path, code: int = 0, cwd: str | Path = "/", **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **variables},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def library_files() -> set[str]:
    listed = ["git", "ls-files", "src/smalti", "src/smalti_dagster", "src/pyspark_mds"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line.removeprefix("src/") for line in tracked.stdout.splitlines() if (ROOT / line).exists()}


def test_the_wheel_holds_the_library_and_its_integrations_and_nothing_else(wheel):
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no clone: there is no list of its files")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("smalti-")}
    assert library_files() <= inside
    assert {name.partition("/")[0] for name in inside} == {"smalti", "smalti_dagster", "pyspark_mds"}


def test_the_sdist_holds_what_builds_and_tests_the_wheel(built):
    sdist = next(built.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    expected = {"src", "tests", "assets", "pipelines", "resources", "docs", "pyproject.toml", "README.md", "LICENSE"}
    assert expected <= top
    assert sdist.stat().st_size < 30 * 2**20


def test_one_version_is_stated_everywhere(wheel):
    assert wheel.name.split("-")[1] == smalti.__version__
    assert f"\nversion: {smalti.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_without_extras_a_set_is_written_verified_and_read(environment, tmp_path):
    python = environment() / "python"
    assert run(python, "-c", WRITE_AND_READ, tmp_path / "set").strip() == "read 100"
    said = run(python, "-c", "import smalti; smalti.StreamingDataLoader", code=1)
    assert "StreamingDataLoader needs the package torch, which is not installed: pip install 'smalti[torch]'" in said


def test_the_loader_works_with_torch_alone_and_training_names_its_extra(environment, tmp_path):
    said = run(environment("torch") / "python", "-c", WRITE_AND_READ + LOAD, tmp_path / "set")
    assert "loaded 100" in said
    assert re.search(r"train needs the package \w+, which is not installed: pip install 'smalti\[train\]'", said)


PROJECT = {
    "pyproject.toml": """
[project]
name = "team"
version = "0.1.0"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "team"
registry_modules = ["team.components.*"]
""",
    "src/team/__init__.py": "",
    "src/team/defs/__init__.py": "",
    "src/team/defs/own.py": "import dagster as dg\n\n@dg.asset\ndef storage() -> int:\n    return 3\n",
    "src/team/definitions.py": """
from pathlib import Path
from dagster import definitions, load_from_defs_folder

@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
""",
}
"""The files of `create-dagster project team`, and an asset of the team's own with a name that Smalti might use."""


@dataclass(frozen=True)
class Project:
    """A project of Dagster, in an environment with the wheel, beside a folder of photos."""

    folder: Path
    bin: Path

    @property
    def defs(self) -> Path:
        return self.folder / "team" / "src" / "team" / "defs"

    def dg(self, *command: str | Path, **variables: str) -> str:
        places = {"HOME": ".", "DAGSTER_HOME": "home", "DG_CLI_CONFIG": "dg.toml"}
        home = {name: str(self.folder / place) for name, place in places.items()}
        java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        source = str(self.folder / "team" / "src")
        return run(self.bin / "dg", *command, cwd=self.folder / "team", PYTHONPATH=source, **home, **java, **variables)

    def copied_to(self, folder: Path) -> "Project":
        """Return a project with the same files and without records."""
        for name in ("team", "photos"):
            shutil.copytree(self.folder / name, folder / name, ignore=shutil.ignore_patterns("data", "__pycache__"))
        return replace(self, folder=with_records(folder))


def with_records(folder: Path) -> Path:
    """Return the folder, in which Dagster now has a place for its records."""
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return folder


@pytest.fixture(scope="module")
def project(environment, tmp_path_factory) -> Project:
    place = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        path = place / "team" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for number, name in enumerate(("daisy/1.jpg", "daisy/2.jpg", "daisy/3.jpg", "roses/1.jpg", "roses/2.jpg")):
        path = place / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_jpeg(np.full((32, 40, 3), 40 * number, np.uint8), 90))
    (place / "photos" / "roses" / "empty.jpg").touch()
    folder = environment("dagster")
    for script, module in (("dg", "dagster_dg_cli.cli"), ("dagster", "dagster._cli")):
        (folder / script).write_text(
            f"#!{folder / 'python'}\nfrom {module} import main\nif __name__ == '__main__':\n    main()\n"
        )
        (folder / script).chmod(0o755)
    return Project(with_records(place), folder)


@pytest.fixture(scope="module")
def declared(project) -> Project:
    """The project with the data set that `dg` has scaffolded: it knows the components of the wheel."""
    project.dg("scaffold", "defs", "smalti_dagster.DataSet", "photos", "--folder", project.folder / "photos")
    return project


def test_a_project_of_dagster_declares_a_data_set_with_the_wheel_alone(declared):
    said = declared.dg("launch", "--assets", "storage,photos/raw")
    assert "RUN_SUCCESS" in said
    assert (declared.folder / "home" / "storage" / "storage").is_file(), "what the team's own asset returns"
    assert (declared.folder / "team" / "data" / "photos" / "inventories").is_dir(), "below the folder of the project"


@pytest.mark.nightly  # the tests around this one scaffold, check and launch by it
def test_dg_lists_the_components_and_checks_the_declaration(declared):
    listed = declared.dg("list", "components")
    assert "smalti_dagster.DataSet" in listed
    assert "smalti_dagster.Deployment" in listed
    assert "validated successfully" in declared.dg("check", "yaml")
    assert "loaded successfully" in declared.dg("check", "defs")


PAGE = Guide("existing-project.md")
FILES = {
    "deployment/defs.yaml": "smalti_dagster.Deployment",
    "labels.py": "label_counts",
    "plants.py": "PLANTS",
    "words.py": "WORDS",
}
"""By file below `defs`: what its block on the page contains."""
RESOURCES = "STORAGES"
"""Text in the block that stands for `deployment/defs.yaml` in Python, as `resources.py`."""


def block_of(containing, folder):
    [text] = [text for kind in ("python", "yaml") for text in PAGE.blocks(kind, containing)]
    for place in ("photos", "training"):
        text = text.replace(f"/data/{place}", str(folder / place))
    return text


@pytest.fixture
def followed(declared, tmp_path):
    """A copy of the project with all files of the page on existing projects; its YAML gives storage and Spark."""
    project = declared.copied_to(tmp_path)
    (project.defs / "deployment").mkdir()
    for name, containing in FILES.items():
        (project.defs / name).write_text(block_of(containing, project.folder))
    return project


def test_the_files_of_the_page_on_existing_projects_load_together(followed):
    assert "loaded successfully" in followed.dg("check", "defs", TRAINING_KEY_ID="id", TRAINING_SECRET="canary")


def test_the_resources_of_the_page_in_python_are_those_that_smalti_looks_for(tmp_path):
    names = {}
    exec(block_of(RESOURCES, tmp_path), names)
    found = names["defs"]()
    assert found.resources.keys() == {"smalti_storage", "smalti_spark", "smalti_trainer"}
    assert found.resources["smalti_storage"].root == str(tmp_path / "training")


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_page_on_existing_projects_can_be_followed_to_its_end(followed):
    """With the resources in Python, whose storage is a folder."""
    (followed.defs / "deployment" / "defs.yaml").unlink()
    (followed.defs / "deployment").rmdir()
    (followed.defs / "resources.py").write_text(block_of(RESOURCES, followed.folder))
    for command in PAGE.block("sh", "dg launch --job").splitlines():
        said = followed.dg(*command.split()[1:])
        assert "RUN_FAILURE" not in said
    assert "label_counts" in said
    followed.dg("launch", "--job", "words_reshard_job")
    rows = {name: load_manifest(open_store(followed.folder / "training" / name / "shards")).rows for name in ROWS}
    assert rows == ROWS


ROWS = {"photos": 5, "plants": 5, "words": 2}
"""Of each shard set; the empty file is left out by the preparation of `photos`, and not handed on in `plants`."""


def test_extras_hold_what_they_are_for():
    assert not {"torch", "pyspark", "transformers", "dagster", "typer"} & closure()
    assert {"torch"} <= closure("torch")
    assert not {"transformers", "safetensors", "pyspark"} & closure("torch")
    assert {"torch", "transformers", "safetensors", "cloudpickle"} <= closure("train")
    assert {"optuna", "torch"} <= closure("tune")
    assert "pyspark" in closure("spark")
    assert {"dagster", "pyspark", "transformers"} <= closure("dagster")
    assert not {"pyspark", "torch"} & closure("databricks", "s3", "azure", "gcs")


def test_every_extra_is_on_the_page_of_the_installation():
    page = (ROOT / "docs" / "install.md").read_text()
    extras = set(distribution("smalti").metadata.get_all("Provides-Extra") or ())
    assert {extra for extra in extras - {"dev"} if f"| `{extra}` |" not in page} == set()
