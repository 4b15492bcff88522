"""Tasks: the examples and a user's learn, report exact figures, resume with the same bits, and are loaded again."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from smalti.catalog import Draft, new_write_id, publish
from smalti.errors import CursorError, SchemaError, TrainingError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import open_store
from smalti.torch.train import Task, TrainConfig, evaluate_model, train
from smalti.torch.train.config import TASKS, find_named
from smalti.torch.train.trainer.state import check_same_run
from smalti.torch.train.trainer.step import Sums, evaluate, merged_metrics
from smalti.torch.train.trainer.task import load_model, model_named, save_model
from smalti.writer import ShardUploader
from tests.torch.train.launch.test_inline import InterruptError, interrupt_at, model_of
from tests.torch.train.tiny_tasks import Line, Scheduled

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[3] / "examples"
SPLITS = {"train": range(50), "validation": range(100, 114), "single": range(200, 201)}
TABULAR = {
    "task": "examples.tabular_regression:TabularRegression",
    "task_options": {"features": ["a", "b"], "target": "y", "hidden": [8]},
}
LANGUAGE = {
    "task": "examples.language_model:LanguageModel",
    "task_options": {"vocabulary": 7, "block": 12, "layers": 1, "heads": 2, "width": 16},
}
TINY = "tests.torch.train.tiny_tasks"


def row(number: int) -> dict[str, object]:
    """Two numbers, a third that follows from them, and tokens that count up modulo 7."""
    a, b = np.random.default_rng(number).normal(size=2)
    return {"a": a, "b": b, "y": 3 * a - 2 * b + 1, "tokens": ((np.arange(12) + number) % 7).astype(np.int32)}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Root of a shard set with three splits."""
    root = tmp_path_factory.mktemp("rows")
    publish_splits(root, {"a": "float64", "b": "float64", "y": "float64", "tokens": "ndarray:int32:12"}, row)
    return root


def publish_splits(root, columns, make_row):
    """Publish a version with `SPLITS`."""
    store, write_id, schema = open_store(root), new_write_id(), Schema.from_columns(columns)
    shards = []
    for split, numbers in SPLITS.items():
        uploader = ShardUploader(
            store, f"{split}/{write_id}/0", ShardBuilder(schema, ShardOptions(size_limit=2_000)), partition=split
        )
        for number in numbers:
            uploader.write(make_row(number))
        shards += uploader.finish()
    publish(store, Draft(write_id, schema, tuple(shards)), mode="create")


@pytest.fixture
def configured(rows, tmp_path):
    """Two epochs of seven steps each."""
    return TrainConfig(
        data=str(rows), run_dir=str(tmp_path / "run"), epochs=2, batch_size=8, learning_rate=0.02, weight_decay=0.0,
        checkpoint_every=3, log_every=2, device="cpu", timeout_seconds=280.0,
    )  # fmt: skip


def columns(split: str) -> dict[str, np.ndarray]:
    found = [row(number) for number in SPLITS[split]]
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def test_a_regression_learns_and_its_figures_are_those_of_all_held_out_rows(configured):
    result = train(replace(configured, **TABULAR, epochs=12, learning_rate=0.05, checkpoint_every=50))
    held_out = columns("validation")
    model, config = load_model(Path(result.model_dir))
    with torch.inference_mode():
        inputs = torch.from_numpy(np.column_stack([held_out["a"], held_out["b"]])).float()
        errors = model.eval()(inputs).numpy()[:, 0] - held_out["y"]
    assert result.metrics == pytest.approx(
        {
            "loss": np.square(errors).mean(),
            "mean_squared_error": np.square(errors).mean(),
            "mean_absolute_error": np.abs(errors).mean(),
            "r2": 1 - np.square(errors).mean() / held_out["y"].var(),
        },
        rel=1e-4,
    )
    assert result.metrics["r2"] > 0.9
    assert (result.accuracy, result.main_metric, result.higher_is_better) == (None, "mean_squared_error", False)
    assert config.task == TABULAR["task"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments", "figure"),
    [("tabular_regression", ("y", "a", "b"), "mean_squared_error"), ("language_model", ("7",), "perplexity")],
)
def test_a_copy_of_an_example_trains_as_a_program(rows, tmp_path, program, arguments, figure):
    copy = shutil.copy(EXAMPLES / f"{program}.py", tmp_path)
    words = [sys.executable, copy, str(rows), str(tmp_path / "run"), *arguments]
    # Threads of torch that wait for each other take most of the time on a busy machine.
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=500, check=False)
    assert f"'{figure}'" in done.stdout, done.stderr


