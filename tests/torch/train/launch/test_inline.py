"""Training in this process: it learns, counts every sample once, and resumes where it was interrupted."""

import hashlib
import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from smalti.errors import CheckpointError, CursorError, SchemaError, TrainingError, WorldMismatch
from smalti.ledger import check_ledger
from smalti.storage import open_store
from smalti.torch.train import read_sample_order, train
from smalti.torch.train.life import begun_life
from smalti.torch.train.run.events import read_lines
from smalti.torch.train.trainer.loop import Trainer
from smalti.torch.tuning.space import with_params
from tests.torch.train.conftest import EVAL, TRAIN, publish_squares

pytestmark = pytest.mark.torch


class InterruptError(Exception):
    """Raised by a callback to end a run at a step."""


def interrupt_at(step: int):
    def listen(event):
        if event["event"] == "step" and event["step"] >= step:
            raise InterruptError

    return listen


def model_of(run_dir) -> dict[str, torch.Tensor]:
    return load_file(str(Path(run_dir) / "model" / "model.safetensors"))


def test_it_learns_to_distinguish_colours(config):
    result = train(replace(config, epochs=6))
    assert result.accuracy > 0.9
    assert result.epochs == 6
    assert result.steps == 6 * 7
    assert [summary["epoch"] for summary in result.history] == [0, 1, 2, 3, 4, 5]
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_every_sample_is_trained_on_and_evaluated_once_padding_left_out(config):
    result = train(config)
    order = read_sample_order(config.run_dir)
    assert [sorted(order[epoch]) for epoch in (0, 1)] == [list(range(TRAIN))] * 2
    assert order[0] != order[1]
    assert check_ledger(Path(config.run_dir) / "samples").ok
    for summary in result.history:
        assert summary["train_samples"] == TRAIN
        assert summary["eval_samples"] == EVAL
        assert sum(map(sum, summary["confusion"])) == EVAL
    assert ["most_wrong" in summary for summary in result.history] == [False, True]
    last = result.history[-1]
    wrong = Counter((each["label"], each["predicted"]) for each in last["most_wrong"])
    confused = {(a, b): count for a, row in enumerate(last["confusion"]) for b, count in enumerate(row) if a != b}
    assert wrong == {pair: count for pair, count in confused.items() if count}
    losses = [each["loss"] for each in last["most_wrong"]]
    assert losses == sorted(losses, reverse=True)
    assert len({each["sample_id"] for each in last["most_wrong"]}) == len(losses)


def test_the_run_folder_holds_model_result_metrics_and_checkpoints(config):
    result = train(config)
    run_dir = Path(config.run_dir)
    assert json.loads((run_dir / "result.json").read_text()) == result.to_json()
    assert json.loads((run_dir / "model" / "smalti.json").read_text())["class_names"] == ["red", "green", "blue"]
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == [
        "step-00000012-00000",
        "step-00000014-00000",
    ]
    assert result.checkpoint.endswith("step-00000014-00000")
    kinds = [event["event"] for event in read_lines(run_dir / "metrics.jsonl")]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("epoch") == 2


def test_the_callback_gets_the_events_that_are_written(config):
    heard = []
    train(config, on_event=heard.append)
    assert read_lines(Path(config.run_dir) / "metrics.jsonl") == heard
    assert [event["step"] for event in heard if event["event"] == "step"] == [1, 2, 4, 6, 8, 10, 12, 14]


def test_an_interrupted_run_resumes_and_ends_with_the_same_bits(config, tmp_path):
    whole = train(replace(config, run_dir=str(tmp_path / "whole")))
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(4))
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(10))
    result = train(config)
    assert result.resumed_from["step"] == 9
    assert read_sample_order(config.run_dir) == read_sample_order(tmp_path / "whole")
    expected, found = model_of(tmp_path / "whole"), model_of(config.run_dir)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    figures = ("epoch", "step", "train_loss", "train_accuracy", "train_samples", "loss", "accuracy", "confusion")
    assert [[s[name] for name in figures] for s in result.history] == [
        [pytest.approx(s[name]) if "loss" in name else s[name] for name in figures] for s in whole.history
    ]


