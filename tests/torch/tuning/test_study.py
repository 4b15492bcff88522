"""A study finds the best hyperparameters, prunes and survives bad trials, and a killed one continues."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.errors import SchemaError, TrainingError
from smalti.storage import open_store
from smalti.torch.train.config import RunConfig
from smalti.torch.tuning import StudyOptions, hyperparameter_study
from smalti.torch.tuning.space import parse_space, with_params
from tests.torch.tuning.functions import hopeless, parabola, steps_to

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

SPACE = {"x": {"low": -2.0, "high": 2.0}, "kind": ["good", "bad"]}


def options(folder, **more):
    return StudyOptions(study_dir=str(folder / "study"), **{"metric": "score", "sampler": "random", **more})


def test_a_study_finds_the_best_trial_survives_failures_and_proposes_the_same_with_and_without_a_restart(tmp_path):
    """The function fails for x above 1, and is the parabola 1 - x^2, less 3 for the bad kind."""
    heard = []
    whole = hyperparameter_study(parabola, SPACE, options(tmp_path, trials=4, parallel=2), on_event=heard.append)
    assert [trial.state for trial in whole.trials] == [
        "failed" if trial.params["x"] > 1 else "complete" for trial in whole.trials
    ]
    for trial in whole.trials:
        if trial.state == "complete":
            assert trial.value == pytest.approx(1 - trial.params["x"] ** 2 - 3 * (trial.params["kind"] == "bad"))
        else:
            assert "x is above one" in trial.failure
    assert whole.best.value == max(trial.value for trial in whole.trials if trial.state == "complete")
    assert [event["state"] for event in heard].count("running") == 4
    saved = json.loads((tmp_path / "study" / "study.json").read_text())
    assert saved["best"]["params"] == dict(whole.best.params)
    parts = options(tmp_path / "in-parts", trials=2)
    hyperparameter_study(parabola, SPACE, parts)
    both = hyperparameter_study(parabola, SPACE, replace(parts, trials=4))
    assert [trial.params for trial in both.trials] == [trial.params for trial in whole.trials]
    assert hyperparameter_study(parabola, SPACE, replace(parts, trials=4)) == both
