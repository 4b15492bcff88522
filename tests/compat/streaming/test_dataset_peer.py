"""StreamingDataset does what MosaicML's does: samples, order, attributes, states, arrangements, refusals."""

import json
import random
from pathlib import Path

import pytest

from tests.golden.conftest import peer  # noqa: F401  a fixture
from tests.peer_program import SOURCE, fork_alone, minimal_env, run_beside
from tests.shard_sets import write_set

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "dataset_program.py"
REPOSITORY = Path(__file__).parents[3]
SIZES = {"a": 97, "b": 40, "c": 13}
STATE = {"epoch": 2, "sample_in_epoch": 40, "num_canonical_nodes": 2, "shuffle_seed": 5, "initial_physical_nodes": 1}
OLD_STATE = {"epoch": 0, "sample_in_epoch": 97, "num_canonical_nodes": 2, "shuffle_seed": 5}
"""At the end of an epoch, and of a release that did not save the nodes."""


def streams(*weights):
    return [{"at": name, **weight} for name, weight in zip(SIZES, weights, strict=False)]


def run(**options):
    start = {"kind": "run", "state": None, "loader": "torch", "workers": 0, "persistent": False, "epochs": [None, None]}
    start |= {"load_before": None, "loaded": None}
    chosen = {name: options.pop(name) for name in (*start, "streams") if name in options}
    return start | chosen | {"options": {"batch_size": 4} | options}


def failing(**options):
    chosen = {name: options.pop(name) for name in ("streams",) if isinstance(options.get(name), list)}
    return {"kind": "failing", "options": options} | chosen


RUNS = {
    "stored order": run(),
    "two workers": run(shuffle=True, workers=2, loader="streaming"),
    "workers that persist, an epoch broken off": run(
        batch_size=3, shuffle=True, shuffle_algo="py1s", workers=2, persistent=True, epochs=[None, 4, None]
    ),
    "continued in mid-epoch": run(
        batch_size=5, shuffle=True, num_canonical_nodes=4, state=STATE, workers=2, loader="streaming", epochs=[None, 2]
    ),
    "continued at an epoch's end": run(batch_size=5, shuffle=True, state=OLD_STATE),
    "a state from before the first epoch": run(shuffle=True, state=OLD_STATE | {"epoch": -1}, epochs=[3, 2]),
    "a state loaded between epochs, of workers that persist": run(
        shuffle=True, workers=2, persistent=True, epochs=[2, None, None], load_before=1, loaded=STATE | {"epoch": 4}
    ),
    "a state of an earlier epoch": run(
        shuffle=True, epochs=[None, None, None], load_before=2, loaded=STATE | {"epoch": 1}
    ),
    "a state of the same epoch": run(shuffle=True, epochs=[None, 2, None], load_before=2, loaded=STATE | {"epoch": 2}),
    "proportions": run(
        shuffle=True,
        epoch_size=60,
        streams=streams({"proportion": 0.5}, {"proportion": 0.3}, {"proportion": 0.2}),
        loader="streaming",
    ),
    "parts of streams, fixed": run(
        shuffle=True,
        sampling_method="fixed",
        sampling_granularity=3,
        streams=streams({"repeat": 0.5}, {"choose": 33}, {}),
    ),
    "stratified": run(
        batch_size=12, shuffle=True, batching_method="stratified", streams=streams({}, {}, {}), epochs=[3, None]
    ),
    "per stream": run(
        batch_size=6, shuffle=True, batching_method="per_stream", streams=streams({}, {}, {"repeat": 2.0}), workers=2
    ),
    "device per stream": run(batching_method="device_per_stream", streams=streams({}, {}, {}), epochs=[3, None]),
    "no batch size": run(batch_size=None, shuffle=True),
    "a small block": run(batch_size=8, predownload=4, shuffle=True, shuffle_block_size=5),
    "too many canonical nodes": run(batch_size=8, num_canonical_nodes=128),
    "a longer epoch": run(batch_size=8, epoch_size="1k"),
}
REFUSED = [
    failing(**options)
    for options in (
        {"sampling_method": "x"},
        {"sampling_granularity": 0},
        {"batching_method": "x"},
        {"shuffle_seed": -1},
        {"epoch_size": -5},
        {"epoch_size": "5x"},
        {"cache_limit": 100},
        {"cache_limit": "2kb"},
        {"split": "none"},
        {"unknown": 1},
        {"replication": 2},
        {"replication": 0},
        {"stream_name": "nope"},
        {"stream_config": {"bad": 0.5}},
        {"streams": streams({"proportion": 0.5}, {"repeat": 1.0})},
        {"streams": streams({"proportion": 0.5}, {})},
        {"streams": [{"at": "a"}, {"at": "a"}]},
        {"streams": [{"at": "nowhere"}]},
        {"streams": streams({"repeat": 0.5}, {}), "epoch_size": 50},
        {"streams": streams({}), "remote": "anywhere"},
    )
]
ACCEPTED = [
    failing(**options)
    for options in (
        {"cache_limit": "1gb"},
        {"predownload": 1, "batch_size": 4},
        {"remote": "/nowhere/a"},
        {"stream_config": {"proportion": 0.5}},
        {"epoch_size": 0},
    )
]


