"""The drawn table of docs/mixtures.md agrees with the code."""

import re
from pathlib import Path

import pytest

from smalti.order.mixture.planning import BATCHINGS
from tests.order.mixtures import constant

PAGE = (Path(__file__).parents[2] / "docs" / "mixtures.md").read_text(encoding="utf-8")
SETTING, TABLE = re.search(r"<!-- mixture: (.*?) -->\n```\n(.*?)```", PAGE, flags=re.DOTALL).groups()
SAMPLES = [f"{stream}{number}" for stream, size in (("a", 12), ("b", 6), ("c", 4)) for number in range(size)]


def test_the_table_has_a_row_for_every_method():
    assert [row.split()[0] for row in TABLE.splitlines()] == list(BATCHINGS)


@pytest.mark.parametrize("row", TABLE.splitlines())
def test_a_row_shows_the_order_and_where_whole_batches_end(row):
    method, *cells = row.split()
    options = {name: int(value) for name, value in (part.split("=") for part in SETTING.split())}
    batches = {"batching_method": method, "global_batch": 4, "local_batch": 2}
    plan = constant([[6, 6], [6], [4]], seed=options.pop("seed"), **batches).plan(**options)
    shown = [cell for cell in cells if cell not in "|/"]
    assert shown == [SAMPLES[sample] for sample in plan.sample_ids(0, len(plan))]
    whole = row.partition("/")[0].replace("|", " ").split()[1:]
    assert len(whole) == plan.num_batched
