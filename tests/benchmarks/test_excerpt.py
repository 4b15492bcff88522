"""Tables in the documentation come from the newest report, and the page that is there agrees with it."""

from pathlib import Path

import pytest

from benchmarks.excerpt import excerpt

ROOT = Path(__file__).resolve().parents[2]
PAGE = "before\n<!-- from mine: two -->\nold\n<!-- end -->\nafter\n<!-- from nobodys: two -->\nkept\n<!-- end -->\n"


def test_a_place_is_filled_from_the_newest_report_of_its_name(tmp_path):
    (tmp_path / "2026-01-01-mine.md").write_text("### two\n\nof January\n")
    (tmp_path / "2026-02-01-mine.md").write_text("### one\n\n1\n\n### two\n\n| a |\n- note\n\n## Machine\n")
    (tmp_path / "2026-03-01-not-mine-but.md").write_text("### two\n\nwrong\n")
    assert excerpt(PAGE, tmp_path) == (
        "before\n<!-- from mine: two -->\n| a |\n- note\n<!-- end -->\nafter\n"
        "<!-- from nobodys: two -->\nkept\n<!-- end -->\n"
    )


def test_a_heading_that_is_not_there_is_told_with_those_that_are(tmp_path):
    (tmp_path / "2026-01-01-mine.md").write_text("### one\n\n1\n")
    with pytest.raises(ValueError, match="no heading 'two'; it has: one"):
        excerpt(PAGE, tmp_path)


def test_the_tables_of_the_page_about_the_order_are_those_of_the_newest_run():
    page = (ROOT / "docs" / "order.md").read_text()
    assert page.count("<!-- from issue-4: ") == 4
    assert excerpt(page) == page, "run: .venv/bin/python -m benchmarks excerpt docs/order.md"
