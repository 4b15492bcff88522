"""H14: a run that is killed after every step completes its epochs, without drift."""

import json
import multiprocessing
import os
import signal

import pytest

from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.faults.world_sets import FIRST_EPOCH, KNOWN, SECOND_EPOCH, write_known_set
from tests.reading_options import grouped

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

FORK = multiprocessing.get_context("fork")
DEADLINE = 60.0
LIVES = 100
WAYS = ({}, {"num_workers": 2, "worker_kind": "thread"}, {"num_workers": 1, "multiprocessing_context": "fork"})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_known_set(tmp_path_factory.mktemp("known") / "root")


def loader_of(root, **options):
    return StreamingDataLoader(StreamingDataset(remote=root, **grouped(tail="short", **KNOWN)), 2, **options)


def load_step_save(root, place, number):
    """Load the state, take one step, save by rename and be killed; every fifth process is killed before it saves."""
    loader = loader_of(root, **WAYS[number % 3])
    if place.exists():
        loader.load_state_dict(json.loads(place.read_text())["state"])
    ids = next(iter(loader))["id"].tolist()
    if number % 5 != 4:
        written = place.with_name("part")
        written.write_text(json.dumps({"ids": ids, "state": loader.state_dict()}))
        written.replace(place)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.nightly
def test_h14_a_hundred_processes_of_one_step_equal_a_hundred_steps_of_one_process(root, tmp_path):
    """11 steps of 2 are an epoch; 125 processes, of which 25 save nothing, reach step 100: step 1 of epoch 9."""
    place, order, sizes, saved = tmp_path / "saved.json", [], set(), 0
    for number in range(125):
        process = FORK.Process(target=load_step_save, args=(root, place, number))
        process.start()
        process.join(DEADLINE)
        assert process.exitcode == -signal.SIGKILL
        if number % 5 == 4:
            continue
        found = json.loads(place.read_text())
        order += found["ids"]
        saved += 1
        assert (found["state"]["epoch"], found["state"]["sample_in_epoch"]) == (saved // 11, saved % 11 * 2)
        sizes.add(len(json.dumps(found["state"])))
    assert saved == LIVES
    assert order[:44] == FIRST_EPOCH + SECOND_EPOCH
    loader = loader_of(root)
    never_killed = [number for _ in range(10) for batch in loader for number in batch["id"].tolist()]
    assert order == never_killed[:200]
    assert max(sizes) - min(sizes) <= 1, "a state does not grow: its place has one digit or two"
