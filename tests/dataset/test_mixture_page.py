"""docs/mixtures.md: its examples run as described, and its table of a change agrees with the code."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from smalti.cursor import MixedStream
from smalti.dataset.order import OrderOptions, Pass, Reading, RunOrder
from smalti.dataset.resume import at_epoch, first_cursor, own_cursor, saved_cursor
from smalti.order.mixture.planning import StreamWeight
from smalti.world import World

PAGE = (Path(__file__).parents[2] / "docs" / "mixtures.md").read_text(encoding="utf-8")
EXAMPLE, CHANGE = re.findall(r"<!-- example -->\n```python\n(.*?)```", PAGE, flags=re.DOTALL)
TABLE = re.search(r"<!-- change -->\n```\n(.*?)```", PAGE, flags=re.DOTALL)[1]
SIZES = [[6, 6], [4, 4, 4]]
"""The table's streams a and b, 12 samples each."""


@pytest.mark.torch
def test_the_examples_of_the_page_run_as_described_and_can_be_run_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLE, {})
    names = {}
    exec(EXAMPLE, names)
    batches = list(names["loader"])
    kinds = [Counter(text.split()[0] for text in batch["text"]) for batch in batches]
    assert kinds == [{"web": 40, "code": 10}] * 40
    loader = names["loader"]
    loader.streaming_dataset.set_epoch(0)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    names["state"] = json.loads(json.dumps(loader.state_dict()))
    exec(CHANGE, names)
    kinds = [Counter(text.split()[0] for text in batch["text"]) for batch in names["loader"]]
    assert kinds == [{"web": 25, "code": 25}] * 33


def mixing(*values):
    weights = tuple(StreamWeight(proportion=value) for value in values)
    return RunOrder(shuffle=True, num_canonical_nodes=2, weights=weights, epoch_size=12, change_weights=True)


def cursor_of(options):
    return first_cursor(options, World(), [MixedStream("a", None, 12), MixedStream("b", None, 12)], SIZES)


def names_of(cursor):
    plan = Reading(Pass(cursor, World()), SIZES, 1, OrderOptions()).plan
    return [f"{'ab'[number // 12]}{number % 12}" for number in plan.sample_ids(0, len(plan)).tolist()]


def changed():
    """Return the cursors before and after weights 2 : 1 change to 1 : 2 at position 6."""
    before = cursor_of(mixing(2, 1))
    state = json.loads(json.dumps(before.advanced(6).to_state()))
    return before, saved_cursor(own_cursor(state), cursor_of(mixing(1, 2)), mixing(1, 2), sizes=SIZES)


def row(name):
    """Return the cells after a row's name, without the remark at its end."""
    line = next(line for line in TABLE.splitlines() if line.startswith(name))
    return re.findall(r"\b[ab]\d+\b", line)


def test_the_table_shows_what_is_planned_read_and_left_out():
    before, after = changed()
    planned, read, following = names_of(before), names_of(after), names_of(at_epoch(after, 1, SIZES))
    assert row("planned with 2 : 1") == planned
    assert row("read with 1 : 2") == read[6:]
    assert row("not read") == sorted(set(planned[6:]) - set(read[6:]), key=lambda name: (name[0], int(name[1:])))
    assert row("epoch 1") == following
    assert read[:6] == planned[:6]


def test_the_pages_statements_about_the_table_hold():
    _, after = changed()
    read, following = names_of(after), names_of(at_epoch(after, 1, SIZES))
    assert Counter(name[0] for name in read[6:]) == {"a": 2, "b": 4}
    assert Counter(name[0] for name in following) == {"a": 4, "b": 8}


def test_the_state_records_each_change_as_the_page_says():
    _, after = changed()
    assert after.to_state()["smalti"]["mixture"]["history"] == [
        {"epoch": 0, "samples": 0, "weights": [{"proportion": 2.0}, {"proportion": 1.0}], "epoch_size": 12},
        {"epoch": 0, "samples": 6, "weights": [{"proportion": 1.0}, {"proportion": 2.0}], "epoch_size": 12},
    ]


def test_the_page_names_every_key_of_a_mixtures_state():
    keys = changed()[1].to_state()["smalti"]["mixture"]
    assert [key for key in keys if f"`{key}`" not in PAGE] == []
