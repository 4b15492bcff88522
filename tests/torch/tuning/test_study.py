"""A study finds the best hyperparameters, prunes and survives bad trials, and a killed one continues."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.errors import SchemaError, StoreTimeout, TrainingError
from smalti.storage import open_store
from smalti.torch.train.config import RunConfig
from smalti.torch.tuning import StudyOptions, hyperparameter_study
from smalti.torch.tuning.space import parse_space, with_params
from smalti.torch.tuning.study import Conductor, RunningTrial
from tests.torch.train.conftest import publish_squares
from tests.torch.tuning.functions import constant, hopeless, loud, parabola, steps_to, version_read

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
SPACE = {"x": {"low": -2.0, "high": 2.0}, "kind": ["good", "bad"]}


def options(folder, **more):
    fields = {"metric": "score", "sampler": "random", "trials_on": "inline", **more}
    return StudyOptions(study_dir=str(folder / "study"), **fields)


def test_a_study_finds_the_best_trial_survives_failures_and_proposes_the_same_with_and_without_a_restart(tmp_path):
    """The function fails for x above 1, and is the parabola 1 - x^2, less 3 for the bad kind."""
    heard = []
    whole = hyperparameter_study(parabola, SPACE, options(tmp_path, trials=6), on_event=heard.append)
    assert [trial.state for trial in whole.trials] == [
        "failed" if trial.params["x"] > 1 else "complete" for trial in whole.trials
    ]
    assert {trial.state for trial in whole.trials} == {"failed", "complete"}
    for trial in whole.trials:
        if trial.state == "complete":
            assert trial.value == pytest.approx(1 - trial.params["x"] ** 2 - 3 * (trial.params["kind"] == "bad"))
        else:
            assert "x is above one" in trial.failure
    assert whole.best.value == max(trial.value for trial in whole.trials if trial.state == "complete")
    assert [event["state"] for event in heard].count("running") == 6
    assert set(whole.importances) == {"x", "kind"}
    saved = json.loads((tmp_path / "study" / "study.json").read_text())
    assert saved["best"]["params"] == dict(whole.best.params)
    parts = options(tmp_path / "in-parts", trials=2)
    hyperparameter_study(parabola, SPACE, parts)
    both = hyperparameter_study(parabola, SPACE, replace(parts, trials=6))
    assert [trial.params for trial in both.trials] == [trial.params for trial in whole.trials]
    assert hyperparameter_study(parabola, SPACE, replace(parts, trials=6)) == both


def test_a_study_in_a_store_continues_from_its_journal_there(tmp_path):
    place = StudyOptions(
        study_dir="memory://tuning/study", metric="score", sampler="random", trials=2, trials_on="inline"
    )
    good = {**SPACE, "x": {"low": 0.0, "high": 1.0}}
    first = hyperparameter_study(parabola, good, place)
    second = hyperparameter_study(parabola, good, replace(place, trials=3))
    assert second.trials[:2] == first.trials
    assert len(second.trials) == 3
    assert json.loads(open_store("memory://tuning/study").get("study.json"))["trials"][0]["number"] == 0


def test_a_study_is_not_continued_with_another_aim_or_space_and_is_with_another_budget(tmp_path):
    begun = options(tmp_path, trials=1)
    hyperparameter_study(parabola, SPACE, begun)
    again = replace(begun, trials=2, seconds=600.0, max_failures=5)
    assert len(hyperparameter_study(parabola, SPACE, again).trials) == 2
    for changed, space in (({"metric": "other"}, SPACE), ({"direction": "minimize"}, SPACE), ({}, {"x": [0, 1]})):
        name = next(iter(changed), "space")
        with pytest.raises(SchemaError, match=f"was begun with another {name}, .* expected .* another `study_dir`"):
            hyperparameter_study(parabola, space, replace(begun, **changed))


def test_a_study_is_not_continued_over_another_content_of_its_data(tmp_path, squares):
    found = hyperparameter_study(constant, {"x": [1]}, options(tmp_path, trials=1), data=str(squares))
    assert found.best.value == 1
    other = tmp_path / "other"
    publish_squares(other, train=1)
    with pytest.raises(SchemaError, match="was begun with another data digest, "):
        hyperparameter_study(constant, {"x": [1]}, options(tmp_path, trials=2), data=str(other))


def test_a_trial_may_print_anything_to_standard_output_and_still_has_its_result(tmp_path):
    given = options(tmp_path, trials=1, trials_on="processes")
    found = hyperparameter_study(loud, {"x": [1]}, given)
    assert [(trial.state, trial.value) for trial in found.trials] == [("complete", 1.0)], found.trials


@pytest.mark.nightly
def test_the_fields_of_a_training_are_tuned_and_live_metrics_are_those_of_epochs(config, tmp_path):
    tuned = replace(config, log_samples=False, epochs=1, eval_every=3)
    found = hyperparameter_study(
        tuned,
        {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}},
        options(tmp_path, metric="accuracy", trials=2),
    )
    assert [trial.state for trial in found.trials] == ["complete", "complete"]
    for trial in found.trials:
        result = json.loads(Path(trial.run_dir, "result.json").read_text())
        assert trial.value == pytest.approx(result["accuracy"])
    assert len({trial.params["learning_rate"] for trial in found.trials}) == 2


def test_too_many_failures_end_a_study_with_the_last_reason(tmp_path):
    bad = {**SPACE, "x": {"low": 1.5, "high": 2.0}}
    with pytest.raises(TrainingError, match=r"2 trials .* failed, `max_failures` is 1.*x is above one"):
        hyperparameter_study(parabola, bad, options(tmp_path, trials=9, max_failures=1))


def test_a_trial_that_is_worse_than_others_were_at_the_same_step_is_pruned(tmp_path):
    """The fourth would report for minutes; three are needed before their median counts."""
    found = hyperparameter_study(hopeless, {"x": [1, 2]}, options(tmp_path, trials=4))
    assert [trial.state for trial in found.trials] == ["complete", "complete", "complete", "pruned"]
    assert found.trials[3].value == 0.0


def test_an_error_of_the_storage_of_a_study_ends_it_and_is_no_failure_of_the_trial():
    def report(trial, event):
        raise StoreTimeout("no answer")

    asked = []
    running = RunningTrial(None, lambda hear: hear({"event": "epoch"}), lambda: asked.append(True), report)
    running.thread.join()
    assert asked == [True]
    with pytest.raises(StoreTimeout, match="no answer"):
        Conductor(None, None, (), None, None)._conclude(running)


def test_the_example_of_the_documentation_finds_a_rate_that_learns(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL)
    [code] = [block for block in blocks if "hyperparameter_study" in block]
    for old, new in {'"studies/line"': f'"{tmp_path}/study"', "20, parallel=2": '4, trials_on="inline"'}.items():
        assert old in code
        code = code.replace(old, new)
    names = {"__name__": "docs"}
    exec(code, names)
    study = names["study"]
    assert len(study.trials) == 4
    assert study.best.value == min(trial.value for trial in study.trials if trial.state == "complete")
    assert 0.001 <= study.best.params["learning_rate"] <= 1


KILLED = """
import json, sys
from smalti.torch.tuning import StudyOptions, hyperparameter_study
from tests.torch.tuning.functions import steps_to
folder = sys.argv[1]
hyperparameter_study(
    steps_to, {"x": {"low": 0.0, "high": 1.0}}, StudyOptions(study_dir=folder + "/study", metric="score", trials=2),
    {"folder": folder},
)
"""


def test_the_trials_of_a_killed_study_end_with_it_and_continue_from_their_checkpoints(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        wait_until(lambda: list(tmp_path.glob("waits-*")))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=500)
    [trial] = [int(path.name.partition("-")[2]) for path in tmp_path.glob("waits-*")]
    wait_until(lambda: not is_alive(trial))
    (tmp_path / "go").touch()
    given = options(tmp_path, trials=2, trials_on="inline")
    found = hyperparameter_study(steps_to, {"x": {"low": 0.0, "high": 1.0}}, given, {"folder": str(tmp_path)})
    assert [trial.state for trial in found.trials] == ["complete", "complete"]
    results = [json.loads(Path(trial.run_dir, "result.json").read_text())["value"] for trial in found.trials]
    assert [each["began_at"] for each in results] == [1, 0]
    assert found.trials[0].run_dir.endswith("trials/00000")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_so, seconds=500):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_all_trials_of_a_study_read_the_version_that_it_was_begun_with(tmp_path):
    publish_squares(tmp_path / "set", train=5)

    def publish(event):
        if event["state"] == "complete" and event["number"] == 0:
            publish_squares(tmp_path / "set", train=10, mode="overwrite")

    run = {"data": str(tmp_path / "set"), "device": "cpu"}
    hyperparameter_study(version_read, SPACE, options(tmp_path, trials=2), on_event=publish, **run)
    study = hyperparameter_study(version_read, SPACE, options(tmp_path, trials=3), **run)
    assert [trial.value for trial in study.trials] == [1.0, 1.0, 1.0]


# ------------------------------------------------------------ the search space


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        ({"low": 0, "high": 1, "step": 0.5}, {0.0, 0.5, 1.0}),
        ({"low": 0, "high": 4, "step": 2.0}, {0, 2, 4}),
        ({"low": 1, "high": 2}, {1, 2}),
    ],
)
def test_a_range_has_whole_numbers_only_if_its_step_is_whole_too(entry, values):
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    [dimension] = parse_space({"x": entry})
    found = [dimension.suggest(study.ask()) for _ in range(30)]
    assert set(found) == values
    assert {type(each) for each in found} == {type(next(iter(values)))}


def test_hyperparameters_reach_fields_and_nested_mappings():
    config = {"rate": 1, "optimizer": {"momentum": 0.5, "name": "sgd"}}
    found = with_params(config, {"rate": 2, "optimizer.momentum": 0.9, "new.deep": 1})
    assert found == {"rate": 2, "optimizer": {"momentum": 0.9, "name": "sgd"}, "new": {"deep": 1}}
    assert config["optimizer"]["momentum"] == 0.5
    assert with_params(RunConfig(run_dir="a"), {"num_processes": 2, "launcher": "processes"}).num_processes == 2
    with pytest.raises(SchemaError, match="RunConfig has no field 'momentum'"):
        with_params(RunConfig(run_dir="a"), {"momentum": 1})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([], "must have choices"),
        ([[1]], "must have choices"),
        ({"low": 1}, "must be a list of choices, or a range"),
        ({"low": 1, "high": 2, "hight": 3}, "must be a list of choices, or a range"),
        ({"low": 2, "high": 1}, "a `low` up to its `high`"),
        ({"low": 0.0, "high": 1.0, "log": True}, "with `log` one above 0"),
        ({"low": 0, "high": 1, "step": 0}, "a `step` above 0"),
        ("1", "must be a list of choices"),
    ],
)
def test_an_entry_that_is_no_hyperparameter_is_refused_by_name(entry, message):
    with pytest.raises(SchemaError, match=f"`x` must.*{message.removeprefix('must ')}"):
        parse_space({"x": entry})


def test_wrong_options_are_explained_before_anything_starts(config, tmp_path):
    with pytest.raises(SchemaError, match="the search space is empty"):
        hyperparameter_study(parabola, {}, options(tmp_path))
    with pytest.raises(SchemaError, match="`sampler` must be one of tpe, random, not 'grid'"):
        options(tmp_path, sampler="grid")
    with pytest.raises(SchemaError, match="TrainConfig has no field 'momentum'"):
        hyperparameter_study(config, {"momentum": [1]}, options(tmp_path))
    with pytest.raises(SchemaError, match="`launcher` of a study's trials must be inline or processes"):
        hyperparameter_study(replace(config, launcher="spark"), SPACE, options(tmp_path))
    assert list(tmp_path.iterdir()) == []
