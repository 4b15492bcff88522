"""Patterns of files: what `*`, `**/`, `**` and `?` match, in linear time."""

import pytest

from smalti import convert
from smalti.conversion.files import Pattern


@pytest.mark.parametrize(
    ("pattern", "keys", "others"),
    [
        ("*.csv", ["a.csv", ".csv", "é\n.csv"], ["a/b.csv", "a.csvx", "a.CSV", ""]),
        ("a/*/b", ["a/x/b", "a//b"], ["a/b", "a/x/y/b", "a/x/bb"]),
        ("**/*.csv", ["a.csv", "a/b.csv", "a/b/c.csv"], ["a/b", "/a.csv", "a//b.csv"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb", "b"]),
        ("a**b", ["ab", "a/b", "axyb", "a/x/yb"], ["a", "b", "abc"]),
        ("**", ["", "a", "a/b"], []),
        ("?.csv", ["a.csv", "é.csv"], [".csv", "ab.csv", "/.csv"]),
        ("a[1]+.(b)", ["a[1]+.(b)"], ["a1.b", "a[1]]+.(b)"]),
        ("*a*b", ["ab", "aab", "abab", "xaxb"], ["ba", "abx", "a/b"]),
        ("**/x*/**y", ["x/y", "a/x1/b/cy", "x/xy"], ["xy", "x", "a/b/y"]),
    ],
)
def test_a_pattern_matches_these_keys_and_no_others(pattern, keys, others):
    matches = Pattern(pattern).predicate()
    assert [key for key in (*keys, *others) if matches(key)] == keys


def test_a_key_matches_itself_alone_whatever_characters_it_has():
    matches = Pattern("a*[?].csv", is_key=True).predicate()
    assert matches("a*[?].csv")
    assert not matches("ab[c].csv")


def test_a_pattern_of_many_wildcards_takes_linear_time(tmp_path):
    """Backtracking would take years."""
    for pattern in ("*a" * 40 + "*b", "**/" * 20 + "*b", "**a" * 40 + "b", "*?" * 40 + "*b"):
        matches = Pattern(pattern).predicate()
        assert not matches("a" * 5000)
        assert matches("a" * 5000 + "b")
    (tmp_path / ("a" * 200 + ".csv")).write_text("a\n1\n")
    assert convert(tmp_path / ("*a" * 60 + "*.csv"), tmp_path / "set", processes=1).rows == 1