@pytest.mark.parametrize(("former", "given"), [("tabular-regression", TABULAR), ("language-model", LANGUAGE)])
def test_the_error_of_a_former_task_names_the_example_that_its_runs_and_models_continue_with(configured, former, given):
    config = replace(configured, **given, epochs=1)
    folder = Path(train(config).model_dir)
    with pytest.raises(SchemaError) as caught:
        replace(config, task=former)
    module, kind = re.search(r"copy (\w+)\.py .* `task: \1:(\w+)`", str(caught.value)).groups()
    assert given["task"] == f"examples.{module}:{kind}"
    facts = json.loads((folder / "smalti.json").read_text())
    facts["train"]["task"] = former
    (folder / "smalti.json").write_text(json.dumps(facts))
    with pytest.raises(SchemaError, match=f"stored models are read with `task={kind}"):
        load_model(folder)
    load_model(folder, find_named(given["task"], field="task")(**given["task_options"]))
    state = {"config": {**config.public_json(), "task": former}, "digest": "1" * 64}
    check_same_run(config, state)


def test_the_target_may_be_scaled_and_the_figures_are_in_its_own_units(configured):
    options = {**TABULAR["task_options"], "target_mean": 1.0, "target_scale": 10.0}
    metrics = train(replace(configured, task=TABULAR["task"], task_options=options, epochs=1)).metrics
    assert metrics["mean_squared_error"] == pytest.approx(100 * metrics["loss"])


def test_a_language_model_learns_and_its_perplexity_is_that_of_all_tokens(configured):
    from transformers import AutoModelForCausalLM

    result = train(replace(configured, **LANGUAGE, epochs=4, checkpoint_every=50))
    tokens = torch.from_numpy(columns("validation")["tokens"]).long()
    model = AutoModelForCausalLM.from_pretrained(result.model_dir)
    with torch.inference_mode():
        logits = model(tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 7), tokens[:, 1:].reshape(-1))
    assert result.metrics["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-4)
    assert result.metrics["perplexity"] < 4  # 7 tokens, one of which is certain
    loaded, _ = load_model(Path(result.model_dir))
    assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)

    # Fine-tuning from that folder, with all but the last block frozen.
    tuned = replace(configured, **LANGUAGE, run_dir=configured.run_dir + "-tuned", weights=result.model_dir)
    found = train(replace(tuned, freeze=("transformer.wte", "transformer.wpe", "*.attn.*"), epochs=1))
    before, after = model_of(configured.run_dir), model_of(tuned.run_dir)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "mlp" in name or ".ln_" in name}
    assert found.metrics["loss"] < result.history[0]["metrics"]["loss"]


def test_tokens_that_are_ignored_do_not_count(configured):
    options = {**LANGUAGE["task_options"], "ignore": 0}
    losses = train(replace(configured, task=LANGUAGE["task"], task_options=options, epochs=1, eval_split="single"))
    tokens = columns("single")["tokens"][0]
    model, _ = load_model(Path(losses.model_dir))
    with torch.inference_mode():
        logits = model.eval()(torch.from_numpy(tokens)[None].long()).logits[0, :-1]
    each = torch.nn.functional.cross_entropy(logits, torch.from_numpy(tokens[1:]).long(), reduction="none")
    assert losses.metrics["loss"] == pytest.approx(float(each[torch.from_numpy(tokens[1:]) != 0].mean()), rel=1e-5)


EXACT = {
    "a regression with steps, a factored optimiser and shards that move between runs": {
        **TABULAR, "affinity": 0.5, "schedule": "step", "milestones": (0.3, 0.6), "optimizer": "torch.optim:Adafactor",
    },
    "a language model with dropout, a constant rate and momentum": {
        **LANGUAGE, "schedule": "constant", "optimizer": "torch.optim:SGD",
        "optimizer_options": {"momentum": 0.9, "nesterov": True},
    },
    "half precision, frozen weights, clipping and a schedule of the user's": {
        **TABULAR, "schedule": f"{TINY}:falling", "precision": "bfloat16", "freeze": ("4.weight",), "clip_norm": 0.1,
        "micro_batches": 2, "optimizer": "torch.optim:RMSprop",
    },
    "a task with its own optimiser and scheduler": {"task": f"{TINY}:Scheduled"},
}  # fmt: skip


