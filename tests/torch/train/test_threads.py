"""The cores that a process may use, and how torch's threads wait for each other."""

import pytest

from smalti.torch.train.ranks import detect_cores, waiting_of_threads

pytestmark = pytest.mark.torch


def test_a_limit_of_the_container_counts_if_it_is_below_the_cores(tmp_path):
    unlimited = detect_cores(tmp_path / "absent")
    assert unlimited >= 1
    for text, expected in [
        ("max 100000\n", unlimited),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),  # half a core: one thread
        ("99900000 100000\n", unlimited),
    ]:
        (tmp_path / "cpu.max").write_text(text)
        assert detect_cores(tmp_path / "cpu.max") == expected


def test_a_choice_in_the_environment_is_kept():
    assert waiting_of_threads({"HOME": "/"}) == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert waiting_of_threads({name: "1"}) == {}