def test_a_finished_run_returns_its_result_again(config):
    first = train(config)
    again = train(config)
    assert (again.accuracy, again.loss, again.history) == (first.accuracy, first.loss, first.history)
    assert again.images_per_second == 0.0


def test_a_finished_run_can_be_given_more_epochs(config):
    train(config)
    more = train(replace(config, epochs=3))
    assert more.steps == 21
    assert more.resumed_from["step"] == 14
    assert sorted(read_sample_order(config.run_dir)) == [0, 1, 2]


def test_a_run_with_another_batch_size_resumes_at_the_same_sample(config, tmp_path):
    whole = replace(config, run_dir=str(tmp_path / "whole"))
    train(whole)
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(4))
    train(replace(config, batch_size=5))
    assert read_sample_order(config.run_dir) == read_sample_order(whole.run_dir)


def test_sigterm_finishes_the_step_and_saves(config):
    def terminate(event):
        if event["event"] == "step" and event["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingError, match="stopped by SIGTERM after step 4") as caught:
        train(config, on_event=terminate)
    assert caught.value.stopped
    assert caught.value.checkpoint.endswith("step-00000004-00000")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert train(config).resumed_from["step"] == 4


def test_sigterm_in_the_last_step_of_an_epoch_leaves_its_evaluation_to_the_next_life(config):
    def terminate(event):
        if event["event"] == "step" and event["step"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingError, match="after step 7"):
        train(replace(config, log_every=7), on_event=terminate)
    result = train(config)
    assert [summary["train_samples"] for summary in result.history] == [TRAIN, TRAIN]
    assert result.steps == 14


def test_broken_checkpoints_are_skipped_and_reported(config):
    with pytest.raises(InterruptError):
        train(replace(config, checkpoint_every=2), on_event=interrupt_at(6))
    newest = Path(config.run_dir) / "checkpoints" / "step-00000004-00000"
    (newest / "model.safetensors").write_bytes(b"not a model")
    result = train(config)
    assert result.resumed_from["step"] == 2
    assert [skip["path"] for skip in result.resumed_from["skipped"]] == [str(newest)]
    assert sorted(read_sample_order(config.run_dir)[0]) == list(range(TRAIN))


def test_if_no_checkpoint_verifies_the_run_does_not_start_again(config):
    train(config)
    for path in (Path(config.run_dir) / "checkpoints").iterdir():
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        train(config)


def edit_state(checkpoint: Path, edit) -> None:
    """Change a state, and correct the checksum, as if another program had written it."""
    state = json.loads((checkpoint / "state.json").read_text())
    edit(state)
    (checkpoint / "state.json").write_text(json.dumps(state))
    sums = json.loads((checkpoint / "checksums.json").read_text())
    sums["sha256"]["state.json"] = hashlib.sha256((checkpoint / "state.json").read_bytes()).hexdigest()
    (checkpoint / "checksums.json").write_text(json.dumps(sums))


def remove_cursor(checkpoint: Path) -> None:
    edit_state(checkpoint, lambda state: state.pop("cursor"))


def flatten(state) -> None:
    """Store the options of image classification as earlier versions did: as fields of the configuration."""
    config = state["config"]
    config.update(config["task_options"], task_options={})


def test_a_checkpoint_with_the_configuration_of_an_earlier_version_resumes_or_names_what_differs(config):
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(4))
    [checkpoint] = (Path(config.run_dir) / "checkpoints").iterdir()
    edit_state(checkpoint, flatten)
    with pytest.raises(CursorError, match=r"`task_options\.image_size` was 24 and is 32\. .*, or the former values"):
        train(with_params(config, {"task_options.image_size": 32}))
    result = train(config)
    assert result.resumed_from["step"] == 3
    assert [sorted(order) for order in read_sample_order(config.run_dir).values()] == [list(range(TRAIN))] * 2


