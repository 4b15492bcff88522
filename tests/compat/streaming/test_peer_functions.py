"""Functions equal MosaicML's, which are called with random arguments in one process of its own: orders, indices."""

import json
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from smalti.compat.streaming.base import partition, shuffle
from smalti.compat.streaming.base.partition import get_partitions, get_partitions_orig, get_partitions_relaxed
from smalti.compat.streaming.base.sampling import get_sampling
from smalti.compat.streaming.base.shuffle import divide_spans, get_shuffle, get_shuffle_py1e
from smalti.compat.streaming.base.util import merge_index
from tests.compat.streaming.peer_functions import answer
from tests.golden.conftest import peer  # noqa: F401  a fixture
from tests.peer_program import fork_alone
from tests.seeds import seed_of, sized

SCRIPT = Path(__file__).parent / "peer_functions.py"
SHUFFLES = ("naive", "py1br", "py1e", "py1s", "py2s")


def sizes_of(rng):
    sizes = [rng.randint(0 if rng.random() < 0.1 else 1, 40) for _ in range(rng.randint(1, 20))]
    return sizes if rng.random() < 0.7 else [sizes[0] or 1] * len(sizes)


def shuffle_case(rng):
    args = [sizes_of(rng), rng.randint(1, 12), rng.randint(0, 10**6), rng.randint(0, 5)]
    args += rng.choice([[], [2], [3], [10], [64], [1000]])
    algo = rng.choice(SHUFFLES)
    if rng.random() < 0.5:
        return ["shuffle", "get_shuffle", [algo, *args]]
    return [f"shuffle.{algo}", f"get_shuffle_{algo}", args]


def partition_case(rng):
    samples = rng.choice([rng.randint(1, 12), rng.randint(1, 60), rng.randint(1, 500)])
    args = [samples, rng.choice([1, 2, 3, 4, 6, 8]), rng.choice([1, 2, 3, 4, 6, 8])]
    args += [rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 6)]
    algo, is_by_name = rng.choice(["orig", "relaxed"]), rng.random() < 0.5
    last = samples + 5 if is_by_name else samples  # MosaicML's own functions give an empty array for later ones
    args += rng.choice([[], [rng.randint(0, last)], [rng.randint(0, samples), rng.choice([None, 1, 2, 4])]])
    if is_by_name:
        return ["partition", "get_partitions", [algo, *args]]
    return [f"partition.{algo}", f"get_partitions_{algo}", args]


def sampling_case(rng):
    sizes = [*sizes_of(rng), 3]
    args = [rng.randint(-1, 3 * sum(sizes)), rng.choice([0, 1, 3, 10, 1000]), rng.randint(0, 1000)]
    return ["sampling", "get_sampling", [sizes, *args, rng.randint(-1, 3), rng.random() < 0.5]]


def spans_case(rng):
    ends = np.cumsum(sizes_of(rng)).tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    rng.shuffle(spans)
    return ["shuffle.py1s", "divide_spans", [spans, ends[-1], rng.randint(1, 9)]]


@pytest.fixture(scope="module")
def ran(peer, tmp_path_factory):  # noqa: F811
    """Run MosaicML's program once; return its folder and the cases."""
    folder = tmp_path_factory.mktemp("peer")
    rng = random.Random(seed_of(1))
    makers = (shuffle_case, partition_case, sampling_case, spans_case)
    cases = [maker(rng) for maker in makers for _ in range(sized(400))]
    (folder / "cases.json").write_text(json.dumps(cases))
    python, paths = peer
    fork_alone(python, paths, [SCRIPT, folder])
    return folder, cases


