"""A model's source files are found, and make it importable in processes that do not have it."""

import importlib
import sys
from pathlib import Path

import pytest

from smalti.torch.train.config import RunConfig, TrainConfig
from smalti.torch.train.launchers.spark import importable, read_source
from smalti.torch.train.launchers.start import Program
from tests.torch.train.tiny_tasks import Line, falling

pytestmark = pytest.mark.torch

FILES = {
    "sm_model.py": "import sm_helper\n\ndef make(config):\n    return sm_helper.NAME\n",
    "sm_helper.py": "NAME = 'from the helper'\n",
    "sm_unrelated.py": "raise RuntimeError('nobody imports this')\n",
    "sm_package/__init__.py": "",
    "sm_package/nets/__init__.py": "",
    "sm_package/nets/small.py": "def make(config):\n    from sm_package.parts import NAME\n    return NAME\n",
    "sm_package/parts.py": "NAME = 'imported late'\n",
    "sm_package/data.txt": "not source",
}


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("sm_")]:
        del sys.modules[name]


@pytest.fixture
def model_folder(tmp_path, monkeypatch):
    """A folder of modules that this process can import."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def call_elsewhere(model: str, source: dict[str, str], monkeypatch) -> object:
    """Return the function's result as in a process that has only the source."""
    forget()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "sm_model.py").exists()])
    name, _, function = model.partition(":")
    with importable([model], source):
        return getattr(importlib.import_module(name), function)(None)


def test_a_module_is_sent_with_the_modules_loaded_from_its_folder(model_folder, monkeypatch):
    source = read_source(["sm_model:make"])
    assert source == {name: FILES[name] for name in ("sm_model.py", "sm_helper.py")}
    assert call_elsewhere("sm_model:make", source, monkeypatch) == "from the helper"


def test_a_package_is_sent_completely_because_it_may_import_later(model_folder, monkeypatch):
    source = read_source(["sm_package.nets.small:make"])
    assert set(source) == {name for name in FILES if name.startswith("sm_package/") and name.endswith(".py")}
    assert call_elsewhere("sm_package.nets.small:make", source, monkeypatch) == "imported late"


def test_all_modules_that_a_configuration_names_are_sent(model_folder, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other")
    (other / "sm_rates.py").write_text("def falling(done):\n    return 1 - done\n")
    monkeypatch.syspath_prepend(other)
    config = TrainConfig(
        data="d", run_dir="r", task="sm_package.parts:Mine", model="sm_model:make", optimizer="torch.optim:SGD",
        schedule="sm_rates:falling",
    )  # fmt: skip
    named = Program(config).source_of
    assert named == ("sm_package.parts:Mine", "sm_model:make", "torch.optim:SGD", "sm_rates:falling")
    source = read_source(named)
    assert set(source) >= {"sm_package/parts.py", "sm_model.py", "sm_helper.py", "sm_rates.py"}
    forget()
    hidden = {str(model_folder), str(other)}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in hidden])
    importlib.invalidate_caches()
    with importable(named, source):
        assert importlib.import_module("sm_rates").falling(0.25) == 0.75
        assert importlib.import_module("sm_model").make(None) == "from the helper"


def test_the_names_are_those_of_a_task_or_function_that_is_given():
    given = Program(TrainConfig(data="d", run_dir="r", task="object:x.Line", model="sm_model:make"), task=Line())
    assert given.source_of == ("tests.torch.train.tiny_tasks:Line", "sm_model:make")
    assert Program(RunConfig(run_dir="r"), function=falling).source_of == ("tests.torch.train.tiny_tasks:falling",)
    assert Program(TrainConfig(data="d", run_dir="r")).source_of == ()


def test_the_files_beside_a_script_are_importable_where_another_script_runs():
    """Each process has a `__main__`, and here it is not the one that is meant."""
    with importable(["__main__:train"], {"sm_model.py": FILES["sm_model.py"], "sm_helper.py": "NAME = 'sent'\n"}):
        assert importlib.import_module("sm_model").make(None) == "sent"
    forget()


def test_nothing_is_left_behind(model_folder, monkeypatch):
    before = list(sys.path)
    source = read_source(["sm_model:make"])
    call_elsewhere("sm_model:make", source, monkeypatch)
    assert [entry for entry in sys.path if "smalti-model" in entry] == []
    assert set(sys.path) <= set(before)


def test_an_importable_module_is_not_replaced(model_folder):
    with importable(["sm_model:make"], {"sm_model.py": "def make(config):\n    return 'sent'\n"}):
        assert importlib.import_module("sm_model").make(None) == "from the helper"


@pytest.mark.parametrize("model", ["mobilenet_v2", "torch.nn:Linear", "json:loads", "sm_nowhere:make"])
def test_known_installed_and_unknown_models_have_no_source_to_send(model):
    assert read_source([model]) == {}