@pytest.mark.parametrize("changed", EXACT.values(), ids=EXACT)
def test_an_interrupted_run_ends_with_the_same_bits(configured, tmp_path, changed):
    """G12, and G5: 50 samples in steps of 8 leave an uneven last one."""
    config = replace(configured, **changed)
    whole = train(replace(config, run_dir=str(tmp_path / "whole")))
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(10))
    result = train(config)
    assert result.resumed_from["step"] == 9
    expected, found = model_of(tmp_path / "whole"), model_of(config.run_dir)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [each["metrics"] for each in result.history] == [each["metrics"] for each in whole.history]
    assert result.history[1]["train_metrics"] == pytest.approx(whole.history[1]["train_metrics"])


def test_a_run_that_was_interrupted_before_its_schedulers_switch_ends_with_the_same_bits(configured, tmp_path):
    """The second scheduler is restored at step 3, and takes over at step 5."""
    config = replace(configured, task=f"{TINY}:Scheduled", epochs=1)
    train(replace(config, run_dir=str(tmp_path / "whole")))
    with pytest.raises(InterruptError):
        train(config, on_event=interrupt_at(4))
    assert train(config).resumed_from["step"] == 3
    expected, found = model_of(tmp_path / "whole"), model_of(config.run_dir)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_the_rate_of_each_group_follows_the_schedule_or_the_scheduler(configured):
    rates = {}
    for task in (f"{TINY}:Scheduled", f"{TINY}:Line"):
        heard = []
        train(
            replace(configured, task=task, schedule="constant", log_every=1, run_dir=configured.run_dir + task[-4:]),
            on_event=heard.append,
        )
        rates[task[len(TINY) + 1 :]] = [each["learning_rate"] for each in heard if each["event"] == "step"]
    # A third of the rate rises to all of it in 5 steps; a tenth 3 steps later, and a hundredth 6 steps later.
    assert rates["Scheduled"][0] == pytest.approx(0.05 / 3)
    assert rates["Scheduled"][5:] == pytest.approx([0.05] * 3 + [0.005] * 3 + [0.0005] * 3)
    assert rates["Line"][2:] == [0.02] * 12


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_task_of_the_users_is_named_or_given_and_all_ranks_report_the_same_as_one(configured, ranks):
    class Mine(Line):  # known nowhere else: it is sent with its code
        pass

    config = replace(configured, checkpoint_every=50, epochs=1)
    named = train(replace(config, task=f"{TINY}:Line", run_dir=config.run_dir + "-named"))
    given = train(replace(config, launcher="processes", num_processes=ranks), task=Mine())
    assert given.metrics == pytest.approx(named.metrics, rel=1e-4)
    held_out = columns("validation")
    model, _ = load_model(Path(given.model_dir), Mine())
    inputs = torch.from_numpy(np.column_stack([held_out["a"], held_out["b"]])).float()
    errors = model(inputs).detach().numpy()[:, 0] - held_out["y"]
    assert given.metrics["error"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    with pytest.raises(SchemaError, match="given as an object"):
        load_model(Path(given.model_dir))


def test_a_rank_without_samples_has_no_part_in_the_metrics(configured):
    from torchmetrics import MeanAbsoluteError

    class Three:
        """Ranks, of which one has 1 sample, one none, and one 3."""

        def gather(self, mine, what):
            metrics = {}
            for rank, errors in (("first", [2.0]), ("last", [1.0, 1.0, 0.0])):
                metrics[rank] = MeanAbsoluteError()
                metrics[rank].update(torch.tensor(errors), torch.zeros(len(errors)))
            return [{"error": metrics["first"]}, mine, {"error": metrics["last"]}]

    mine = {"error": MeanAbsoluteError()}
    assert merged_metrics(mine, Three(), updated=False) == {"error": 1.0}


def test_a_rank_without_samples_of_an_evaluation_does_not_know_the_names_of_scores(configured):
    class Two:
        device = torch.device("cpu")

        def gather(self, value, what):
            return [Sums(3.0, {"hits": 1.0}, 2), value]

    scores = evaluate(torch.nn.Linear(2, 1), [], configured, Two(), Scheduled())
    assert (scores.metrics, scores.samples) == ({"loss": 1.5, "hits": 0.5}, 2)


def test_metrics_whose_updates_depend_on_each_other_are_merged_by_the_reductions_of_their_states():
    from torchmetrics import MeanAbsoluteError, Metric, PearsonCorrCoef

    class Widest(Metric):  # does not say `full_state_update`
        def __init__(self):
            super().__init__()
            self.add_state("widest", torch.tensor(0.0), dist_reduce_fx="max")
            self.add_state("errors", [], dist_reduce_fx="cat")

        def update(self, outputs, targets):
            self.errors.append((outputs - targets).abs())
            self.widest = torch.maximum(self.widest, self.errors[-1].max())

        def compute(self):
            return self.widest * len(self.errors)

    def exchange(*_):
        raise AssertionError("the states are merged already")

    def metrics_of(outputs, targets):
        metrics = {
            "correlation": PearsonCorrCoef(),
            "widest": Widest(),
            "sum": MeanAbsoluteError(distributed_available_fn=lambda: True, dist_sync_fn=exchange) + 1.0,
        }
        for metric in metrics.values():
            metric.update(torch.tensor(outputs), torch.tensor(targets))
        return metrics

    class Three:
        def gather(self, mine, what):
            return [metrics_of([1.0, 2.0], [2.0, 1.0]), {}, metrics_of([3.0, 4.0, 2.5], [4.0, 3.0, 2.5])]

    # Of all: covariance 3 and variances 5 around 2.5; the largest error is 1, of 5; the mean error 4 / 5.
    found = merged_metrics(metrics_of([0.0], [0.0]), Three(), updated=False)
    assert found == pytest.approx({"correlation": 0.6, "widest": 5.0, "sum": 1.8})


def test_a_model_that_was_trained_with_restarts_is_measured_in_this_process(configured, rows):
    result = train(replace(configured, task=f"{TINY}:Line", epochs=1))
    model, config = load_model(Path(result.model_dir))
    several = replace(config, launcher="processes", num_processes=2, max_restarts=1, min_processes=1)
    save_model(model, several, Path(result.model_dir))
    assert evaluate_model(result.model_dir, str(rows), version=1).metrics == pytest.approx(result.metrics)


@pytest.mark.process
@pytest.mark.nightly
def test_parameters_that_a_model_leaves_unused_do_not_stop_two_ranks(configured):
    two = replace(configured, task=f"{TINY}:PartlyUsed", launcher="processes", num_processes=2, epochs=1)
    assert train(two).steps == 7


def test_another_task_does_not_go_on_with_a_run(configured):
    train(replace(configured, **TABULAR, epochs=1))
    with pytest.raises(CursorError, match=r"`task` was '.*TabularRegression' and is '.*LanguageModel'"):
        train(replace(configured, **LANGUAGE))
    with pytest.raises(CursorError, match=r"`freeze` was \[\] and is \['1'\]"):
        train(replace(configured, **TABULAR, freeze=("1",)))


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"task": "no_such_module:Task"}, SchemaError, "`task` 'no_such_module:Task': No module"),
        ({"task": f"{TINY}:Line", "task_options": {"depth": 3}}, SchemaError, "cannot be made with the options"),
        ({"task": f"{TINY}:falling", "task_options": {"done": 1.0}}, SchemaError, "is float; expected a subclass"),
        ({"task": f"{TINY}:WithoutRows"}, TrainingError, r"the loss .* of shape \(\), expected .* 8 samples"),
        ({**TABULAR, "optimizer": "torch.optim:Adamm"}, SchemaError, "`optimizer` 'torch.optim:Adamm'"),
        ({**TABULAR, "optimizer": "torch.optim:SGD", "optimizer_options": {"x": 1}}, SchemaError, "cannot be made"),
        ({**TABULAR, "optimizer": "builtins:dict"}, SchemaError, "cannot be made|is dict"),
        ({**TABULAR, "schedule": "math:log", "warmup": 0.0}, (SchemaError, ValueError), "returned|domain|expected"),
        ({**TABULAR, "freeze": ("layers.*",)}, SchemaError, r"`freeze` 'layers\.\*' is no parameter .*1\.weight"),
        ({**TABULAR, "freeze": ("*",)}, SchemaError, "leaves no parameter"),
        ({"task": TABULAR["task"]}, SchemaError, "(?s)cannot be made with the options .*features.*target"),
        ({**TABULAR, "task_options": {"features": ["y"], "target": "y"}}, SchemaError, "without the target 'y'"),
        ({**TABULAR, "task_options": {"features": ["z"], "target": "y"}}, SchemaError, "reads the column 'z'"),
        ({**LANGUAGE, "task_options": {"vocabulary": 0}}, SchemaError, "number of different tokens"),
        ({"task_options": {"image_size": "7"}}, SchemaError, "`image_size` must be a whole number, not '7'"),
        ({"task_options": {"layer": 2}}, SchemaError, "unknown fields \\['layer'\\]"),
        (
            {**LANGUAGE, "task_options": {"layer": 2}},
            SchemaError,
            "(?s)cannot be made with .*layer.*Unexpected keyword",
        ),
        ({**LANGUAGE, "task_options": {"vocabulary": "x"}}, SchemaError, "(?s)vocabulary.*should be a valid integer"),
        ({**TABULAR, "model": "m:net"}, SchemaError, "`model` is 'm:net', but the task builds its own"),
        ({**LANGUAGE, "model": "m:net"}, SchemaError, "`model` is 'm:net', but the task builds its own"),
        ({**LANGUAGE, "task_options": {**LANGUAGE["task_options"], "vocabulary": 6}}, SchemaError, "the token 6"),
        ({**LANGUAGE, "task_options": {"column": "a", "vocabulary": 7}}, SchemaError, "blocks of equally many"),
    ],
)
def test_what_cannot_be_trained_is_named(configured, changed, error, words):
    with pytest.raises(error, match=words):
        train(replace(configured, **changed))


