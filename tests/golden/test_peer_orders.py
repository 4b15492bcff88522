"""Orders of random configurations equal those of MosaicML's own functions, run in a process of their own."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from smalti.compat.streaming.base.world import World
from smalti.compat.streaming.order.partition import PARTITIONS, WorldShape
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicRun
from smalti.compat.streaming.order.sampling import get_sampling, weigh_streams
from smalti.compat.streaming.order.shuffles import SHUFFLES, shuffled_ids
from smalti.errors import CursorError
from smalti.order.mixture.planning import BATCHINGS, SAMPLINGS, StreamWeight
from tests.compat.streaming.mosaic_worlds import partition_ids
from tests.peer_program import fork_alone
from tests.seeds import seed_of, sized

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.search]

SCRIPT = Path(__file__).parent / "peer_orders.py"


def peer_answers(peer, folder, cases):
    python, paths = peer
    (folder / "cases.json").write_text(json.dumps(cases))
    fork_alone(python, paths, [SCRIPT, folder / "cases.json", folder / "answers.json"])
    return json.loads((folder / "answers.json").read_text())


def compare(peer, folder, kind, cases, compute, min_answers):
    """Compare the answers; expect a typed error where the peer fails, or delivers nothing from there on."""
    answers = peer_answers(peer, folder, [[kind, case] for case in cases])
    assert sum(answer is not None for answer in answers) >= min_answers
    for case, answer in zip(cases, answers, strict=True):
        compare_one(case, answer, compute)


def compare_one(case, answer, compute):
    try:
        found = compute(case).tolist()
    except CursorError:
        assert answer is None or not (np.array(answer) >= 0).any(), case
    except ValueError:
        assert answer is None, case
    else:
        assert answer is None or found == answer, case


def sizes_of(rng, most_shards=20, most=40):
    sizes = [rng.randint(0 if rng.random() < 0.1 else 1, most) for _ in range(rng.randint(1, most_shards))]
    return sizes if rng.random() < 0.7 else [sizes[0] or 1] * len(sizes)


def test_shuffles_of_random_shards_equal_the_peers(peer, tmp_path):
    rng = random.Random(seed_of(1))
    cases = [
        {
            "algo": rng.choice(SHUFFLES),
            "shard_sizes": sizes_of(rng),
            "num_canonical_nodes": rng.randint(1, 12),
            "seed": rng.randint(0, 10**6),
            "epoch": rng.randint(0, 5),
            "block_size": rng.choice([1, 2, 3, 10, 64, 1000, 1 << 18]),
        }
        for _ in range(sized(400))
    ]

    def compute(case):
        return shuffled_ids(
            case["algo"],
            case["shard_sizes"],
            canonical_nodes=case["num_canonical_nodes"],
            seed=case["seed"],
            epoch=case["epoch"],
            block_size=case["block_size"],
        )

    compare(peer, tmp_path, "shuffle", cases, compute, min_answers=sized(300))


def test_partitions_of_random_worlds_equal_the_peers(peer, tmp_path):
    rng = random.Random(seed_of(2))
    cases = []
    for _ in range(sized(1500)):
        num_samples = rng.choice([rng.randint(1, 12), rng.randint(1, 60), rng.randint(1, 500)])
        cases.append(
            {
                "algo": rng.choice(PARTITIONS),
                "num_samples": num_samples,
                "num_canonical_nodes": rng.choice([1, 2, 3, 4, 6, 8]),
                "num_physical_nodes": rng.choice([1, 2, 3, 4, 6, 8]),
                "ranks_per_node": rng.randint(1, 5),
                "workers_per_rank": rng.randint(1, 4),
                "batch_size": rng.randint(1, 6),
                "drop_first": rng.choice([0, rng.randint(0, num_samples + 20)]),
                "initial_physical_nodes": rng.choice([None, 1, 2, 4, 8]),
            }
        )

    def compute(case):
        world = WorldShape(
            case["num_physical_nodes"], case["ranks_per_node"], case["workers_per_rank"], case["batch_size"]
        )
        return partition_ids(
            case["algo"],
            case["num_samples"],
            world,
            canonical_nodes=case["num_canonical_nodes"],
            start=case["drop_first"],
            initial_hosts=case["initial_physical_nodes"],
        )

    compare(peer, tmp_path, "partition", cases, compute, min_answers=sized(700))


def test_samplings_equal_the_peers(peer, tmp_path):
    rng = random.Random(seed_of(3))
    cases = []
    for _ in range(sized(300)):
        sizes = [*sizes_of(rng), 3]
        cases.append(
            {
                "samples_per_shard": sizes,
                "choose": rng.randint(0, 3 * sum(sizes)),
                "granularity": rng.choice([1, 3, 10, 1000]),
                "seed": rng.randint(0, 1000),
                "epoch": rng.randint(0, 3),
                "use_epoch": rng.random() < 0.5,
            }
        )

    def compute(case):
        return get_sampling(**case)

    compare(peer, tmp_path, "sampling", cases, compute, min_answers=sized(300))


def weights_of(rng, streams):
    kind = rng.choice(["proportion", "absolute", "none"])
    if kind == "proportion":
        return [{"proportion": rng.choice([1, 2.5, 0.3])} for _ in range(streams)], rng.choice([None, 50, 333])
    if kind == "none":
        return [{} for _ in range(streams)], rng.choice([None, 77])
    choices = [{"repeat": 1.7}, {"repeat": 0.4}, {"choose": 45}, {}, {"repeat": 2}]
    return [dict(rng.choice(choices)) for _ in range(streams)], None


def epoch_case(rng, batching):
    sizes = [sizes_of(rng, 8, 30) for _ in range(rng.randint(1, 4))]
    for stream in sizes:
        stream[0] = stream[0] or 1
    weights, epoch_size = weights_of(rng, len(sizes))
    nodes = rng.choice([1, 2, 3, 4])
    return {
        "shard_sizes": sizes,
        "weights": weights,
        "epoch_size": epoch_size,
        "batching_method": batching,
        "batch_size": rng.randint(1, 5),
        "num_nodes": rng.choice([1, 1, 2, 3]),
        "ranks_per_node": rng.randint(1, 3),
        "workers_per_rank": rng.randint(1, 3),
        "replication": rng.choice([None, None, None, 2]),
        "epoch": rng.randint(0, 3),
        "sample_in_epoch": rng.choice([0, rng.randint(0, 60)]),
        "num_canonical_nodes": nodes,
        "initial_physical_nodes": rng.choice([None, nodes]),
        "partition_algo": rng.choice(PARTITIONS),
        "sampling_granularity": rng.choice([1, 4]),
        "sampling_method": rng.choice(SAMPLINGS),
        "shuffle": rng.random() < 0.8,
        "shuffle_algo": rng.choice(SHUFFLES),
        "shuffle_block_size": rng.choice([20, 64, 1 << 18]),
        "shuffle_seed": rng.randint(0, 1000),
    }


def streams_of(case):
    weights = [StreamWeight(**weight) for weight in case["weights"]]
    return weigh_streams(case["shard_sizes"], weights, epoch_size=case["epoch_size"], seed=case["shuffle_seed"])


def plan_of(case):
    world = World(case["num_nodes"], case["ranks_per_node"], 1, 0).replicate(case["replication"] or 1)
    run = MosaicRun(
        streams_of(case),
        WorldShape(world.num_nodes, world.ranks_per_node, case["workers_per_rank"], case["batch_size"]),
        MosaicOptions(
            canonical_nodes=case["num_canonical_nodes"],
            seed=case["shuffle_seed"],
            shuffle=case["shuffle"],
            shuffle_algo=case["shuffle_algo"],
            block_size=case["shuffle_block_size"],
            partition_algo=case["partition_algo"],
            initial_hosts=case["initial_physical_nodes"],
            sampling_method=case["sampling_method"],
            sampling_granularity=case["sampling_granularity"],
            batching_method=case["batching_method"],
        ),
    )
    return run.plan(case["epoch"], case["sample_in_epoch"])


@pytest.mark.parametrize("batching", BATCHINGS)
def test_whole_epochs_of_random_mixtures_and_worlds_equal_the_peers(peer, tmp_path, batching):
    rng = random.Random(seed_of(BATCHINGS.index(batching)))
    cases = [epoch_case(rng, batching) for _ in range(sized(300))]
    compare(peer, tmp_path, "epoch", cases, lambda case: plan_of(case).all_ids(), min_answers=sized(60))


def test_weights_of_streams_equal_the_peers(peer, tmp_path):
    rng = random.Random(seed_of(5))
    cases = [epoch_case(rng, "random") for _ in range(sized(200))]
    answers = peer_answers(peer, tmp_path, [["weights", case] for case in cases])
    assert sum(answer is not None for answer in answers) > sized(150)
    for case, answer in zip(cases, answers, strict=True):
        if answer is not None:
            assert [[stream.choose, stream.proportion] for stream in streams_of(case)] == answer