@pytest.mark.process
@pytest.mark.search
def test_orders_of_random_arguments_equal_mosaicmls(ran):
    folder, cases = ran
    answers = json.loads((folder / "answers.json").read_text())
    for case, (kind, value, warned) in zip(cases, answers, strict=True):
        found = answer("smalti.compat.streaming.base", *case)
        assert found[0] == kind, (case, value, found)
        if kind == "error":
            assert value[0] in found[1], (case, value, found)
        else:
            assert found[1] == value, case
            assert found[2] == warned or is_near_the_block_size(case), case
    assert sum(kind == "value" for kind, _, _ in answers) > sized(900)
    assert sum(bool(warned) for _, _, warned in answers) > sized(20)


def is_near_the_block_size(case):
    """Return whether MosaicML's warning depends on blocks that it draws: `py1e` with shards of about that size."""
    if "py1e" not in (case[0].rpartition(".")[2], case[2][0]):
        return False
    sizes, *rest = case[2] if case[1] != "get_shuffle" else case[2][1:]
    return len(rest) == 4 and max(sizes) > 0.7 * rest[3]


def index_of(folder):
    return json.loads((folder / "index.json").read_text())


@pytest.mark.process
def test_merged_indices_equal_mosaicmls(ran, tmp_path):
    theirs, ours = ran[0], tmp_path
    for name in ("set", "set2"):
        shutil.copytree(theirs / "untouched", ours / name)
    merge_index(str(ours / "set"))
    merged = index_of(ours / "set")
    assert merged == index_of(theirs / "set")
    parts = list(dict.fromkeys(shard["raw_data"]["basename"].partition("/")[0] for shard in merged["shards"]))
    assert parts == ["0", "1", "10", "2", "4", "5", "6", "7", "8", "9", "csv-part", "json-part"]

    merge_index([str(ours / f"set/{part}/index.json") for part in (7, 10, 2, 7)], str(ours / "elsewhere"))
    assert index_of(ours / "elsewhere") == index_of(theirs / "elsewhere")

    for part in (1, 2):
        shutil.copytree(ours / f"set2/{part}", ours / f"local/{part}")
    pairs = [(str(ours / f"local/{part}/index.json"), str(ours / f"set2/{part}/index.json")) for part in (5, 2, 1)]
    merge_index(pairs, (str(ours / "local"), str(ours / "set2")))
    for folder in ("local", "set2"):
        assert index_of(ours / folder) == index_of(theirs / folder)


# ------------------------------------------------------------------ what MosaicML documents


GOLDEN = {
    "naive": "0 2 8 6 5 7 11 10 13 9 18 19 20 1 14 17 21 15 12 3 16 4",
    "py1s": "7 6 10 11 9 8 5 12 15 13 14 18 17 16 19 20 21 2 4 0 1 3",
    "py2s": "5 10 6 9 11 8 7 14 12 13 15 19 21 18 20 16 17 3 1 4 0 2",
    "py1br": "7 6 8 5 9 10 11 12 13 14 15 21 18 0 17 16 2 1 20 19 3 4",
    "py1e": "7 6 10 11 9 8 12 5 15 13 14 18 19 20 16 0 17 21 2 4 1 3",
}


@pytest.mark.parametrize("algo", SHUFFLES)
def test_shuffles_equal_orders_that_mosaicml_wrote(algo):
    ids = get_shuffle(algo, np.array([5, 7, 4, 6]), 2, 9176, 0, 8)
    assert ids.dtype == np.int64
    assert ids.tolist() == [int(text) for text in GOLDEN[algo].split()]
    by_name = get_shuffle(algo=algo, shard_sizes=[5, 7, 4, 6], num_canonical_nodes=2, seed=9176, epoch=0, block_size=8)
    assert by_name.tolist() == ids.tolist()


def test_partitions_equal_arrays_that_mosaicml_wrote():
    ids = get_partitions("orig", 22, 2, 1, 2, 2, 3)
    assert ids.tolist() == [
        [
            [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, -1]]],
            [[[11, 12, 13], [17, 18, 19]], [[14, 15, 16], [20, 21, -1]]],
        ]
    ]
    ids = get_partitions("relaxed", 48, 4, 3, 2, 1, 4, drop_first=24, initial_physical_nodes=4)
    rows = ["6 8 10 7 9 11 18 20", "22 19 21 23 30 32 34 31", "33 35 42 44 46 43 45 47"]
    assert ids.reshape(3, 8).tolist() == [[int(text) for text in row.split()] for row in rows]