def test_a_scheduler_that_waits_for_the_loss_gets_it_after_each_epoch(configured):
    class Patient(Scheduled):
        def lr_scheduler(self, optimizer, config):
            return torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, threshold=1e9, threshold_mode="abs", patience=0
            )

    heard = []
    train(replace(configured, epochs=3, log_every=7), task=Patient(), on_event=heard.append)
    assert [each["learning_rate"] for each in heard if each["event"] == "step"] == pytest.approx(
        [0.05, 0.05, 0.05, 0.005]
    )


def test_a_main_figure_that_the_task_does_not_report_is_named(configured):
    class Lost(Line):
        main_metric = "f1"

    heard = []
    with pytest.raises(TrainingError, match=r"main figure 'f1' .* it has loss, error"):
        train(replace(configured, epochs=1, log_every=1), task=Lost(), on_event=heard.append)
    assert [each["event"] for each in heard] == ["start"]  # before the first step


def test_a_figure_of_keep_best_that_the_task_does_not_report_is_named_before_the_first_step(configured):
    heard = []
    with pytest.raises(TrainingError, match="'f1' is no figure of an epoch; there are loss, error, train_loss"):
        train(replace(configured, keep_best="max f1", log_every=1), task=Line(), on_event=heard.append)
    assert [each["event"] for each in heard] == ["start"]
    assert train(replace(configured, keep_best="min error", epochs=1), task=Line()).steps == 7


