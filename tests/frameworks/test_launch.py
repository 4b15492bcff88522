"""Frameworks under `launch` on photos that `convert` wrote: killed within an epoch, each sample is trained on once."""

import importlib
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from smalti.conversion import convert
from smalti.errors import TrainingError
from smalti.torch.train import launch, read_sample_order
from smalti.torch.train.run.events import read_lines
from tests.torch.train.conftest import square

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    # A model on one rank is saved without a process group.
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined:UserWarning"),
]
EXAMPLES = ["pytorch", "lightning", "transformers", "fsdp"]
CONFIG = {"num_classes": 3, "size": 24, "epochs": 2, "batch_size": 8, "learning_rate": 0.01, "save_every": 2}
"""Of 50 samples, an epoch is 7 steps; checkpoints are saved after 2, 4, ..., 14."""
KILLED_AT = 5


class InterruptError(BaseException):
    """Raised to end a run in this process, as a kill would, without any clean-up of the example's."""


def train_of(name):
    """Return the function of an example, whose framework the one worker imports that runs these tests."""
    if name in {"lightning", "transformers"}:
        pytest.importorskip(name, reason=f"{name} is not installed")
    return importlib.import_module(f"examples.launch_{name}").train


def end_process():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    raise InterruptError


def killed(train, end, context):
    """Train until the last rank ends after a step between two checkpoints, unless the run has resumed from one."""
    report, save = context.report, context.save

    def report_and_end(metrics, *, step):
        report(metrics, step=step)
        if step == KILLED_AT and context.latest() is None and context.rank == context.world.num_ranks - 1:
            end()

    context.report, context.save = report_and_end, partial(save, wait=True)
    return train(context)


def read_all(context):
    """Read what a training reads."""
    loader = context.dataloader("train", batch_size=CONFIG["batch_size"])
    while context.epoch(loader) < CONFIG["epochs"]:
        for _ in loader:
            pass


def options_of(data, folder):
    return {"data": str(data), "run_dir": str(folder), "log_samples": True, "timeout_seconds": 120.0, "device": "cpu"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Root of a set that `convert` made of class folders with JPEG files; its labels are int32."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(50):
        path = folder / "files" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(square(number))
    convert(str(folder / "files"), str(folder / "set"), partition_by="split", processes=1)
    return folder / "set"


@pytest.fixture(scope="module")
def order(photos, tmp_path_factory):
    """The sample ids of each epoch of a run that was not interrupted."""
    options = options_of(photos, tmp_path_factory.mktemp("whole") / "run")
    launch(read_all, **options)
    found = read_sample_order(options["run_dir"])
    assert [sorted(found[epoch]) for epoch in (0, 1)] == [list(range(50))] * 2
    return found


def check(options, result, order, *, num_ranks):
    assert result == {"steps": 14}
    assert read_sample_order(options["run_dir"]) == order
    events = read_lines(Path(options["run_dir"]) / "metrics.jsonl")
    starts = [(each["num_ranks"], each["step"]) for each in events if each["event"] == "start"]
    assert starts == [(num_ranks[0], 0), (num_ranks[1], 4)]
    assert {each["step"] for each in events if each["event"] == "report"} == set(range(1, 15))


@pytest.mark.parametrize("name", ["pytorch", "lightning", "transformers"])
def test_interrupted_in_this_process_it_goes_on_with_the_rest_of_the_epoch(name, photos, order, tmp_path):
    options = options_of(photos, tmp_path / "run")
    train = train_of(name)
    with pytest.raises(InterruptError):
        launch(partial(killed, train, interrupt), CONFIG, **options)
    result = launch(train, CONFIG, **options)
    check(options, result, order, num_ranks=(1, 1))


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "then"),
    [("fsdp", 1), *(pytest.param(name, 2, marks=pytest.mark.nightly) for name in EXAMPLES)],
)
def test_killed_on_two_processes_it_goes_on_with_the_rest_of_the_epoch(name, then, photos, order, tmp_path):
    options = options_of(photos, tmp_path / "run")
    launched = {"launcher": "processes", "num_processes": 2}
    train = partial(killed, train_of(name), end_process)
    with pytest.raises(TrainingError, match="rank 1 of 2 was ended by SIGKILL"):
        launch(train, CONFIG, **options, **launched)
    result = launch(train, CONFIG, **options, **(launched if then == 2 else {}))
    check(options, result, order, num_ranks=(2, then))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_train_on_the_flowers(name, flowers, tmp_path):
    config = {**CONFIG, "num_classes": 5, "epochs": 1, "batch_size": 20, "save_every": 100}
    assert launch(train_of(name), config, data=str(flowers), run_dir=str(tmp_path), device="cpu") == {"steps": 2}


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Root of a set of forty real photos, eight of each class."""
    shared = Path(__file__).resolve().parents[3] / "shared" / "flowers"
    found = {folder: sorted(folder.glob("*.jpg"))[:8] for folder in shared.iterdir()} if shared.exists() else {}
    found = {folder: files for folder, files in found.items() if files}
    if not found:
        pytest.skip("there are no photos in ../shared/flowers")
    folder = tmp_path_factory.mktemp("flowers")
    for each, files in found.items():
        (folder / "files" / each.name).mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder / "files" / each.name)
    convert(str(folder / "files"), str(folder / "set"), partition_by="split", processes=1)
    return folder / "set"