def world_case(rng):
    """Return an arrangement of an epoch for some world, which may not fit it."""
    nodes, ranks, workers = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([1, 2, 3])
    return {
        "kind": "work",
        "options": {
            "batch_size": rng.choice([1, 2, 3, 4]),
            "shuffle": rng.random() < 0.7,
            "shuffle_algo": rng.choice(["py1e", "py1br", "py1s", "py2s", "naive"]),
            "batching_method": rng.choice(["random", "random", "stratified", "per_stream", "device_per_stream"]),
            "partition_algo": rng.choice(["orig", "relaxed"]),
        },
        "streams": streams({"repeat": 1.5}, {}, {"choose": 30}),
        "set": {
            "num_canonical_nodes": rng.choice([1, 2, 4, 6]),
            "shuffle_block_size": rng.choice([40, 1 << 18]),
            "initial_physical_nodes": rng.choice([None, 1, 2]),
        },
        "world": [nodes, ranks, workers, rng.randrange(nodes * ranks * workers)],
        "replication": rng.choice([None, 1, 2]),
        "epoch": rng.randint(0, 2),
        "sample_in_epoch": rng.choice([0, 0, 12, 24, 50]),
    }


OFTEN = ("continued in mid-epoch", "continued at an epoch's end", "proportions", "no batch size", "a small block")
"""Runs of every test run; the others are for the nightly one."""
WORLDS = [world_case(random.Random(seed)) for seed in range(40)]
FEW_WORLDS = WORLDS[:8]


def answers_of(peer, folder, cases):  # noqa: F811 - the fixture's value
    """Return by case, as JSON, the answers of MosaicML and of Smalti."""
    python, paths = peer
    for name, count in SIZES.items():
        write_set(folder / name, count)
    (folder / "cases.json").write_text(json.dumps(cases))
    found = []
    for package, places in (("streaming", paths), ("smalti.compat.streaming", [REPOSITORY, SOURCE])):
        out = folder / f"{package}.json"
        command = [PROGRAM, package, folder, folder / "cases.json", out]
        if package == "streaming":
            fork_alone(python, places, command)
        else:
            run_beside([python, *command], minimal_env(places))
        found.append(json.loads(out.read_text()))
    return {json.dumps(case): pair for case, pair in zip(cases, zip(*found, strict=True), strict=True)}


@pytest.fixture(scope="module")
def answers(peer, tmp_path_factory):  # noqa: F811 - the fixture
    cases = [*(RUNS[name] for name in OFTEN), *REFUSED, *ACCEPTED, *FEW_WORLDS]
    return answers_of(peer, tmp_path_factory.mktemp("sets"), cases)


@pytest.mark.parametrize("name", OFTEN)
def test_a_run_has_the_samples_states_and_attributes_of_mosaicml(answers, name):
    theirs, ours = answers[json.dumps(RUNS[name])]
    assert ours == theirs


@pytest.mark.nightly
def test_every_run_and_world_is_as_mosaicml_has_it(peer, tmp_path):  # noqa: F811 - the fixture
    answers = answers_of(peer, tmp_path, [*RUNS.values(), *WORLDS])
    for name, case in RUNS.items():
        theirs, ours = answers[json.dumps(case)]
        assert ours == theirs, name
    assert num_alike(answers, WORLDS) >= 20, "most of the worlds are possible ones"


def test_an_epoch_is_arranged_for_any_world_as_mosaicml_arranges_it(answers):
    assert num_alike(answers, FEW_WORLDS) >= 4, "some of the worlds are possible ones"


def num_alike(answers, worlds):
    """Return for how many worlds there is an arrangement; each must be MosaicML's."""
    for case in worlds:
        (theirs, _, their_log), (ours, _, log) = answers[json.dumps(case)]
        assert ours == theirs, case
        assert log == their_log or isinstance(theirs[0], str), "errors may come before the warnings"
    return sum(isinstance(answers[json.dumps(case)][0][0][0], list) for case in worlds)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: json.dumps(case)[30:])
def test_what_mosaicml_refuses_is_refused_with_its_class(answers, case):
    (theirs, *_), (ours, *_) = answers[json.dumps(case)]
    assert theirs != "made"
    assert theirs[0] in ours


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: json.dumps(case)[30:])
def test_what_mosaicml_accepts_is_accepted(answers, case):
    theirs, ours = answers[json.dumps(case)]
    assert ours == theirs
    assert theirs[0] == "made"
