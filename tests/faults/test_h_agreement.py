"""H12: of two ranks that load different states, the later one notices, without a collective or a wait."""

import json
import multiprocessing
import os
import socket
import time

import pytest
import torch.distributed as dist

from smalti.errors import CursorError
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.faults.world_sets import KNOWN, write_known_set
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.process]

FORK = multiprocessing.get_context("fork")
DEADLINE = 60.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_known_set(tmp_path_factory.mktemp("known") / "root")


def loader_of(root, rank, batch_size=2, **options):
    dataset = StreamingDataset(remote=root, world=World.flat(rank, 2), **grouped(**(KNOWN | options)))
    return StreamingDataLoader(dataset, batch_size)


def state_at(root, samples, **changes):
    return loader_of(root, 0).state_dict() | {"sample_in_epoch": samples, **changes}


def as_rank(rank, act, folder):
    """Run one rank of a group of two, and report the outcome."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        said = ["went through", act(rank)]
    except CursorError as fault:
        said = [str(fault), [fault.saved, fault.found]]
    (folder / f"{rank}.part").write_text(json.dumps(said))
    (folder / f"{rank}.part").rename(folder / f"{rank}.json")
    dist.barrier()  # the store of the group ends with its first rank
    dist.destroy_process_group()


def group(folder, act):
    """Return the result of `act(rank)` on both ranks of a process group."""
    ranks = [FORK.Process(target=as_rank, args=(rank, act, folder)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    try:
        for rank in ranks:
            rank.join(DEADLINE)
            assert rank.exitcode == 0
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def first_step_from(root, states, **options):
    """Each rank loads its own state, or none, and takes a step."""

    def act(rank):
        loader = loader_of(root, rank, **{name: value[rank] for name, value in options.items()})
        if states[rank] is not None:
            loader.load_state_dict(states[rank])
        return next(iter(loader))["id"].tolist()

    return act


def refusal(said):
    """Return message and facts of the rank that failed; the other continued, and would hang at its next collective."""
    messages = [message for message, _ in said]
    assert messages.count("went through") == 1
    return next(each for each in said if each[0] != "went through")


@pytest.mark.parametrize("loaded", [(8, 4), (8, 0), (0, 8), (8, None), (None, 8)], ids=str)
def test_h12_ranks_that_load_different_states_or_only_one_any_are_refused_with_both_places(root, tmp_path, loaded):
    states = [None if samples is None else state_at(root, samples) for samples in loaded]
    message, (there, here) = refusal(group(tmp_path, first_step_from(root, states)))
    assert {there["sample_in_epoch"], here["sample_in_epoch"]} == {loaded[0] or 0, loaded[1] or 0}
    assert f"sample_in_epoch {there['sample_in_epoch']}, and rank" in message
    assert f"with sample_in_epoch {here['sample_in_epoch']}. Load one state into the loaders of all ranks" in message


def test_h12_states_of_different_epochs_and_seeds_are_distinguished(root, tmp_path):
    """Both ranks would begin at sample 8, of other orders."""
    states = [state_at(root, 8), state_at(root, 8, epoch=3, shuffle_seed=5)]
    message, facts = refusal(group(tmp_path, first_step_from(root, states, shuffle_seed=[9176, 5])))
    assert sorted(facts[0]) == sorted(facts[1]) == ["epoch", "shuffle_seed"]
    assert {facts[0]["epoch"], facts[1]["epoch"]} == {0, 3}
    assert "rank 0" in message
    assert "rank 1" in message


@pytest.mark.parametrize(
    ("options", "what"),
    [({"batch_size": [2, 3]}, "batch_size"), ({"tail": ["pad", "drop"]}, "tail"), ({"shuffle_seed": [1, 2]}, "seed")],
)
def test_h12_ranks_that_would_divide_in_different_ways_are_refused(root, tmp_path, options, what):
    message, _ = refusal(group(tmp_path, first_step_from(root, [None, None], **options)))
    assert what in message


def test_h12_a_rank_that_opened_a_newer_version_is_refused(tmp_path):
    root = write_set(tmp_path / "set", 30)
    write_set(root, 40, exist_ok=True)
    message, (there, here) = refusal(
        group(tmp_path, first_step_from(str(root), [None, None], version=[1, 2], num_canonical_nodes=[2, 2]))
    )
    assert {there["epoch_size"], here["epoch_size"]} == {30, 40}
    assert "digest" in message


def test_h12_ranks_that_load_one_state_read_on_and_begin_further_epochs(root, tmp_path):
    def act(rank):
        loader = loader_of(root, rank)
        loader.load_state_dict(state_at(root, 8))
        return [[number for batch in loader for number in batch["id"].tolist()] for _ in range(3)]

    said = group(tmp_path, act)
    assert [message for message, _ in said] == ["went through"] * 2
    both = [first + second for first, second in zip(said[0][1], said[1][1], strict=True)]
    assert [len(epoch) for epoch in both] == [16, 24, 24], "14 are left of 22, in steps of 4"
    assert set(both[1]) == set(both[2]) == set(range(22))


def test_h12_ranks_do_not_wait_for_a_rank_that_begins_later_or_never(root, tmp_path):
    """Rank 0 reads two epochs before rank 1 begins one, and rank 1 reads only one: no step requires a meeting."""

    def act(rank):
        loader = loader_of(root, rank)
        if rank == 0:
            found = [len(list(loader)) for _ in range(2)]
            (tmp_path / "done").touch()
            return found
        end = time.monotonic() + DEADLINE
        while not (tmp_path / "done").exists():
            assert time.monotonic() < end, "rank 0 waits for rank 1"
            time.sleep(0.01)
        return [len(list(loader))]

    assert group(tmp_path, act) == [["went through", [6, 6]], ["went through", [6]]]


def test_h12_loaders_of_one_rank_alone_are_allowed(root, tmp_path):
    """Rank 0 reads other data, and its own data in a world of one; the loader of all ranks is still the same."""
    other = str(write_set(tmp_path / "other", 12))

    def act(rank):
        if rank == 0:
            next(iter(StreamingDataLoader(StreamingDataset(remote=other), 2)))
            next(iter(StreamingDataLoader(StreamingDataset(remote=root, world=World()), 5)))
        loader = loader_of(root, rank)
        loader.load_state_dict(state_at(root, 8))
        return len(list(loader))

    assert group(tmp_path, act) == [["went through", 4]] * 2


def test_h12_a_read_by_one_rank_alone_hides_no_difference(root, tmp_path):
    """In a world of its own, and in a loader that is created and never iterated."""

    def act(rank):
        if rank == 0:
            next(iter(StreamingDataLoader(StreamingDataset(remote=root, world=World()), 5)))
            loader_of(root, rank)
        loader = loader_of(root, rank)
        loader.load_state_dict(state_at(root, 8 + 4 * rank))
        return len(list(loader))

    message, _ = refusal(group(tmp_path, act))
    assert "sample_in_epoch" in message


def as_member(rank, folder, meetings):
    """A rank that belongs to several groups, one after the other, with one loader."""
    loader = loader_of(folder / "root", rank)
    for meeting in meetings:
        dist.init_process_group("gloo", init_method=f"file://{folder}/{meeting}", rank=rank, world_size=2)
        try:
            loader.load_state_dict(state_at(folder / "root", 8 if rank else 8 + 4 * (meeting == "other")))
            said = [len(list(loader))]
        except CursorError as fault:
            said = [str(fault)]
        (folder / f"{meeting}-{rank}.json").write_text(json.dumps(said))
        dist.barrier()
        dist.destroy_process_group()


def test_h12_a_rank_that_joins_a_recreated_group_is_compared_with_its_former_members(tmp_path):
    write_known_set(tmp_path / "root")
    first = [FORK.Process(target=as_member, args=(0, tmp_path, ["one", "other"]))]
    first.append(FORK.Process(target=as_member, args=(1, tmp_path, ["one"])))
    newcomer = FORK.Process(target=as_member, args=(1, tmp_path, ["other"]))
    try:
        for rank in (*first, newcomer):
            rank.start()
        for rank in (*first, newcomer):
            rank.join(DEADLINE)
            assert rank.exitcode == 0
    finally:
        for rank in (*first, newcomer):
            rank.kill()
    said = {path.name: json.loads(path.read_text())[0] for path in tmp_path.glob("o*.json")}
    assert said.pop("one-0.json") == said.pop("one-1.json") == 4
    message = next(each for each in said.values() if isinstance(each, str))
    assert "sample_in_epoch" in message


def test_h12_without_a_process_group_nothing_is_compared(root):
    """One process can play several ranks, as tests and notebooks do."""
    for rank, samples in enumerate((8, 4)):
        loader = loader_of(root, rank)
        loader.load_state_dict(state_at(root, samples))
        next(iter(loader))
        assert loader.state_dict()["sample_in_epoch"] == samples + 4


def second_of_two(root, port, ended, results):
    """Run rank 1 of a group whose store rank 0 holds; it continues after rank 0 was killed."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=1, world_size=2)
    loader = loader_of(root, 1)
    results.send(len(list(loader)))
    assert ended.wait(DEADLINE)
    results.send(len(list(loader)))
    os._exit(0)  # leaving a broken group regularly would take long


def holder_of_the_store(port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
    time.sleep(DEADLINE)


def test_h12_a_rank_continues_when_the_groups_store_has_ended(root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended, (receiver, sender) = FORK.Event(), FORK.Pipe()
    holder = FORK.Process(target=holder_of_the_store, args=(port,))
    reader = FORK.Process(target=second_of_two, args=(root, port, ended, sender))
    try:
        holder.start()
        reader.start()
        assert receiver.poll(DEADLINE)
        assert receiver.recv() == 6
        holder.kill()
        holder.join(DEADLINE)
        ended.set()
        assert receiver.poll(DEADLINE)
        assert receiver.recv() == 6
        reader.join(DEADLINE)
        assert reader.exitcode == 0
    finally:
        holder.kill()
        reader.kill()
