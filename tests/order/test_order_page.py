"""The drawn tables of docs/order.md agree with the code."""

import re
from pathlib import Path

import numpy as np
import pytest

from smalti.cache import CacheOptions
from smalti.compat.streaming.order.partition import WorldShape
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.order import Division
from smalti.order.window import arranged
from tests.compat.streaming.mosaic_worlds import rank_of

PAGE = (Path(__file__).parents[2] / "docs" / "order.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- read: (.*?) -->\n```\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_has_its_table():
    assert len(TABLES) == 1


@pytest.mark.parametrize(("setting", "table"), TABLES)
def test_a_table_shows_what_every_rank_reads(setting, table):
    options = dict(part.split("=") for part in setting.split())
    hosts, ranks, batch, samples, start = (int(options[k]) for k in ("hosts", "ranks", "batch", "samples", "start"))
    rows = re.findall(r"host (\d+)  rank (\d+) (.*)", table)
    assert len(rows) == hosts * ranks
    for host, rank, cells in rows:
        world = rank_of(WorldShape(hosts, ranks), int(host) * ranks + int(rank))
        division = Division(samples, start, batch, world, options["tail"])
        steps = division.steps(0, division.num_steps)
        marks = zip(
            [p for step in steps for p in step.lookup.tolist()],
            [p < 0 for step in steps for p in step.positions.tolist()],
            strict=True,
        )
        assert cells.split() == [f"{position}*" if repeat else str(position) for position, repeat in marks]


def test_with_an_affinity_one_cohort_is_dealt_anew_in_each_epoch():
    layouts = [
        [4, 1, 2, 3, 0, 5, 6, 7],
        [4, 1, 2, 7, 0, 5, 6, 3],  # cohort 3
        [4, 1, 6, 7, 0, 5, 2, 3],  # cohort 2
        [4, 5, 6, 7, 0, 1, 2, 3],  # cohort 1
        [0, 5, 6, 7, 4, 1, 2, 3],  # cohort 0
    ]
    for epoch, shards in enumerate(layouts):
        assert arranged(np.full(8, 5), seed=2, epoch=epoch, runs=2, affinity=0.75).tolist() == shards


def test_the_example_of_an_affinity_opens_a_dataset():
    [example] = re.findall(r"```python\n(dataset = .*?affinity.*?)```", PAGE, flags=re.DOTALL)
    names = {"StreamingDataset": StreamingDataset, "OrderOptions": OrderOptions, "CacheOptions": CacheOptions}
    exec(example, names)
    assert names["dataset"].batch_size == 256