def test_errors_of_a_users_task_name_no_model_that_it_does_not_build(configured):
    class Wide(Line):
        def build_model(self, config):
            return torch.nn.Linear(3, 1)

    with pytest.raises(TrainingError, match=r"^the model of task 'object:.*Wide' does not take a batch") as caught:
        train(replace(configured, epochs=1), task=Wide())
    assert "mobilenet" not in str(caught.value)
    assert model_named(replace(configured, task="image-classification")) == (
        "the model of task 'image-classification' (`model` 'mobilenet_v2')"
    )


def test_the_table_of_shipped_tasks_names_classes_that_have_its_options():
    for options in TASKS.values():
        shipped = find_named(options.factory, field="task")
        assert issubclass(shipped, Task)
        assert issubclass(shipped, options)


def test_the_example_of_the_documentation_trains(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", page.partition("## A task of your own")[2], re.DOTALL)  # and a study
    publish_splits(
        tmp_path / "digits",
        {"pixels": "ndarray:float32:64", "label": "int"},
        lambda number: {"pixels": np.eye(64, dtype=np.float32)[number % 10] * 9, "label": number % 10},
    )
    for old, new in {
        "s3://bucket/digits": str(tmp_path / "digits"),
        "s3://bucket/runs/digits-task": str(tmp_path / "run"),
        '"processes"': '"inline"',
        "num_processes=2": "num_processes=1",
        "epochs=3": "epochs=30",
    }.items():
        assert old in code
        code = code.replace(old, new)
    names = {"__name__": "docs"}
    exec(code, names)
    result = names["result"]
    assert (result.main_metric, result.higher_is_better) == ("f1", True)
    assert result.accuracy == result.metrics["accuracy"] > 0.9
    assert result.metrics["f1"] == pytest.approx(1.0, abs=0.1)
