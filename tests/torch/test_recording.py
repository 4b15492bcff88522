"""A loader's recorder writes what the loader delivered, with every order and tail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.dataset import OrderOptions
from smalti.dataset.order import Pass
from smalti.errors import SmaltiError, WorldMismatch
from smalti.ledger import LedgerWriter, check_ledger
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.loader import PassRecorder, open_ledger
from smalti.world import World
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set") / "set", 45)


def opened(root, **options):
    return StreamingDataset(
        remote=str(root), batch_size=4, shuffle=True, include_ids=True, world=World(), **grouped(**options)
    )


def read(dataset, ledger, *, state=None, stop=None, **options):
    """Read one pass with a ledger; return the state after it, and (position, id) of the delivered samples."""
    loader, delivered = StreamingDataLoader(dataset, ledger=ledger, **options), []
    if state is not None:
        loader.load_state_dict(state)
    for number, batch in enumerate(loader, 1):
        delivered += zip(batch["_position"].tolist(), batch["_sample_id"].tolist(), strict=True)
        if number == stop:
            break
    return loader.state_dict(), delivered


@pytest.mark.parametrize("options", [{}, {"tail": "short"}, {"tail": "drop"}], ids=str)
def test_a_run_that_was_killed_and_resumed_is_proven(root, tmp_path, options):
    state, _ = read(opened(root, **options), tmp_path, stop=5)
    read(opened(root, **options), tmp_path, state=state, stop=3)  # this life saves nothing
    _, rest = read(opened(root, **options), tmp_path, state=state)
    report = check_ledger(tmp_path)
    assert report.ok, report.problems
    assert report.superseded == 12
    assert (report.epochs[0].taken, report.epochs[0].is_finished) == (44 if "drop" in options.values() else 45, True)
    assert report.epochs[0].repeats >= sum(position < 0 for position, _ in rest)


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 2, "worker_kind": "process"}], ids=str)
def test_steps_that_workers_read_ahead_are_not_in_the_ledger(root, tmp_path, workers):
    """A life that ends its epoch resumes after 3 of 12 steps; both lives record only the steps that were taken."""
    state, first = read(opened(root), tmp_path, stop=3, **workers)
    _, rest = read(opened(root), tmp_path, state=state, **workers)
    report = check_ledger(tmp_path)
    assert report.ok, report.problems
    assert (report.superseded, report.epochs[0].taken, report.epochs[0].repeats) == (0, 45, 3)
    assert len(first) == 12
    assert len(rest) == 36
    lines = [json.loads(line) for line in (tmp_path / "life-00002" / "rank-00000.jsonl").read_text().splitlines()]
    recorded = [sample for line in lines if "step" in line for sample in line["ids"]]
    assert recorded == [sample for position, sample in rest if position >= 0]


def test_epochs_of_one_loader_are_passes_of_one_life(root, tmp_path):
    loader = StreamingDataLoader(opened(root), ledger=tmp_path)
    for _ in range(3):
        for _ in loader:
            pass
    report = check_ledger(tmp_path)
    assert report.ok, report.problems
    assert [epoch.taken for epoch in report.epochs] == [45, 45, 45]
    assert [life["life"] for life in report.lives] == [1]


def test_a_running_sum_is_written_with_each_state(root, tmp_path):
    loader = StreamingDataLoader(opened(root), ledger=LedgerWriter(tmp_path, life=1, world=World(), mode="digest"))
    for number, _ in enumerate(loader, 1):
        if number == 5:
            state = loader.state_dict()
        if number == 7:
            break
    loader = StreamingDataLoader(opened(root), ledger=LedgerWriter(tmp_path, life=2, world=World(), mode="digest"))
    loader.load_state_dict(state)
    dataset = loader.streaming_dataset
    assert sum(1 for _ in loader) == 7
    report = check_ledger(tmp_path, lambda cursor: dataset._smalti.reading(Pass(cursor, World())).plan)
    assert report.ok, report.problems
    assert (report.compared, report.epochs[0].taken) == (45, 45)


@pytest.mark.parametrize(("replication", "taken_by_each"), [(1, [12, 11, 11, 11]), (2, [23, 23, 22, 22])])
def test_ranks_that_replicate_each_other_are_each_proven(root, tmp_path, replication, taken_by_each):
    taken = []
    for rank in range(4):
        world = World.of_blocks(rank, 4, 1)
        dataset = StreamingDataset(
            remote=str(root),
            batch_size=3,
            shuffle=True,
            include_ids=True,
            world=world,
            order=OrderOptions(replication=replication),
        )
        with LedgerWriter(tmp_path, life=1, world=world) as writer:
            loader = StreamingDataLoader(dataset, ledger=writer)
            taken.append(sum(int((batch["_position"] >= 0).sum()) for batch in loader))
    assert sorted(taken, reverse=True) == taken_by_each
    report = check_ledger(tmp_path, lambda cursor: dataset._smalti.reading(Pass(cursor, World())).plan)
    assert report.ok, report.problems
    assert report.compared == 45 * replication


def test_without_a_ledger_nothing_is_written(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(1 for _ in StreamingDataLoader(opened(root))) == 12
    assert list(tmp_path.iterdir()) == []


def test_the_recorded_ids_are_the_delivered_ones(root, tmp_path):
    _, delivered = read(opened(root), tmp_path)
    lines = (tmp_path / "life-00001" / "rank-00000.jsonl").read_text().splitlines()
    assert f'"ids":[{",".join(str(sample) for _, sample in delivered[:4])}]' in lines[2]
    assert [position for position, _ in delivered[:4]] == [0, 1, 2, 3]
    assert '"at":[0,1]' in lines[2]


def test_two_alternating_iterations_are_refused(root, tmp_path):
    dataset = opened(root)
    writer = open_ledger(tmp_path, World())
    first, second = (PassRecorder(writer, dataset._smalti.reading(dataset._smalti.begin_pass())) for _ in range(2))
    second.take()
    with pytest.raises(SmaltiError, match="a step of epoch 0 was taken after another iteration began"):
        first.take()
    writer.close()


def test_ranks_that_cannot_agree_on_a_life_are_refused(tmp_path):
    with pytest.raises(WorldMismatch, match="a ledger of 2 ranks without a process group"):
        open_ledger(tmp_path, World.flat(1, 2))


GROUP = """
import os
import sys
import torch.distributed as dist
from smalti.torch.loader import open_ledger
from smalti.errors import StoreError
from smalti.world import World
folder, meeting = sys.argv[1:]
child = os.fork()  # two ranks by one import of torch
rank = int(child == 0)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
lives = []
for _ in range(2):
    with open_ledger(folder, World.flat(rank, 2)) as writer:
        lives.append(writer.path.parent.name)
try:
    open_ledger(meeting, World.flat(rank, 2))
except StoreError as fault:
    lives.append("no life can be claimed" in str(fault))
if child:
    assert os.waitpid(child, 0)[1] == 0
print(*lives, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.slow
def test_ranks_of_a_process_group_agree_on_the_life_and_on_its_failure(tmp_path):
    root = Path(__file__).resolve().parents[2]
    arguments = [str(tmp_path / "ledger"), str(tmp_path / "meeting")]
    done = subprocess.run(
        [sys.executable, "-c", GROUP, *arguments], cwd=root, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "life-00001 life-00002 True\n" * 2
