"""A run goes from MosaicML to us and back in the middle of an epoch, and reads what MosaicML alone would have read."""

import json
import random
from pathlib import Path

import pytest

from smalti.dataset import StreamingDataset
from smalti.errors import CursorError
from smalti.order.mosaic import SHUFFLES, WorldShape
from smalti.world import World
from tests.peer_program import minimal_env, run_alone
from tests.seeds import seed_of
from tests.shard_sets import write_set

pytestmark = [pytest.mark.process, pytest.mark.slow]

HERE = Path(__file__).parent
COUNT = 97


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("set") / "root", COUNT))


def peer_answers(peer, script, *arguments):
    python, paths = peer
    run_alone([python, HERE / script, *arguments], minimal_env(paths))
    return json.loads(Path(arguments[-1]).read_text())


def peer_lives(peer, root, folder, cases):
    (folder / "cases.json").write_text(json.dumps(cases))
    return peer_answers(peer, "peer_resume.py", root, folder / "cases.json", folder / "answers.json")


def our_batches(dataset):
    return [batch["id"].tolist() for batch in dataset.batches()]


def options_of(rng, algorithm):
    return {
        "batch_size": rng.choice([1, 3, 4, 10]),
        "shuffle": algorithm is not None,
        "shuffle_algo": algorithm or "py1e",
        "shuffle_seed": rng.choice([9176, 5]),
        "num_canonical_nodes": rng.choice([None, 1, 2, 7]),
        "shuffle_block_size": rng.choice([None, 40]),
        "partition_algo": rng.choice(["orig", "relaxed"]),
    }


CASES = [(algorithm, number) for algorithm in (*SHUFFLES, None) for number in range(3)]


