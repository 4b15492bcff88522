"""The measurements of the graph themselves, on a few pictures: each gives every figure that its rows show."""

import os

import pytest

from benchmarks.graph_rows import GRAPH_ROWS
from benchmarks.plan import task_of
from benchmarks.process import run_task
from benchmarks.scale import SCALES

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif("SMALTI_NIGHTLY" not in os.environ, reason="takes minutes: `make test-nightly` runs it"),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("measure", ["graph-stages", "graph-runs"])
def test_a_measurement_gives_the_figures_of_its_rows(measure, tmp_path):
    rows = [row for row in GRAPH_ROWS if row.measure == measure and row.samples == 3_670]
    outcome = run_task(task_of(rows[0], rows[0].entrants[0], SCALES["smoke"], str(tmp_path)), 500)
    assert outcome.status == "ok", outcome.detail
    wanted = {name for row in rows for name in (row.figure, *row.more)}
    assert wanted <= outcome.figures.keys()
    assert all(outcome.figures[name] > 0 for name in wanted)
