"""Tables in the documentation come from the newest report."""

import pytest

from benchmarks.excerpt import excerpt

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
