"""Programs as public repositories have them run unmodified on the alias, and give what they give with MosaicML's.

Each runs under both: the same samples in the same order, stopped in mid-epoch and resumed, also from the other's state.
They read what MosaicML's writer wrote; what is converted here is read there, and the other way round.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.peer_program import SOURCE, minimal_env, run_alone, run_beside

pytestmark = [pytest.mark.process, pytest.mark.torch]

HERE = Path(__file__).parent
STUBS = HERE.parents[2] / "tests/golden/peer_stubs"
RUNNER = HERE / "run_programs.py"
TRAINERS = {"train_text": "text", "train_pictures": "pictures", "train_mixture": "."}
"""Each training program, and the folder of its data."""


class Bench:
    """Runs programs under both, in a folder that holds data, logs and states."""

    def __init__(self, folder, peer):
        self.folder, self._peer = folder, peer
        self._runs = 0

    def run(self, side, tasks, seconds=500.0):
        """Run the programs with MosaicML's package (`there`) or with the alias (`here`); return what they printed."""
        self._runs += 1
        todo = self.folder / f"tasks-{self._runs}.json"
        todo.write_text(json.dumps([[str(HERE / "programs" / f"{name}.py"), *map(str, rest)] for name, *rest in tasks]))
        there, paths = self._peer
        if side == "there":
            return run_alone([there, RUNNER, todo], self._env(paths), seconds)
        return run_beside(
            [sys.executable, "-m", "smalti.compat.streaming", RUNNER, todo], self._env([STUBS, SOURCE]), seconds
        )

    def training(self, side, name, log, **flags):
        """Return the task of a training program, with a cache of its own."""
        options = [word for flag, path in flags.items() for word in (f"--{flag}", self.folder / path)]
        data, cache = self.folder / "data" / TRAINERS[name], self.folder / f"{side}-{name}-{log}"
        return [name, "--data", data, "--local", cache, "--log", self.folder / f"{side}-{name}-{log}.log", *options]

    def read_back(self, side, name):
        """Return the task that reads a converted set, and logs all of its samples."""
        return [
            "read_back",
            self.folder / name,
            self.folder / f"{side}-read-{name}",
            self.folder / f"{side}-read-{name}.log",
        ]

    def log(self, name):
        return [json.loads(line) for line in (self.folder / f"{name}.log").read_text().splitlines()]

    def _env(self, paths):
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        return {**minimal_env(paths), **java, "PYSPARK_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def bench(peer, tmp_path_factory):
    """The programs' logs: whole runs, runs that were stopped, and the rest after each side's checkpoint."""
    bench = Bench(tmp_path_factory.mktemp("programs"), peer)
    bench.run("there", [["prepare_data", bench.folder / "data"], *first_of("there", bench)])
    bench.run("here", [*first_of("here", bench), *rest_of("here", bench)])
    return bench


def first_of(side, bench):
    """Return the tasks that convert, train without a stop, and train until a checkpoint."""
    tasks = [["convert_pool", bench.folder / f"{side}-pool"]]
    for name in TRAINERS:
        tasks.append(bench.training(side, name, "whole"))
        tasks.append(bench.training(side, name, "begun", save=f"{side}-{name}.state"))
    return tasks


def rest_of(side, bench):
    """Return the tasks that resume here or there from all states, and read all converted sets."""
    tasks = [bench.read_back(side, f"{pool}-pool") for pool in ("here", "there")]
    for other in ("here", "there"):
        tasks += [bench.training(side, name, f"from-{other}", load=f"{other}-{name}.state") for name in TRAINERS]
    return tasks


@pytest.mark.parametrize("name", TRAINERS)
def test_a_training_program_gives_the_same_batches_in_the_same_order(bench, name):
    whole = bench.log(f"there-{name}-whole")
    assert len(whole) >= 12
    assert bench.log(f"here-{name}-whole") == whole


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("other", ["here", "there"])
def test_a_program_stopped_in_mid_epoch_continues_with_the_next_batch_from_either_state(bench, name, other):
    whole, begun = bench.log(f"there-{name}-whole"), bench.log(f"{other}-{name}-begun")
    assert 0 < len(begun) < len(whole)
    assert begun + bench.log(f"here-{name}-from-{other}") == whole


def test_a_pool_of_writers_makes_the_same_samples_and_shards(bench):
    there = bench.log("here-read-there-pool")
    assert len(there) == 71
    assert bench.log("here-read-here-pool") == there


@pytest.mark.nightly
def test_mosaicml_resumes_from_the_states_and_reads_the_shards_that_were_written_here(bench):
    bench.run("there", rest_of("there", bench))
    for name in TRAINERS:
        assert bench.log(f"there-{name}-from-here") == bench.log(f"here-{name}-from-there")
    assert bench.log("there-read-here-pool") == bench.log("there-read-there-pool") == bench.log("here-read-here-pool")


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_started_anew_find_the_alias(bench, method):
    task = bench.training("here", "train_text", method)
    bench.run("here", [[*task, "--start-method", method]])
    assert bench.log(f"here-train_text-{method}") == bench.log("there-train_text-whole")


@pytest.mark.nightly
@pytest.mark.spark
def test_a_spark_conversion_gives_the_same_samples_in_the_same_order(bench):
    sets = [f"{side}-spark{kind}" for side in ("here", "there") for kind in ("", "-plain")]
    for side in ("here", "there"):
        bench.run(side, [["convert_spark", bench.folder / f"{side}-spark"]], seconds=240)
    for side in ("here", "there"):
        bench.run(side, [bench.read_back(side, name) for name in sets])
    for kind, rows in (("", 121), ("-plain", 41)):
        expected = bench.log(f"there-read-there-spark{kind}")
        assert len(expected) == rows
        for side, name in (("here", "here"), ("here", "there"), ("there", "here")):
            assert bench.log(f"{side}-read-{name}-spark{kind}") == expected
