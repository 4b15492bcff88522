"""The drawn tables of docs/resume.md agree with the code."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.cursor import MixedStream
from smalti.dataset.order import Pass, Reading, RunOrder
from smalti.dataset.resume import first_cursor
from smalti.world import World

PAGE = (Path(__file__).parents[2] / "docs" / "resume.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- read: (.*?) -->\n```\n(.*?)```", PAGE, flags=re.DOTALL)


def reading(numbers, rank):
    """Return one rank's reading of one shard."""
    hosts, samples = numbers["hosts"], numbers["samples"]
    world = World.of_blocks(rank, hosts * numbers["ranks"], hosts)
    begin = first_cursor(RunOrder(), world, [MixedStream("", None, samples)], [[samples]])
    return Reading(Pass(replace(begin, samples=numbers["start"]), world), [[samples]], numbers["batch"], RunOrder())


def test_the_page_has_its_tables():
    assert len(TABLES) == 2


@pytest.mark.parametrize(("setting", "table"), TABLES)
def test_a_table_shows_what_every_rank_reads(setting, table):
    numbers = {name: int(value) for name, value in (part.split("=") for part in setting.split())}
    rows = re.findall(r"host (\d+)  rank (\d+) ((?: +\d+\*?)+)", table)
    assert len(rows) == numbers["hosts"] * numbers["ranks"]
    for host, place, cells in rows:
        rank = reading(numbers, int(host) * numbers["ranks"] + int(place))
        expected = []
        for step, _ in rank.steps(0, rank.division.num_steps):
            marks = zip(step.lookup.tolist(), step.positions.tolist(), strict=True)
            expected += [f"{number}*" if position < 0 else str(number) for number, position in marks]
        assert cells.split() == expected


def test_the_page_names_every_key_of_a_state():
    keys = first_cursor(RunOrder(), World(), [MixedStream("", None, 1)], [[1]]).to_state()
    assert [key for key in keys if f"`{key}`" not in PAGE] == []
