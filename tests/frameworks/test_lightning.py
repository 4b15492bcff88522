"""Lightning's Trainer with a StreamingDataLoader: mid-epoch checkpoints and resume, every sample once."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.page import run_section

REPOSITORY = Path(__file__).resolve().parents[2]
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    # Lightning warns of any sized IterableDataset; the loader's batches do not depend on its workers.
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined:UserWarning"),
]

WORKERS = [(0, "auto"), (2, "thread"), pytest.param(2, "process", marks=[pytest.mark.slow, pytest.mark.nightly])]


@pytest.fixture(scope="module")
def example():
    """The example, imported with Lightning by the one worker that runs these tests."""
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    return importlib.import_module("examples.lightning_resume")


@pytest.fixture(scope="module")
def datamodule(example):
    return importlib.import_module("examples.lightning_datamodule")


@pytest.fixture
def folder(tmp_path, example):
    example.write_set(tmp_path)
    return tmp_path


def flat(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("keep_place", [False, True])
@pytest.mark.parametrize(("workers", "kind"), WORKERS)
def test_the_second_life_reads_the_rest_in_the_order_of_an_uninterrupted_run(
    folder, workers, kind, keep_place, example
):
    example.run(example.Life(folder, "whole", max_epochs=2))
    options = {"num_workers": workers, "worker_kind": kind, "keep_place": keep_place}
    checkpoint = example.run(example.Life(folder, "first", max_steps=6, **options))
    example.run(example.Life(folder, "second", max_epochs=2, checkpoint=checkpoint, **options))
    first, second = example.seen_by(folder, "first"), example.seen_by(folder, "second")
    assert first + second == example.seen_by(folder, "whole")
    assert (len(first), len(second)) == (6, 7 + 13)
    assert set(flat(first + second[:7])) == set(range(50))


def test_a_checkpoint_from_the_middle_of_the_second_epoch_resumes_there(folder, example):
    example.run(example.Life(folder, "whole", max_epochs=3))
    checkpoint = example.run(example.Life(folder, "first", max_steps=18, max_epochs=3))
    example.run(example.Life(folder, "second", max_epochs=3, checkpoint=checkpoint))
    assert example.seen_by(folder, "first") + example.seen_by(folder, "second") == example.seen_by(folder, "whole")


def test_steps_after_the_checkpoint_are_taken_again_and_no_others(folder, example):
    example.run(example.Life(folder, "whole"))
    checkpoint = example.run(
        example.Life(folder, "first", max_steps=8)
    )  # checkpoints after 3 and 6 steps, and none after the last
    assert "step=6" in checkpoint
    example.run(example.Life(folder, "second", checkpoint=checkpoint))
    assert example.seen_by(folder, "first")[:6] + example.seen_by(folder, "second") == example.seen_by(folder, "whole")


@pytest.mark.parametrize("batch_size", [2, 8, 13])
def test_the_batch_size_may_change_in_the_middle_of_an_epoch(folder, batch_size, example):
    checkpoint = example.run(example.Life(folder, "first", max_steps=6))
    example.run(example.Life(folder, "second", checkpoint=checkpoint, batch_size=batch_size))
    second = example.seen_by(folder, "second")
    assert len(second) == -(-26 // batch_size)
    assert set(flat(example.seen_by(folder, "first") + second)) == set(range(50))
    assert len(flat(second)[:26]) == len(set(flat(second)[:26])) == 26


def test_a_checkpoint_after_the_last_step_of_an_epoch_begins_the_next_one(folder, example):
    example.run(example.Life(folder, "whole", max_epochs=2))
    checkpoint = example.run(example.Life(folder, "first", max_steps=13, checkpoint_every=13, max_epochs=2))
    example.run(example.Life(folder, "second", checkpoint=checkpoint, checkpoint_every=13, max_epochs=2))
    assert example.seen_by(folder, "first") + example.seen_by(folder, "second") == example.seen_by(folder, "whole")


def test_a_checkpoint_from_an_epochs_end_resumes_with_the_next_epoch(folder, example):
    """With Lightning's default checkpoints and without KeepPlace the loader gets no state, and epoch 0 is repeated."""
    example.run(example.Life(folder, "whole", max_epochs=3))
    checkpoint = example.run(example.Life(folder, "first", checkpoint_every=None))
    example.run(example.Life(folder, "second", max_epochs=3, checkpoint=checkpoint, checkpoint_every=None))
    assert example.seen_by(folder, "first") + example.seen_by(folder, "second") == example.seen_by(folder, "whole")


