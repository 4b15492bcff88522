"""Mixtures as MosaicML's own StreamingDataset reads them, and states that go both ways in the middle of an epoch."""

import json
import random

import pytest

from smalti import MDSWriter, Stream
from smalti.dataset import StreamingDataset
from smalti.order.mosaic import SHUFFLES
from smalti.world import World
from tests.golden.test_peer_resume import peer_answers

pytestmark = [pytest.mark.process, pytest.mark.slow]

COUNTS = (60, 37, 24)
WEIGHTS = [
    ("none", [{}, {}, {}], None),
    ("proportion", [{"proportion": 2}, {"proportion": 1}, {"proportion": 1}], None),
    ("proportion of a size", [{"proportion": 0.5}, {"proportion": 0.3}, {"proportion": 0.2}], 150),
    ("repeat", [{"repeat": 0.7}, {"repeat": 2}, {}], None),
    ("choose", [{"choose": 45}, {"choose": 40}, {"choose": 50}], None),
    ("a size", [{}, {}, {}], 100),
]
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Three sets whose ids count on from one to the next, as sample ids do."""
    folder, first = tmp_path_factory.mktemp("streams"), 0
    for number, count in enumerate(COUNTS):
        with MDSWriter(out=str(folder / str(number)), columns={"id": "int"}, size_limit=200) as writer:
            for sample_id in range(first, first + count):
                writer.write({"id": sample_id})
        first += count
    return [str(folder / str(number)) for number in range(len(COUNTS))]


def streams_of(roots, weights):
    return [{"local": root, **weight} for root, weight in zip(roots, weights, strict=True)]


def cases():
    """Every batching with every weight, the rest by chance: orders, samplings, granularities, batches, workers."""
    rng = random.Random(11)
    for row, batching in enumerate(BATCHINGS):
        for column, (name, weights, size) in enumerate(WEIGHTS):
            method = ("balanced", "fixed")[(row + column) % 2]
            options = {
                "batching_method": batching,
                "batch_size": rng.choice([8, 10]) if batching == "stratified" else rng.choice([1, 3, 4, 6]),
                "epoch_size": size,
                "sampling_method": method,
                "sampling_granularity": rng.choice([1, 1, 4, 20]),
                "shuffle": rng.random() < 0.8,
                "shuffle_algo": rng.choice(SHUFFLES),
                "shuffle_seed": rng.choice([9176, 5]),
                "num_canonical_nodes": rng.choice([None, 1, 2]),
                "shuffle_block_size": rng.choice([None, 60]),
                "partition_algo": rng.choice(["orig", "relaxed"]),
            }
            yield f"{batching}, {name}, {method}", weights, options, rng.randint(1, 6), rng.choice([0, 0, 2])


CASES = {name: rest for name, *rest in cases()}


def peer_mixtures(peer, folder, told):
    (folder / "cases.json").write_text(json.dumps(told))
    return peer_answers(peer, "peer_mixtures.py", folder / "cases.json", folder / "answers.json")


def ours(roots, weights, options, **more):
    streams = [Stream(**stream) for stream in streams_of(roots, weights)]
    return StreamingDataset(streams=streams, **options, **more)


def batches_of(dataset):
    return [batch["id"].tolist() for batch in dataset.batches()]


@pytest.fixture(scope="module")
def answers(peer, roots, tmp_path_factory):
    """Of every case: three epochs from the start, the first batches of one, and the rest of it."""
    told = []
    for weights, options, take, workers in CASES.values():
        case = {"streams": streams_of(roots, weights), "options": options, "workers": workers, "state": None}
        told.append({**case, "take": None, "epochs": 3})
        told.append({**case, "take": take, "epochs": 1})
        told.append({**case, "take": None, "epochs": 2, "state": "last"})
    found = peer_mixtures(peer, tmp_path_factory.mktemp("answers"), told)
    return {name: found[3 * place : 3 * place + 3] for place, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_three_epochs_equal_mosaicmls_sample_for_sample(roots, answers, name):
    weights, options, _, _ = CASES[name]
    whole, _, _ = answers[name]
    if "refused" in whole:
        with pytest.raises(ValueError, match=r"."):
            batches_of(ours(roots, weights, options))
        return
    dataset = ours(roots, weights, options)
    assert [batches_of(dataset) for _ in range(3)] == whole["epochs"]


@pytest.mark.parametrize("name", CASES)
def test_a_mixture_begun_by_mosaicml_continues_here_and_into_the_next_epoch(roots, answers, name):
    weights, options, _, _ = CASES[name]
    _, first, then = answers[name]
    if "refused" in first:
        return
    dataset = ours(roots, weights, options)
    assert batches_of(dataset)[: len(first["epochs"][0])] == first["epochs"][0]
    resumed = ours(roots, weights, options)
    resumed.load_state_dict(first["state"])
    # What we save of it is read here again: the state that MosaicML wrote holds no mixture.
    again = ours(roots, weights, options)
    this_pass = resumed.begin_pass()
    again.load_state_dict(json.loads(json.dumps(resumed.cursor_after(this_pass, 0).to_state())))
    assert [batches_of(again) for _ in range(2)] == then["epochs"]


def test_mixtures_begun_by_smalti_continue_in_mosaicml(peer, roots, answers, tmp_path):
    told, expected = [], []
    for name, (weights, options, take, workers) in CASES.items():
        if "refused" in answers[name][0]:
            continue
        dataset = ours(roots, weights, options)
        dataset.set_epoch(1)
        this_pass = dataset.begin_pass()
        state = dataset.cursor_after(this_pass, take).to_state()
        case = {"streams": streams_of(roots, weights), "options": options, "workers": workers, "state": state}
        told.append({**case, "take": None, "epochs": 1})
        dataset.set_epoch(1)
        expected.append(batches_of(dataset)[take:])
    assert [answer["epochs"][0] for answer in peer_mixtures(peer, tmp_path, told)] == expected
    assert len(told) > 15


def test_all_ranks_of_a_world_read_the_samples_of_mosaicmls_ranks(peer, roots, tmp_path):
    rng = random.Random(3)
    told = []
    for weights, options, _, _ in CASES.values():
        hosts, ranks = rng.choice([(1, 2), (2, 1), (2, 2)])
        fixed = options | {"num_canonical_nodes": 2, "batch_size": 5}
        told.append({"streams": streams_of(roots, weights), "options": fixed, "epochs": 2})
        told[-1] |= {"hosts": hosts, "ranks_on_host": ranks, "weights": weights}
    compared = 0
    for case, answer in zip(told, peer_mixtures(peer, tmp_path, told), strict=True):
        if "refused" in answer:
            continue
        num_ranks = case["hosts"] * case["ranks_on_host"]
        worlds = [World.of_blocks(rank, num_ranks, case["hosts"]) for rank in range(num_ranks)]
        datasets = [ours(roots, case["weights"], case["options"], world=world) for world in worlds]
        for epoch in answer["epochs"]:
            read = [batches_of(dataset) for dataset in datasets]
            assert len({len(batches) for batches in read}) == 1, "all ranks take equally many steps"
            for rank, batches in enumerate(read):
                expected = [[sample for sample in batch if sample >= 0] for batch in epoch[rank]]
                for step, ids in enumerate(batches):
                    assert ids == expected[step] or (not expected[step] and len(ids) == 1), case
                assert not any(expected[len(batches) :]), case
        compared += 1
    assert compared > 15