def test_a_checkpoint_without_a_cursor_is_skipped_and_if_there_is_no_other_the_error_is_typed(config):
    train(replace(config, epochs=1))
    older, newest = sorted((Path(config.run_dir) / "checkpoints").iterdir())
    remove_cursor(newest)
    result = train(replace(config, epochs=1))
    assert result.resumed_from["checkpoint"] == str(older)
    [skipped] = result.resumed_from["skipped"]
    assert (skipped["path"], "`cursor` is None" in skipped["reason"]) == (str(newest), True)

    for checkpoint in (Path(config.run_dir) / "checkpoints").iterdir():
        remove_cursor(checkpoint)
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints .*state.json: `cursor` is None, expected"):
        train(replace(config, epochs=1))


def test_junk_in_the_count_of_lives_is_named_with_its_line(config):
    Path(config.run_dir).mkdir()
    (Path(config.run_dir) / "lives.jsonl").write_bytes(b'{"life":0}\n\xffjunk\n')
    with pytest.raises(TrainingError, match=r"lives\.jsonl, line 2 .*remove that line"):
        train(config)


def test_a_disk_that_is_full_for_the_metrics_is_named(config):
    (Path(config.run_dir)).mkdir()
    os.symlink("/dev/full", Path(config.run_dir) / "metrics.jsonl")
    with pytest.raises(TrainingError, match=r"metrics\.jsonl cannot be written: .*No space left.* make room"):
        train(config)


@pytest.mark.parametrize(("asked", "found"), [(None, "half of the disk"), ("1mb", 1 << 20)])
def test_copies_of_a_remote_set_are_bounded(config, squares, tmp_path, asked, found):
    remote = "memory://bounded-squares"
    for path in squares.rglob("*"):
        if path.is_file():
            open_store(remote).put(path.relative_to(squares).as_posix(), path.read_bytes())
    far = replace(config, data=remote, cache_dir=str(tmp_path / "cache"), cache_limit=asked)
    with begun_life(far, None, meeting_port=None, scratch=None) as life:
        trainer = Trainer(life, far, None)
        limits = [each.streaming_dataset.stream.cache.limit for each in (trainer.loader, trainer.held_out)]
    if asked is None:
        assert limits[0] == limits[1]
        assert 0 < limits[0] < shutil.disk_usage(tmp_path).total
    else:
        assert limits == [found, found]
    assert train(replace(far, epochs=1)).history[-1]["train_samples"] == TRAIN


def test_micro_batches_do_not_change_the_model(config, tmp_path):
    # Batch normalisation sees other batches, so the claim holds for models without it only.
    linear = replace(config, model="tests.torch.train.launch.test_inline:linear", epochs=1)
    train(linear)
    train(replace(linear, run_dir=str(tmp_path / "parts"), micro_batches=4))
    expected, found = model_of(linear.run_dir), model_of(tmp_path / "parts")
    assert all(torch.allclose(expected[name], found[name], atol=1e-5) for name in expected)


def linear(config):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 24, config.task_options["num_classes"]))


def test_without_an_evaluation_split_the_result_has_the_training_figures(config):
    result = train(replace(config, eval_split=None))
    assert result.accuracy == result.history[-1]["train_accuracy"]
    assert result.history[-1]["eval_samples"] == 0


def test_the_right_digest_is_accepted_and_another_refused(config, squares):
    from smalti.catalog import load_manifest
    from smalti.storage import open_store

    digest = load_manifest(open_store(squares)).digest
    train(replace(config, version=1, digest=digest, epochs=1))
    with pytest.raises(CursorError, match="pinned to 0000"):
        train(replace(config, run_dir=config.run_dir + "-other", digest="0" * 64))


def test_a_run_keeps_its_version_when_a_newer_one_is_published(config, tmp_path):
    first = publish_squares(tmp_path / "set")
    config = replace(config, data=str(tmp_path / "set"))
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(4))
    publish_squares(tmp_path / "set", train=20, mode="overwrite")
    heard = []
    train(config, on_event=heard.append)
    assert (heard[0]["version"], heard[0]["digest"]) == (first.version, first.digest)
    assert len(read_sample_order(config.run_dir)[1]) == TRAIN