def test_sampling_equals_counts_that_mosaicml_wrote():
    sizes = np.array([5, 7, 4, 6])
    counts = [get_sampling(sizes, choose, granularity, 9176, 0, True) for choose, granularity in ((10, 1), (30, 3))]
    assert [found.tolist() for found in counts] == [[2, 7, 1, 0], [7, 10, 7, 6]]


@pytest.mark.parametrize(("module", "function", "args"), [(shuffle, get_shuffle, 4), (partition, get_partitions, 6)])
def test_an_unknown_algorithm_is_a_key_error_and_one_of_the_users_is_called(module, function, args, monkeypatch):
    with pytest.raises(KeyError, match=r"must be one of .*'mine'"):
        function("mine", *range(1, args + 1))
    monkeypatch.setitem(module.algos, "mine", lambda *args: args)
    assert function("mine", *range(1, args + 1))[:4] == (1, 2, 3, 4)


def test_resuming_after_the_end_is_a_value_error():
    with pytest.raises(ValueError, match=r"Resuming further into the dataset \(40\) than it has samples \(22\)"):
        get_partitions("orig", 22, 2, 1, 2, 1, 3, drop_first=40)


def test_nodes_that_do_not_divide_are_a_value_error():
    for function in (get_partitions_orig, get_partitions_relaxed):
        with pytest.raises(
            ValueError, match=r"^Either canonical or physical nodes must be evenly divisible by the other"
        ):
            function(100, 3, 2, 1, 1, 1)
    with pytest.raises(
        ValueError, match=r"^A global batch size of 3 is not evenly divisible by the initial total number of devices"
    ):
        get_partitions_relaxed(100, 4, 3, 1, 1, 1, 0, 4)


def test_a_start_between_two_rows_is_rounded_down_and_logged(caplog):
    with caplog.at_level(logging.WARNING):
        found = get_partitions_orig(40, 2, 2, 1, 1, 4, drop_first=7)
    assert found.tolist() == get_partitions_orig(40, 2, 2, 1, 1, 4, drop_first=6).tolist()
    assert "not divisible by `num_physical_nodes`" in caplog.text


def test_too_few_samples_are_warned_of():
    with pytest.warns(UserWarning, match="Trying to partition 3 samples over 8 canonical nodes"):
        get_partitions("orig", 3, 8, 1, 1, 1, 1)
    with pytest.warns(UserWarning, match="Attempting to partition 3 samples per physical node over 8 gpus"):
        get_partitions("orig", 3, 1, 1, 8, 1, 1)


def test_py1e_warns_of_shards_larger_than_its_blocks_and_refuses_empty_nodes():
    with pytest.warns(UserWarning, match="Shuffle block size was smaller than shard size"):
        get_shuffle_py1e(np.array([50, 50]), 1, 0, 0, 20)
    get_shuffle_py1e(np.array([50, 50]), 5, 0, 0, 30)  # cut at nodes, no part has more than 20
    with pytest.raises(ValueError, match="canonical nodes"):
        get_shuffle("py1e", np.array([2, 1]), 8, 0, 0)


def test_spans_are_cut_where_a_part_ends():
    spans = [(10, 14), (0, 6), (20, 22)]
    assert divide_spans(spans, 12, 2) == ([(10, 14), (0, 2), (2, 6), (20, 22)], [(0, 2), (2, 4)])
    assert spans == [(10, 14), (0, 6), (20, 22)]
    with pytest.raises(ValueError, match="`num_samples` must be that of the spans, 12, found 11"):
        divide_spans(spans, 11, 2)
