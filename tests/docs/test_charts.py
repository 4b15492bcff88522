"""The charts and tables of the documentation show what stands in benchmarks/results."""

import re
import runpy
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / "tools" / "site"


@pytest.fixture(scope="module")
def charts():
    sys.path.insert(0, str(TOOLS))
    try:
        return runpy.run_path(str(TOOLS / "charts.py"))
    finally:
        sys.path.remove(str(TOOLS))


def test_the_pictures_are_those_of_the_results(charts):
    """Run tools/site/charts.py after a change of a chart or a file of results."""
    drawn = dict(charts["files"]())
    assert len(drawn) == 7
    assert [path.name for path, content in drawn.items() if path.read_text() != content] == []
    kept = {path.name for path in (REPOSITORY / "docs" / "images").glob("chart-*.svg")}
    assert kept == {path.name for path in drawn}, "no picture of a chart that is gone"


def test_a_table_has_the_medians_the_floor_and_where_they_come_from(charts):
    """Figures as in the goals of benchmarks/results/2026-11-21-all-rows.md and 2026-11-22-order-and-resume.md."""
    reading = charts["table"](charts["CHARTS"]["reading"])
    assert "| MosaicML Streaming | 9,380 | 8,730 | 8,240 |" in reading
    assert "| floor | 4,610,000 | 932,000 | 321,000 |" in reading
    assert "mosaicml-streaming 0.13.0, litdata 0.2.76, datasets 5.2.0" in reading
    assert "`python -m benchmarks --name all-rows` on 2 cores" in reading
    opening = charts["table"](charts["CHARTS"]["opening"])
    assert "| Smalti | 0.131 | 0.172 |" in opening
    assert "| WebDataset | 0.185 | - |" in opening, "what was not measured is not shown as a number"


def test_bars_are_as_long_as_their_figures(charts):
    """The best of the first group has 364,000 samples/s, and LitData 217,000."""
    chart = charts["CHARTS"]["reading"]
    group = charts["draw"](chart).emit().split("JPEG files of 14 KB")[1]
    lengths = [float(width) for width in re.findall(r'<rect x="210" y="\d+" width="([\d.]+)"', group)]
    assert lengths == sorted(lengths, reverse=True), "the best first"
    assert lengths[0] == pytest.approx(560, abs=0.1), "the best is beyond the floor here"
    assert lengths[1] == pytest.approx(560 * 217 / 364, rel=0.005)


def test_every_mark_of_a_page_is_a_chart(charts):
    marks = {
        name
        for page in (REPOSITORY / "docs").rglob("*.md")
        for name in re.findall(r"<!-- results: ([\w-]+)", page.read_text())
    }
    assert marks == set(charts["CHARTS"])
