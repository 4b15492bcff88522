"""Files that ranks give to a checkpoint: whole, on every rank of the next life, from a folder or a store."""

from pathlib import Path

import pytest
import torch

from smalti.errors import CheckpointError, TrainingError
from smalti.torch.train import launch
from smalti.torch.train.run.files import check_equal

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.nightly), "store"])
def options(request, tmp_path):
    """A run in a local folder, and one in a store, which ranks fill through scratch folders."""
    if request.param == "folder":
        return {"run_dir": str(tmp_path / "run"), "timeout_seconds": 280.0}
    server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
    secret = {"endpoint_url": server, "key": "AKIDTEST", "secret": "SECRETTESTSECRET"}
    return {"run_dir": f"s3://{bucket}/run", "run_storage_options": secret, "timeout_seconds": 280.0}


def save_shards(context):
    """Save one shard of each rank and what they share, from folders of their own, as machines without a shared disk."""
    checkpoint = context.latest()
    if checkpoint is None:
        folder = Path(context.config, f"rank-{context.rank}")
        (folder / "shards").mkdir(parents=True)
        (folder / "shards" / f"{context.rank}.distcp").write_bytes(bytes([context.rank]) * 1000)
        (folder / "config.json").write_text("{}")  # equal on all ranks
        if context.is_first:
            (folder / ".metadata").write_text("of rank 0")
        context.save(1, files=folder)
        for path in folder.rglob("*.*"):
            path.unlink()  # they were copied
        context.save(2, {"w": torch.ones(3)}, folder)  # this one has none
        (folder / "shards" / f"{context.rank}.distcp").write_bytes(bytes([context.rank + 7]) * 2000)
        (folder / "config.json").write_text("{}")
        context.save(3, {"w": torch.ones(3) * 3}, folder)
        return context.rank
    files = {path.relative_to(checkpoint.files).as_posix(): path for path in checkpoint.files.rglob("*.*")}
    sizes = {name: [path.stat().st_size, path.read_bytes()[0]] for name, path in files.items()}
    if context.world.num_ranks > 1:
        everywhere = [None] * context.world.num_ranks
        torch.distributed.all_gather_object(everywhere, sizes)
        assert everywhere == [sizes] * context.world.num_ranks
    return {"step": checkpoint.step, "w": checkpoint.state["w"].tolist(), "files": sizes}


def test_the_files_of_two_ranks_are_one_checkpoint_that_any_number_of_ranks_reads(options, tmp_path):
    shards = str(tmp_path / "shards")
    two = {"launcher": "processes", "num_processes": 2, **options}
    assert launch(save_shards, shards, **two) == 0
    expected = {"shards/0.distcp": [2000, 7], "shards/1.distcp": [2000, 8], "config.json": [2, ord("{")]}
    assert launch(save_shards, shards, **options) == {"step": 3, "w": [3.0] * 3, "files": expected}


@pytest.mark.nightly
def test_two_ranks_read_all_files_too(options, tmp_path):
    two = {"launcher": "processes", "num_processes": 2, **options}
    launch(save_shards, str(tmp_path / "shards"), **two)
    assert sorted(launch(save_shards, str(tmp_path / "shards"), **two)["files"]) == [
        "config.json", "shards/0.distcp", "shards/1.distcp",
    ]  # fmt: skip


def give(context):
    folder = Path(context.config["folder"])
    if context.latest() is None:
        for step in (1, 2):
            folder.mkdir(exist_ok=True)
            (folder / "weights.bin").write_bytes(b"%d" % step * 50)
            context.save(step, {"step": step}, folder)
        context.save(2, {"step": 2, "again": True}, folder)  # as at the end of an epoch
        return None
    latest = context.latest(files=["weights.*"])
    return [latest.step, latest.state, (latest.files / "weights.bin").read_bytes()[:1].decode()]


@pytest.mark.parametrize("damage", ["a flipped bit", "no file"])
def test_i3_a_checkpoint_whose_files_are_damaged_is_skipped(tmp_path, damage):
    options = {"run_dir": str(tmp_path / "run"), "config": {"folder": str(tmp_path / "files")}}
    launch(give, **options)
    assert launch(give, **options) == [2, {"step": 2, "again": True}, "2"]
    path = tmp_path / "run" / "checkpoints" / "step-00000002-00000-1" / "files" / "weights.bin"
    if damage == "no file":
        path.unlink()
    else:
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    assert launch(give, **options) == [1, {"step": 1}, "1"]


def give_different(context):
    folder = Path(context.config, str(context.rank))
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"%d" % context.rank)
    context.save(1, files=folder)


def test_files_of_one_name_must_have_equal_bytes():
    check_equal([{"a": "1", "b": "2"}, {"a": "1"}, {}])
    with pytest.raises(CheckpointError, match=r"ranks \[0, 2\] give different files named 'b'"):
        check_equal([{"a": "1", "b": "2"}, {"a": "1"}, {"b": "3"}])


@pytest.mark.nightly
def test_different_files_of_one_name_are_refused_by_name_and_rank(tmp_path):
    with pytest.raises(TrainingError, match=r"ranks \[0, 1\] give different files named 'model.bin'"):
        launch(give_different, str(tmp_path), run_dir=str(tmp_path / "r"), launcher="processes", num_processes=2)
    assert list((tmp_path / "r").glob("checkpoints/step-*")) == []


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="there is no file or folder"):
        launch(lambda context: context.save(1, files=tmp_path / "none"), run_dir=str(tmp_path / "run"))


def fail_on_rank_1(context):
    folder = Path(context.config, str(context.rank))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{context.rank}.bin").write_bytes(b"x" * 100)
    context.save(1, files=folder, wait=True)
    if context.rank == 1:
        import smalti.torch.train.run.checkpoint as parts

        parts.sync_path = _no_space
    context.save(2, files=folder)
    try:
        context.save(3, files=folder)
    except CheckpointError as error:
        return [context.rank, str(error)]
    return None


def _no_space(path):
    raise OSError(28, "No space left on device")


def test_i4_if_one_rank_fails_in_a_save_there_is_no_checkpoint_and_all_ranks_are_told(tmp_path):
    run_dir = tmp_path / "run"
    rank, message = launch(
        fail_on_rank_1, str(tmp_path / "files"), run_dir=str(run_dir), launcher="processes", num_processes=2
    )
    assert rank == 0
    assert "checkpoint of step 2 could not be written" in message
    assert "No space left on device" in message
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000001-00000"]