def test_set_epoch_in_train_dataloader_helps_new_loaders_and_resuming_at_an_epochs_end(folder, example):
    class LineWithEpoch(example.Line):
        def train_dataloader(self):
            loader = super().train_dataloader()
            loader.streaming_dataset.set_epoch(self.trainer.current_epoch)
            return loader

    example.run(example.Life(folder, "whole", max_epochs=3))
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    first = LineWithEpoch(example.Life(folder, "first"))
    trainer = example.Trainer(**quiet, max_epochs=2, reload_dataloaders_every_n_epochs=1)
    trainer.fit(first)
    second = LineWithEpoch(example.Life(folder, "second"))
    trainer.save_checkpoint(folder / "end.ckpt")
    example.Trainer(**quiet, max_epochs=3).fit(second, ckpt_path=folder / "end.ckpt")
    assert first.seen + second.seen == example.seen_by(folder, "whole")


@pytest.mark.parametrize("keep_place", [False, True])
def test_a_checkpoint_saved_after_max_steps_counts_the_epoch_as_finished(folder, keep_place, example):
    callbacks = [example.KeepPlace()] if keep_place else []
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = example.Trainer(**quiet, max_steps=6, callbacks=callbacks)
    first, second = example.Line(example.Life(folder, "first")), example.Line(example.Life(folder, "second"))
    trainer.fit(first)
    trainer.save_checkpoint(folder / "after.ckpt")
    example.Trainer(**quiet, max_epochs=1).fit(second, ckpt_path=folder / "after.ckpt")
    assert (len(first.seen), second.seen) == (6, [])
    example.Trainer(**quiet, max_epochs=2, callbacks=callbacks).fit(second, ckpt_path=folder / "after.ckpt")
    assert len(second.seen) == (7 if keep_place else 13)  # the rest of the epoch, or a whole one
    assert set(flat(first.seen + second.seen)) == set(range(50))


# ---------------------------------------------------------------------- several processes

LIVES = """
import json, sys
from pathlib import Path
from examples.lightning_resume import Life, run
if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    run(Life(**options | {"folder": Path(options["folder"])}))
"""


def run_life(folder, **options):
    """Run one life in processes that Lightning launches."""
    script = folder / "life.py"
    script.write_text(LIVES)
    inherited = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}}
    paths = os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(script), json.dumps({"folder": str(folder)} | options)],
        check=False,
        env=inherited | CPU_ONLY | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.nightly  # beside the test of one rank that begins an epoch and two that end it
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_two_ranks_share_the_epoch_and_both_lives_give_every_sample_once(folder, strategy, example):
    run_life(folder, name="first", devices=2, strategy=strategy, max_steps=3, num_workers=1)
    run_life(folder, name="second", devices=2, strategy=strategy, checkpoint=str(folder / "first/step=3.ckpt"))
    lives = [example.seen_by(folder, name, rank) for name in ("first", "second") for rank in range(2)]
    assert [len(batches) for batches in lives] == [3, 3, 4, 4]
    seen = flat(flat(lives))
    assert len(seen) == 56  # 7 steps of 2 x 4: six repeats fill the last
    assert set(seen) == set(range(50))
    assert len(set(flat(flat(lives[:2])))) == 24


@pytest.mark.nightly  # beside tests/torch/train/launch, where worlds change
@pytest.mark.slow
def test_one_rank_begins_an_epoch_and_two_end_it(folder, example):
    checkpoint = example.run(example.Life(folder, "first", max_steps=6))
    run_life(folder, name="second", devices=2, strategy="ddp", checkpoint=checkpoint)
    second = [example.seen_by(folder, "second", rank) for rank in range(2)]
    assert [len(batches) for batches in second] == [4, 4]  # 26 left: 4 steps of 2 x 4, six repeats
    first = flat(example.seen_by(folder, "first"))
    assert set(first) | set(flat(flat(second))) == set(range(50))


@pytest.mark.parametrize(("stopped", "save_every"), [(6, 3), (18, 3), (13, 13), (26, None)])
def test_a_data_module_resumes_where_its_checkpoint_was_saved(tmp_path, stopped, save_every, datamodule):
    url = f"{tmp_path}/set"
    datamodule.write_set(url)
    whole, _ = datamodule.train(url, tmp_path / "whole", max_epochs=3)
    options = {"max_epochs": 3, "save_every": save_every}
    first, checkpoint = datamodule.train(url, tmp_path / "parts", max_steps=stopped, **options)
    second, _ = datamodule.train(url, tmp_path / "parts", checkpoint=checkpoint, **options)
    assert len(first) == stopped
    assert first + second == whole
    assert {number for batch in whole[13:26] for number in batch} == set(range(50))


def test_the_examples_run(capsys, example, datamodule):
    example.main()
    assert "6 + 7 steps, 50 of 50 samples seen" in capsys.readouterr().out
    datamodule.main()
    assert "6 + 7 steps, 50 of 50 samples seen" in capsys.readouterr().out


def test_the_page_runs_as_it_is_printed(tmp_path):
    names = run_section("Lightning", tmp_path)
    assert names["points"].saved["epoch"] == 1
    assert names["points"].loader.state_dict()["epoch"] == 2
