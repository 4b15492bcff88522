"""Every process of a deployment is killed in every phase of a run: nothing is left fifteen seconds later."""

import pytest

from tests.nightly.kill_matrix import HEAD, KILLED, PHASES, matrix


@pytest.mark.timeout(3600)
def test_whatever_is_killed_in_whichever_phase_nothing_is_left(tmp_path):
    cases = list(matrix(tmp_path))
    print(HEAD, *(case.row() for case in cases), sep="\n")
    assert len(cases) == len(KILLED) * len(PHASES) - 3
    assert [case.row() for case in cases if not case.is_clean] == []
