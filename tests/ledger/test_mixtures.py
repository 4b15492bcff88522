"""The ledger of a run over several streams: the check accepts declared changes of weights, and only those."""

import json

import pytest

from smalti import Stream
from smalti.cli import main
from smalti.ledger import check_ledger
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    return [str(write_set(folder / name, count)) for name, count in (("a", 60), ("b", 30))]


def read(roots, ledger, *, proportions=(2, 1), state=None, stop=None, epochs=1, batch=4, **options):
    """Read some epochs, the last one up to step `stop`; return the state after them."""
    streams = [Stream(remote=root, proportion=part) for root, part in zip(roots, proportions, strict=True)]
    options = {"epoch_size": 48, "world": World(), "shuffle": True, **options}
    loader = StreamingDataLoader(StreamingDataset(streams=streams, **grouped(**options)), batch, ledger=ledger)
    if state is not None:
        loader.load_state_dict(state)
    for epoch in range(1, epochs + 1):
        for step, _ in enumerate(loader, 1):
            if epoch == epochs and step == stop:
                return loader.state_dict()
    return loader.state_dict()


def report_of_command(ledger, roots, capsys):
    """Return the report of the command, which is given the data of every stream."""
    data = [word for root in roots for word in ("--data", root)]
    status = main(["ledger", "check", str(ledger), *data, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == (0 if report["ok"] else 3)
    return report


def test_a_mixture_that_was_killed_and_resumed_is_proven_against_its_plan(roots, tmp_path, capsys):
    state = read(roots, tmp_path, epochs=2, stop=5)
    read(roots, tmp_path, state=state, stop=2)  # this life saves nothing
    read(roots, tmp_path, state=state, epochs=2)
    report = report_of_command(tmp_path, roots, capsys)
    assert report["problems"] == []
    assert [(epoch["taken"], epoch["is_finished"]) for epoch in report["epochs"]] == [(48, True)] * 3
    assert (report["compared"], report["superseded"]) == (144, 8)


def test_weights_that_changed_within_an_epoch_are_proven_and_noted(roots, tmp_path, capsys):
    state = read(roots, tmp_path, stop=5)
    read(roots, tmp_path, proportions=(0, 1), state=state, change_weights=True, epochs=2)
    report = report_of_command(tmp_path, roots, capsys)
    assert report["problems"] == []
    assert [epoch["taken"] for epoch in report["epochs"]] == [48, 48]
    assert report["compared"] == 96
    assert report["notes"] == [
        "life 2: the streams' weights changed at sample 20 of epoch 0; they are proportion=0.0, "
        "proportion=1.0 from there on."
    ]


def test_an_epoch_whose_size_changes_at_its_beginning_is_proven(roots, tmp_path, capsys):
    state = read(roots, tmp_path)
    read(roots, tmp_path, epoch_size=16, state=state, change_weights=True)
    report = report_of_command(tmp_path, roots, capsys)
    assert report["problems"] == []
    assert [epoch["taken"] for epoch in report["epochs"]] == [48, 16]


def test_resuming_from_an_older_state_may_revert_a_change_of_weights(roots, tmp_path, capsys):
    old = read(roots, tmp_path, stop=5)
    read(roots, tmp_path, proportions=(0, 1), state=old, change_weights=True, stop=3)
    read(roots, tmp_path, state=old)
    report = report_of_command(tmp_path, roots, capsys)
    assert report["problems"] == []
    assert (report["epochs"][0]["taken"], report["superseded"]) == (48, 12)


def test_an_epoch_of_stratified_batches_may_begin_with_another_batch_size(roots, tmp_path):
    state = read(roots, tmp_path, batching_method="stratified")
    middle = read(roots, tmp_path, batching_method="stratified", batch=8, state=state, stop=2)
    read(roots, tmp_path, batching_method="stratified", batch=6, state=middle)
    report = check_ledger(tmp_path)
    assert report.ok, report.problems
    assert [epoch.taken for epoch in report.epochs] == [48, 48]


def change_cursor(ledger, life, change, **order):
    """Change the cursor with which a life's only pass began."""
    path = ledger / f"life-{life:05}" / "rank-00000.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    line = json.loads(lines[1])
    change(line["cursor"]["smalti"]["mixture"])
    line["cursor"]["smalti"] |= order
    path.write_text("".join([lines[0], json.dumps(line) + "\n", *lines[2:]]))


@pytest.mark.parametrize(
    "change",
    [
        lambda mixture: mixture["history"][0]["weights"].__setitem__(0, {"proportion": 3.0}),
        lambda mixture: mixture["history"].append(mixture["history"][0] | {"epoch": 0, "samples": 16}),
        lambda mixture: mixture["streams"][1].__setitem__("digest", "0" * 64),
        lambda mixture: mixture.__setitem__("sampling_method", "fixed"),
    ],
    ids=["other weights from the start", "changed elsewhere", "another stream", "another sampling"],
)
def test_an_undeclared_change_of_the_mixture_is_a_contradiction(roots, tmp_path, change):
    state = read(roots, tmp_path, stop=5)
    read(roots, tmp_path, state=state)
    change_cursor(tmp_path, 2, change)
    report = check_ledger(tmp_path)
    assert report.counts == {"contradiction": 1}
    assert "life 1 had mixture Mixture(" in report.problems[0].message


def test_a_mixture_in_an_order_of_mosaicml_is_reported_as_unprovable(roots, tmp_path):
    read(roots, tmp_path)
    change_cursor(tmp_path, 1, lambda mixture: None, algorithm="py1e")
    report = check_ledger(tmp_path)
    assert report.counts == {"unprovable": 1}


def test_the_command_asks_for_the_data_of_every_stream(roots, tmp_path, capsys):
    read(roots, tmp_path / "ledger")
    assert main(["ledger", "check", str(tmp_path / "ledger"), "--data", roots[0]]) == 1
    assert "Give each data set that the run read by its own `--data`" in capsys.readouterr().err


def test_a_run_of_one_stream_that_resumes_with_an_epoch_size_is_proven(roots, tmp_path):
    def plain(state=None, stop=None, **options):
        dataset = StreamingDataset(remote=roots[0], shuffle=True, batch_size=4, world=World(), **grouped(**options))
        loader = StreamingDataLoader(dataset, ledger=tmp_path)
        if state is not None:
            loader.load_state_dict(state)
        for step, _ in enumerate(loader, 1):
            if step == stop:
                break
        return loader.state_dict()

    state = plain()
    plain(state=state, epoch_size=20, change_weights=True)
    report = check_ledger(tmp_path)
    assert report.ok, report.problems
    assert [epoch.taken for epoch in report.epochs] == [60, 20]