@pytest.fixture(scope="module")
def lives(peer, root, tmp_path_factory):
    """Of every case: its options, what the peer reads first, and what it reads then."""
    rng = random.Random(4)
    chosen = [(options_of(rng, algorithm), rng.randint(1, 8), rng.choice([0, 2])) for algorithm, _ in CASES]
    cases = []
    for options, take, workers in chosen:
        cases.append({"options": options, "state": None, "take": take, "workers": workers})
        cases.append({"options": options, "state": "last", "take": None, "workers": workers})
    answers = peer_lives(peer, root, tmp_path_factory.mktemp("lives"), cases)
    return {
        case: (options, answers[2 * place], answers[2 * place + 1])
        for place, (case, (options, _, _)) in enumerate(zip(CASES, chosen, strict=True))
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_of_mosaicml_continues_here_sample_for_sample(root, lives, case):
    options, first, then = lives[case]
    dataset = StreamingDataset(local=root, **options)
    assert our_batches(dataset)[: len(first["batches"])] == first["batches"], "the epoch begins alike"
    resumed = StreamingDataset(local=root, **options)
    resumed.load_state_dict(first["state"])
    assert our_batches(resumed) == then["batches"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_saved_state_equals_mosaicmls(root, lives, case):
    options, first, _ = lives[case]
    dataset = StreamingDataset(local=root, **options)
    this_pass = dataset.begin_pass()
    ours = dataset.cursor_after(this_pass, len(first["batches"])).to_state()
    assert first["state"].items() <= ours.items()
    assert dataset.state_dict(sum(map(len, first["batches"]))) == ours


def test_a_run_of_smalti_continues_in_mosaicml_sample_for_sample(root, lives, peer, tmp_path):
    cases, expected = [], []
    for options, _, _ in lives.values():
        dataset = StreamingDataset(local=root, **options)
        dataset.set_epoch(1)
        this_pass = dataset.begin_pass()
        state = dataset.cursor_after(this_pass, 3).to_state()
        cases.append({"options": options, "state": state, "take": None, "workers": 0})
        dataset.set_epoch(1)
        expected.append(our_batches(dataset)[3:])
    assert [answer["batches"] for answer in peer_lives(peer, root, tmp_path, cases)] == expected


def read_by_all(root, shape, replication, options, state):
    """Ids by rank and step, and the state that every rank must agree on after its last step but one."""
    found, states = [], []
    for rank in range(shape.num_ranks):
        world = World.of_blocks(rank, shape.num_ranks, shape.hosts)
        dataset = StreamingDataset(
            local=root, world=world, replication=replication, batch_size=shape.batch_size, **options
        )
        dataset.load_state_dict(state)
        this_pass = dataset.begin_pass()
        found.append([ids.tolist() for _, ids in dataset.planned(this_pass)])
        states.append(dataset.cursor_after(this_pass, max(0, len(found[0]) - 1)))
    assert len({len(steps) for steps in found}) == 1, "all ranks take equally many steps"
    assert len(set(states)) == 1
    return found


def world_case(rng, sizes):
    shape = WorldShape(rng.choice([1, 2, 3, 4]), rng.randint(1, 4), 1, rng.randint(1, 4))
    return {
        "shard_sizes": [sizes],
        "weights": [{"repeat": 1}],
        "epoch_size": None,
        "batching_method": "random",
        "batch_size": shape.batch_size,
        "num_nodes": shape.hosts,
        "ranks_per_node": shape.ranks_on_host,
        "workers_per_rank": 1,
        "replication": rng.choice([1, 1, 2, shape.ranks_on_host]),
        "epoch": rng.randint(0, 2),
        "sample_in_epoch": rng.choice([0, rng.randint(0, COUNT), rng.randint(80, COUNT + 4)]),
        "num_canonical_nodes": rng.choice([2, 4, 12]),
        "initial_physical_nodes": rng.choice([1, 2, 4]),
        "partition_algo": rng.choice(["orig", "relaxed"]),
        "sampling_granularity": 1,
        "sampling_method": "balanced",
        "shuffle": rng.random() < 0.8,
        "shuffle_algo": rng.choice(SHUFFLES),
        "shuffle_block_size": rng.choice([40, 1 << 18]),
        "shuffle_seed": rng.randint(0, 1000),
    }


@pytest.mark.search
def test_a_run_of_mosaicml_continues_in_any_world_that_it_accepts(root, peer, tmp_path):
    """Hosts, ranks, replicas and batch sizes; where the peer gives a rank nothing, we repeat one sample."""
    rng = random.Random(seed_of(8))
    sizes = StreamingDataset(local=root).stream.shard_sizes.tolist()
    cases = [world_case(rng, sizes) for _ in range(300)]
    (tmp_path / "cases.json").write_text(json.dumps([["epoch", case] for case in cases]))
    answers = peer_answers(peer, "peer_orders.py", tmp_path / "cases.json", tmp_path / "answers.json")
    compared = sum(compare_world(root, case, answer) for case, answer in zip(cases, answers, strict=True))
    assert compared > 150


def compare_world(root, case, answer):
    if answer is None:
        return False
    options = {name: case[name] for name in ("shuffle", "shuffle_algo", "shuffle_block_size", "partition_algo")}
    state = {name: case[name] for name in ("epoch", "sample_in_epoch", "num_canonical_nodes", "initial_physical_nodes")}
    shape = WorldShape(case["num_nodes"], case["ranks_per_node"], 1, case["batch_size"])
    state["shuffle_seed"] = case["shuffle_seed"]
    theirs = [batches[0] for host in answer for batches in host]
    if state["sample_in_epoch"] >= -(-COUNT // case["num_canonical_nodes"]) * case["num_canonical_nodes"]:
        return False  # all samples were read: we go on with the next epoch, the peer repeats some or reads nothing
    ours = read_by_all(root, shape, case["replication"], options, state)
    for rank, steps in enumerate(ours):
        expected = [[i for i in batch if i >= 0] for batch in theirs[rank // case["replication"]]]
        for step, ids in enumerate(steps):
            assert ids == expected[step] or (not expected[step] and len(ids) == 1), case
        assert not any(expected[len(steps) :]), case
    return True


def test_a_state_of_mosaicml_is_not_continued_in_smaltis_own_order(root, lives):
    _, first, _ = next(iter(lives.values()))
    with pytest.raises(CursorError, match="`shuffle_algo`"):
        StreamingDataset(local=root, batch_size=4, shuffle=True).load_state_dict(first["state"])
