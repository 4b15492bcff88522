"""Reproducible test cases: every run draws the same cases; with SMALTI_SEED, that number determines them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import seeds

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
from hypothesis import given, strategies as st
from tests.seeds import SEED, seed_of, settle_hypothesis

def draw(seed):
    settle_hypothesis(seed)
    @given(st.lists(st.text() | st.integers() | st.floats()))
    def note(values):
        seen.append(ascii(values))
    seen = []
    note()
    return seen

print(SEED, seed_of(0), [draw(seed) for seed in (None, 7, 8)])
assert draw(None) != draw(7) != draw(8) != draw(None)
"""


def drawn():
    """Return the 200 values that a property test draws in one run."""
    seen = []

    @settings(max_examples=200)
    @given(st.integers() | st.text())
    def note(value):
        seen.append(repr(value))

    note()
    assert len(seen) > 150
    return seen


def test_earlier_imports_do_not_change_the_cases_that_hypothesis_draws(tmp_path):
    before = drawn()
    module = tmp_path / "odd_constants.py"
    module.write_text(
        "".join(f"A{n} = {7_919_000_017 * n}\nB{n} = 'a text that nobody draws {n}'\n" for n in range(50))
    )
    spec = importlib.util.spec_from_file_location("odd_constants", module)
    sys.modules["odd_constants"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules["odd_constants"])
        assert drawn() == before
    finally:
        del sys.modules["odd_constants"]


def test_without_a_seed_a_case_keeps_its_number():
    assert [seeds.seed_of(number, None) for number in (0, 7, 20241107)] == [0, 7, 20241107]


def test_a_seed_gives_other_cases_reproducibly():
    first, second = ([seeds.seed_of(number, seed) for number in range(1000)] for seed in (1, 2))
    assert len({*first, *second}) == 2000
    assert first == [seeds.seed_of(number, 1) for number in range(1000)]


@pytest.mark.slow
@pytest.mark.process
def test_a_run_is_repeated_by_its_seed_in_another_process():
    def run(seed, hash_seed):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, seeds.VARIABLE: seed}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=500)
        return done.stdout.split(maxsplit=2)

    fixed, (seed, first_seed, values) = run("", "1"), run("11", "2")
    assert fixed == ["None", "0", values]
    assert (seed, first_seed) == ("11", str(seeds.seed_of(0, 11)))


def test_fresh_seeds_draw_five_times_as_many_cases_in_a_long_search():
    assert (seeds.sized(2000, None), seeds.sized(2000, 7)) == (400, 2000)
    assert (seeds.sized(2000, None, part=20), seeds.sized(2000, 7, part=20)) == (100, 2000)


def test_fresh_seeds_draw_up_to_four_times_as_many_examples_of_hypothesis():
    fixed = [(seeds.examples_of(count, None)) for count in (8, 25, 40, 100, 400)]
    assert fixed == [8, 25, 25, 25, 100]
    assert [seeds.examples_of(count, 7) for count in (8, 100, 400)] == [8, 100, 400]


RUNS = []


@settings(max_examples=200)
@given(st.integers())
def test_a_test_of_the_default_run_draws_a_quarter_of_its_examples(number):
    RUNS.append(number)
    assert seeds.SEED is not None or len(RUNS) <= 50
