"""Checkpoints are published atomically and verified before use, and the last valid one is never deleted."""

import contextlib
import hashlib
import json
import pickle
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from smalti.errors import CheckpointError
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.result import TrainResult
from smalti.torch.train.run.checkpoint import CheckpointFolder
from smalti.torch.train.run.files import Snapshot, load_checkpoint
from smalti.torch.train.run.store import LocalRun
from smalti.torch.train.trainer.task import save_model

pytestmark = pytest.mark.torch

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"]


class CrashError(Exception):
    """Stands for a kill at this point."""


def snapshot(step: int) -> Snapshot:
    tensors = {"model": {"w": torch.full((3, 2), float(step))}, "optimizer": {"0.exp_avg": torch.ones(3) * step}}
    return Snapshot(step, tensors, {"epoch": 0, "cursor": {"sample_in_epoch": step * 4}})


def folder(root: Path, keep: int = 2, crash_at: str | None = None) -> CheckpointFolder:
    def crash(path: Path) -> None:
        if path.name == crash_at:
            raise CrashError

    return CheckpointFolder(root, keep=keep, on_durable=crash)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def flip_a_bit(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(bytes(data))


def rewrite_state(path: Path, change: Callable[[str], str]) -> None:
    """Edit the state, and correct its checksum."""
    (path / "state.json").write_text(change((path / "state.json").read_text()))
    sums = json.loads((path / "checksums.json").read_text())
    sums["sha256"]["state.json"] = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()
    (path / "checksums.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("step", ["-1", "121", "true", '"120"'])
def test_a_state_of_another_step_than_its_folder_is_refused(tmp_path, step):
    path = folder(tmp_path).save(snapshot(120))
    rewrite_state(path, lambda text: text.replace('"step": 120', f'"step": {step}'))
    with pytest.raises(CheckpointError, match="expected that of its folder's name"):
        load_checkpoint(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_state_with_a_number_that_is_not_finite_is_refused(tmp_path, number):
    """It could be loaded, but not be saved again."""
    path = folder(tmp_path).save(snapshot(120))
    rewrite_state(path, lambda text: text.replace("480", number))
    with pytest.raises(CheckpointError, match=f"not readable JSON: .*{number[1:]} is no finite number"):
        load_checkpoint(path)


def test_a_saved_snapshot_is_loaded(tmp_path):
    checkpoints = folder(tmp_path)
    path = checkpoints.save(snapshot(120))
    assert path.name == "step-00000120-00000"
    assert names(path) == sorted(FILES)
    loaded = folder(tmp_path).load_newest()
    assert loaded.path == path
    assert loaded.snapshot.step == 120
    assert loaded.snapshot.state["cursor"] == {"sample_in_epoch": 480}
    assert torch.equal(loaded.snapshot.tensors["model"]["w"], torch.full((3, 2), 120.0))
    assert torch.equal(loaded.snapshot.tensors["optimizer"]["0.exp_avg"], torch.full((3,), 120.0))


def test_channels_last_and_tied_tensors_come_back_equal(tmp_path):
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = {"model": {"a": image, "b": image, "empty": torch.zeros(0), "also_empty": torch.zeros(0)}}
    path = folder(tmp_path).save(Snapshot(1, tensors, {}))
    found = load_checkpoint(path).tensors["model"]
    assert torch.equal(found["a"], image)
    assert torch.equal(found["b"], image)
    assert found["empty"].shape == (0,)


def test_a_run_without_checkpoints_starts_fresh(tmp_path):
    assert folder(tmp_path / "none").load_newest() is None


@pytest.mark.parametrize("file", FILES)
def test_after_a_crash_after_any_file_the_previous_checkpoint_loads(tmp_path, file):
    folder(tmp_path).save(snapshot(10))
    with pytest.raises(CrashError):
        folder(tmp_path, crash_at=file).save(snapshot(20))
    loaded = folder(tmp_path).load_newest()
    assert loaded.snapshot.step == 10
    assert loaded.skipped == ()


@pytest.mark.parametrize("file", FILES)
def test_a_first_checkpoint_that_crashed_does_not_exist(tmp_path, file):
    with pytest.raises(CrashError):
        folder(tmp_path, crash_at=file).save(snapshot(20))
    assert folder(tmp_path).load_newest() is None


def test_after_a_crash_after_the_rename_the_new_checkpoint_loads(tmp_path):
    folder(tmp_path, keep=1).save(snapshot(10))
    with pytest.raises(CrashError):
        folder(tmp_path, keep=1, crash_at="step-00000020-00000").save(snapshot(20))
    assert names(tmp_path) == ["step-00000010-00000", "step-00000020-00000"]
    assert folder(tmp_path).load_newest().snapshot.step == 20


def test_leftovers_of_a_crash_are_removed_by_the_next_save(tmp_path):
    with pytest.raises(CrashError):
        folder(tmp_path, crash_at="state.json").save(snapshot(10))
    assert names(tmp_path)[0].startswith(".step-00000010-")
    folder(tmp_path).save(snapshot(20))
    assert names(tmp_path) == ["step-00000020-00000"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("place", [0, 9, 41, -2])
def test_a_checkpoint_with_a_flipped_bit_is_skipped_and_reported(tmp_path, file, place):
    checkpoints = folder(tmp_path)
    checkpoints.save(snapshot(10))
    newest = checkpoints.save(snapshot(20))
    flip_a_bit(newest / file, place)
    loaded = folder(tmp_path).load_newest()
    assert loaded.snapshot.step == 10
    assert [skip.path for skip in loaded.skipped] == [newest]


@pytest.mark.parametrize("file", FILES)
def test_a_checkpoint_with_a_missing_truncated_or_added_file_is_skipped(tmp_path, file):
    checkpoints = folder(tmp_path, keep=4)
    for step in (10, 20, 30, 40):
        checkpoints.save(snapshot(step))
    (tmp_path / "step-00000040-00000" / file).unlink()
    victim = tmp_path / "step-00000030-00000" / file
    victim.write_bytes(victim.read_bytes()[:-5])
    (tmp_path / "step-00000020-00000" / f"more-{file}").write_bytes(b"?")
    loaded = folder(tmp_path).load_newest()
    assert loaded.snapshot.step == 10
    assert len(loaded.skipped) == 3


def test_if_no_checkpoint_verifies_it_is_an_error_and_nothing_is_deleted(tmp_path):
    path = folder(tmp_path).save(snapshot(10))
    flip_a_bit(path / "model.safetensors", 100)
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .* verifies .*sha256 expected"):
        folder(tmp_path).load_newest()
    assert names(tmp_path) == ["step-00000010-00000"]


def test_a_checkpoint_that_has_lost_all_its_files_is_damaged_and_not_forgotten(tmp_path):
    (tmp_path / "step-00000009-00000").mkdir()
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        folder(tmp_path).load_newest()


@pytest.mark.parametrize("given", ["link/../checkpoints", "~/checkpoints"])
def test_a_folder_is_the_one_that_the_system_means_by_its_path(tmp_path, monkeypatch, given):
    """Behind a symbolic link `..` is the parent of the link's target, and `~` is a name like others."""
    (tmp_path / "there" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "inside")
    monkeypatch.chdir(tmp_path)
    saved = folder(Path(given)).save(snapshot(3))
    found = folder(Path(given)).load_newest()
    assert (str(saved), found.snapshot.step) == (f"{given}/step-00000003-00000", 3)


def test_keeping_one_with_a_corrupt_newest_keeps_the_valid_one(tmp_path):
    folder(tmp_path, keep=2).save(snapshot(10))
    flip_a_bit(folder(tmp_path, keep=2).save(snapshot(20)) / "state.json", 5)
    checkpoints = folder(tmp_path, keep=1)
    assert checkpoints.load_newest().snapshot.step == 10
    assert names(tmp_path) == ["step-00000010-00000", "step-00000020-00000"]
    with pytest.raises(CrashError):
        folder(tmp_path, keep=1, crash_at="checksums.json").save(snapshot(15))
    assert folder(tmp_path).load_newest().snapshot.step == 10
    checkpoints.save(snapshot(15))
    assert names(tmp_path) == ["step-00000015-00000"]


def test_the_oldest_are_removed_when_there_are_more_than_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(snapshot(step))
    assert names(tmp_path) == ["step-00000003-00000", "step-00000004-00000"]


def test_the_best_is_kept_beside_the_newest_and_a_damaged_one_is_not_the_best(tmp_path):
    def save(step: int, accuracy: float) -> Path:
        checkpoints = CheckpointFolder(tmp_path, keep=1, keep_best="max accuracy")  # each as in a life of its own
        checkpoints.load_newest()
        return checkpoints.save(Snapshot(step, {"model": {"w": torch.ones(2)}}, {"metrics": {"accuracy": accuracy}}))

    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        best = save(step, accuracy)
    assert names(tmp_path) == ["step-00000002-00000", "step-00000003-00000"]
    flip_a_bit(tmp_path / "step-00000002-00000" / "model.safetensors", 9)
    assert CheckpointFolder(tmp_path, keep_best="max accuracy").best() == str(best)
    save(4, 0.1)
    assert names(tmp_path) == ["step-00000003-00000", "step-00000004-00000"]


def test_the_same_step_can_be_saved_again(tmp_path):
    folder(tmp_path).save(snapshot(10))
    flip_a_bit(tmp_path / "step-00000010-00000" / "state.json", 3)
    again = folder(tmp_path)
    again.save(snapshot(10))
    assert names(tmp_path) == ["step-00000010-00000-1"]
    assert folder(tmp_path).load_newest().snapshot.step == 10


def test_a_write_error_leaves_the_earlier_checkpoint_and_no_leftovers(tmp_path):
    folder(tmp_path).save(snapshot(10))

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left on device"):
        CheckpointFolder(tmp_path, on_durable=full).save(snapshot(20))
    assert names(tmp_path) == ["step-00000010-00000"]


@contextlib.contextmanager
def files_of_at_most(num_bytes: int):
    """Limit the size of files, which has the effect of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_bytes", [0, 3_000, 9_000], ids=["nothing", "half the model", "the model alone"])
def test_a_disk_that_gets_full_in_tensors_leaves_the_earlier_checkpoint_and_no_leftovers(tmp_path, num_bytes):
    folder(tmp_path).save(snapshot(10))
    large = Snapshot(20, {"model": {"w": torch.ones(2_000)}, "optimizer": {"w": torch.ones(4_000)}}, {})
    with (
        files_of_at_most(num_bytes),
        pytest.raises(CheckpointError, match=r"step 20 could not be written .* make room"),
    ):
        folder(tmp_path).save(large)
    assert names(tmp_path) == ["step-00000010-00000"]
    assert folder(tmp_path).load_newest().snapshot.step == 10


def test_a_disk_that_gets_full_in_the_finished_model_leaves_the_earlier_model_and_no_leftovers(tmp_path):
    config = TrainConfig(data="/data", run_dir=str(tmp_path))
    figures = {"accuracy": 1.0, "loss": 0.0, "epochs": 1, "steps": 1, "history": (), "resumed_from": None}
    places = {"model_dir": "", "checkpoint": "step-00000001-00000", "images_per_second": 0.0, "seconds": 0.0}
    result = TrainResult(**figures, **places).to_json()
    LocalRun(tmp_path).write_result(result, partial(save_model, torch.nn.Linear(4, 3), config))
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with files_of_at_most(3_000), pytest.raises(CheckpointError, match="step-00000001-00000 holds it: make room"):
        LocalRun(tmp_path).write_result(result, partial(save_model, torch.nn.Linear(1_000, 3), config))
    assert names(tmp_path) == ["model", "result.json"]
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


class Bomb:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("/tmp/smalti-bomb-went-off"),)


@pytest.mark.parametrize("file", FILES)
def test_a_planted_pickle_is_refused_and_does_not_run(tmp_path, file):
    path = folder(tmp_path).save(snapshot(10))
    (path / file).write_bytes(pickle.dumps(Bomb()))
    if file != "checksums.json":
        import hashlib

        sums = json.loads((path / "checksums.json").read_text())
        sums["sha256"][file] = hashlib.sha256((path / file).read_bytes()).hexdigest()
        (path / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    assert not Path("/tmp/smalti-bomb-went-off").exists()


def test_the_trainer_uses_neither_pickle_nor_torch_load():
    import smalti.torch.train

    for source in Path(smalti.torch.train.__file__).parent.rglob("*.py"):
        text = source.read_text()
        assert "torch.load(" not in text, source
        assert "import pickle" not in text, source


OLD = Path(__file__).parent / "checkpoint_of_0_1"
"""A checkpoint as versions before 0.2 wrote it into a local folder: its name has no life."""


def test_a_checkpoint_of_an_earlier_version_loads_and_is_older_than_a_new_one_of_any_step(tmp_path):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    loaded = folder(tmp_path).load_newest()
    assert (loaded.path, loaded.snapshot.step) == (tmp_path / "step-00000120", 120)
    assert torch.equal(loaded.snapshot.tensors["model"]["w"], torch.full((3, 2), 120.0))
    assert loaded.snapshot.state["cursor"] == {"sample_in_epoch": 480}
    checkpoints = CheckpointFolder(tmp_path, keep=1, life=4)
    checkpoints.load_newest()
    checkpoints.save(snapshot(100))
    assert names(tmp_path) == ["step-00000100-00004"]


def test_a_life_after_a_lost_count_of_lives_is_newer_than_all_checkpoints(tmp_path):
    CheckpointFolder(tmp_path / "checkpoints", life=7).save(snapshot(10))
    for number in (8, 9):
        with LocalRun(tmp_path).begun(num_ranks=1) as life:
            assert life == number
