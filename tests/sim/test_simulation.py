"""The protocol of versions, simulated by seed with races, kills, lost replies and clocks that are hours apart."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import seed_of, sized
from tests.sim.plants import PLANTS
from tests.sim.scenario import run

SEEDS = 2000
"""Of a search with fresh seeds."""
FOUND_AT = {
    "index_put_unconditionally": 1479,
    "vacuum_without_markers": 864,
    "vacuum_that_looks_at_tags_once": 2909,
    "compaction_over_a_newer_version": 546,
    "vacuum_that_forgets_tags": 557,
    "tag_without_a_second_look": 471,
    "timeout_forgotten": 142,
    "append_that_keeps_columns": 233,
    "rollback_to_what_was_removed": 547,
    "fence_ignored": 162,
    "unknown_is_a_refusal": 80,
    "split_index_left_behind": 28,
    "index_of_an_older_version": 28,
    "columns_beside_other_shards": 26,
    "all_attempts_taken": 18,
    "lost_reply_is_a_failure": 16,
    "published_before_uploads_end": 6,
    "cleaned_up_although_unknown": 9,
    "rerun_writes_again": 5,
    "version_as_old_as_itself": 3,
}
"""Seeds that found these plants last, tried first because a search from 0 takes seconds."""
ROOT = Path(__file__).parents[2]


@pytest.mark.search
@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in (1, 2, 3))])
def test_no_promise_is_broken_in_hundreds_of_runs(part):
    """A failure prints the seed and the command that replays it."""
    size = sized(SEEDS // 4, part=2)
    outcomes = [run(seed_of(seed)) for seed in range(part * size, (part + 1) * size)]
    assert [outcome.problem for outcome in outcomes if outcome.problem] == []
    assert {1, 2, 3} <= {outcome.versions for outcome in outcomes}, "runs that publish nothing prove nothing"


def test_no_promise_is_broken_in_the_first_runs():
    """A quick selection for development."""
    assert [outcome.problem for outcome in map(run, range(2000, 2020)) if outcome.problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant):
    with PLANTS[plant]() as habits:
        seeds = [FOUND_AT.get(plant, 0), *range(SEEDS)]
        found = next((outcome for seed in seeds if (outcome := run(seed, habits)).problem), None)
    assert found is not None
    assert not re.match(r"seed \d+: [A-Z]\w+: ", found.problem), "a promise is broken, and not the plant itself"
    assert found.problem.endswith(f"replay: python -m tests.sim.scenario {found.seed}")


def test_the_same_seed_gives_the_same_run():
    assert [run(seed).trace for seed in (5, 14, 76)] == [run(seed).trace for seed in (5, 14, 76)]
    assert run(5).trace != run(6).trace


@pytest.mark.slow
def test_a_seed_is_replayed_by_another_process_step_by_step():
    """The iteration order of sets differs between processes, and must not have any influence."""
    replayed = subprocess.run(
        [sys.executable, "-m", "tests.sim.scenario", "14"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1234"},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert tuple(replayed.stdout.splitlines()) == (*run(14).trace, "no promise was broken")
