"""The example runs as it is."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "petastorm_resume.py"


@pytest.mark.slow
@pytest.mark.torch
def test_two_ranks_stop_and_three_go_on_without_losing_or_repeating_a_row(tmp_path):
    """60 rows are left: four steps of five rows for each of three ranks."""
    spec = spec_from_file_location("petastorm_resume", EXAMPLE)
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    before, after = example.main(tmp_path)
    assert (len(before), len(after)) == (40, 60)
    assert sorted(before + after) == list(range(100))
