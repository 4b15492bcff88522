"""A ledger beside what its reader saw: an epoch that was read passes, one that was read wrongly or in part does not."""

import contextlib
import io
import json

import pytest

from benchmarks.soak.journal import Journal
from benchmarks.soak.judging import prove
from benchmarks.soak.reading import steps
from benchmarks.soak.samples import Expected, SetOf, write_set
from smalti.cli import main
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.loader import open_ledger

pytestmark = pytest.mark.torch
COUNT = 40


def life(folder, state=None, *, until=None):
    """Reads an epoch, or the rest of one, or some steps of it; the state after that."""
    dataset = StreamingDataset(remote=str(folder / "photos"), shuffle=True, include_ids=True)
    journal = Journal(folder / "journal.jsonl")
    with open_ledger(folder / "ledger", dataset.world) as ledger:
        loader = StreamingDataLoader(dataset, 4, ledger=ledger)
        if state is not None:
            loader.load_state_dict(state)
        for number in steps(loader, ledger, Expected([("photos", COUNT)], 1), journal):
            if number == until:
                break
        state = loader.state_dict()
    journal.close()
    dataset.close()
    return state


def proof(folder):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        main(["ledger", "check", str(folder / "ledger"), "--data", str(folder / "photos"), "--json"])
    return prove("A", folder / "ledger", [folder / "journal.jsonl"], json.loads(said.getvalue()))


@pytest.fixture
def folder(tmp_path):
    write_set(SetOf("photos", COUNT, 8_000), str(tmp_path / "photos"))
    return tmp_path


def changed(folder, change):
    """The journal with its seen events changed."""
    path = folder / "journal.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    change(events)
    path.write_text("".join(json.dumps(event) + "\n" for event in events if event))


def test_two_lives_of_an_epoch_are_proven(folder):
    life(folder, life(folder, until=4))
    found = proof(folder)
    assert found.problems == []
    assert [found.lives, found.epochs, found.samples, found.compared, found.steps] == [2, 1, 40, 40, 10]


def test_a_state_that_is_ahead_of_what_was_read_leaves_a_gap(folder):
    state = life(folder, until=4)
    life(folder, {**state, "sample_in_epoch": state["sample_in_epoch"] + 4})
    assert any("gap" in problem for problem in proof(folder).problems)


def test_a_batch_that_nobody_saw_is_noticed(folder):
    life(folder)
    changed(folder, lambda events: events.pop(3))
    assert [problem.partition(")")[2] for problem in proof(folder).problems] == [
        " stands in the ledger, and nobody saw its batch"
    ]


def test_a_batch_with_other_samples_than_the_ledger_says_is_noticed(folder):
    life(folder)
    changed(folder, lambda events: events[3]["ids"].reverse())
    assert [problem.partition(": ")[2].partition(": ")[2] for problem in proof(folder).problems] == [
        "the batch held other samples than the ledger says"
    ]


def test_a_batch_that_the_ledger_does_not_have_is_noticed(folder):
    life(folder)
    changed(folder, lambda events: events.append({**events[2], "step": 99}))
    assert ["the ledger does not have it" in problem for problem in proof(folder).problems] == [True]


def test_the_last_step_of_a_life_may_have_died_with_it(folder):
    life(folder, until=4)
    changed(folder, lambda events: events.pop(3))
    assert proof(folder).problems == []
