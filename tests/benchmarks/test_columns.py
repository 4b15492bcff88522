"""The program that measures `columns=` runs, and its tables have a row for each choice."""

import re

from benchmarks.columns import CHOICES, main


def test_the_tables_have_a_row_for_each_choice_and_fewer_bytes_for_fewer_shards():
    speed, sizes = main(["--samples", "200", "--rounds", "1"]).split("\n\n")
    assert len(speed.splitlines()) == 2 + 1 + len(CHOICES)
    ratios = [float(found) for found in re.findall(r"(\d\.\d+) \|$", sizes, flags=re.MULTILINE)]
    assert ratios[0] == ratios[2] == 1.0  # the set's own shards are read for `label`
    assert ratios[3] < ratios[1] < 1.0
    assert abs(ratios[3] + ratios[1] - 1) < 0.002