@pytest.mark.parametrize(
    ("field", "value"), [("seed", 18), ("task_options.num_classes", 4), ("task_options.image_size", 32)]
)
def test_the_checkpoints_of_another_run_are_refused(config, field, value):
    train(replace(config, epochs=1))
    changed = with_params(config, {field: value, "task_options.class_names": []})
    with pytest.raises(CursorError, match=rf"`{field}` was .* and is {value}"):
        train(changed)


def test_a_label_that_is_no_class_is_named_with_its_sample(config, tmp_path):
    publish_squares(tmp_path / "set", label=lambda number: 7 if number == 13 else 0)
    with pytest.raises(
        SchemaError, match=r"column 'label' of sample 13 holds 7, but class numbers must lie in \[0, 3\)"
    ):
        train(replace(config, data=str(tmp_path / "set")))


def test_a_missing_column_is_named_with_the_existing_ones(config):
    with pytest.raises(SchemaError, match=r"`image_column` is 'picture', but .* has the columns image, label"):
        train(with_params(config, {"task_options.image_column": "picture"}))


def test_a_gradient_that_is_not_a_number_ends_the_run_with_its_samples(config):
    with pytest.raises(TrainingError, match="gradient of step 1 is not finite") as caught:
        train(replace(config, model="tests.torch.train.tiny_models:not_a_number"))
    assert len(caught.value.sample_ids) == 8


def test_a_held_out_loss_that_is_not_a_number_ends_the_run(config):
    with pytest.raises(TrainingError, match="held-out loss of epoch 0 is nan"):
        train(replace(config, model="tests.torch.train.tiny_models:not_a_number_held_out"))


def test_two_trainers_cannot_share_a_run_folder(config):
    from smalti.torch.train.run.store import run_lock

    run_dir = Path(config.run_dir)
    with (
        run_lock(run_dir),
        pytest.raises(TrainingError, match="another process has been"),
        run_lock(run_dir, wait_seconds=0.3),
    ):
        pytest.fail("two held it")


def test_a_batch_that_does_not_divide_is_refused_before_anything_starts(config):
    with pytest.raises(WorldMismatch, match="it works with 1, 2, 4 or 8 ranks"):
        train(replace(config, launcher="processes", num_processes=3))
    assert not Path(config.run_dir).exists()


def test_storage_options_are_not_written_to_the_run_folder(config):
    train(replace(config, epochs=1, storage_options={"auto_mkdir": "canary-8642"}))
    for path in Path(config.run_dir).rglob("*"):
        assert path.is_dir() or b"canary-8642" not in path.read_bytes(), path


def test_the_callers_random_numbers_and_threads_do_not_change(config):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    train(replace(config, epochs=1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


@pytest.mark.process
@pytest.mark.slow
def test_loader_workers_change_nothing(config, tmp_path):
    train(config)
    train(replace(config, run_dir=str(tmp_path / "workers"), num_workers=2))
    assert read_sample_order(config.run_dir) == read_sample_order(tmp_path / "workers")
    expected, found = model_of(config.run_dir), model_of(tmp_path / "workers")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.slow
def test_a_mobilenet_is_trained_and_opens_with_transformers(config):
    from transformers import AutoModelForImageClassification

    result = train(with_params(config, {"model": "mobilenet_v2", "task_options.image_size": 32, "epochs": 1}))
    model = AutoModelForImageClassification.from_pretrained(result.model_dir)
    assert model.config.id2label == {0: "red", 1: "green", 2: "blue"}
    assert model(torch.rand(1, 3, 32, 32)).logits.shape == (1, 3)


def test_a_run_folder_that_cannot_be_made_is_named(config, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainingError, match=r"`run_dir` .*file/run cannot be written"):
        train(replace(config, run_dir=str(tmp_path / "file" / "run")))
