"""Writing: the number of a life is unique, files are never shared, and complete lines survive a killed process."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smalti.cursor import Cursor
from smalti.errors import StoreError, StoreExists
from smalti.ledger import LedgerWriter, PassStart, check_ledger, claim_life
from smalti.world import World

ROOT = Path(__file__).resolve().parents[2]
CURSOR = Cursor(
    epoch=0, samples=0, seed=7, canonical_nodes=2, initial_hosts=1, digest="d1", split=None, epoch_size=8,
    shuffle=True, block_size=4,
)  # fmt: skip


def lines_of(writer):
    return [json.loads(line) for line in writer.path.read_text().splitlines()]


def test_a_file_begins_with_world_and_versions_and_a_pass_with_its_cursor(tmp_path):
    with LedgerWriter(tmp_path, life=3, world=World(1, 4, 0, 2, 1, 2)) as writer:
        writer.begin_pass(PassStart(CURSOR, 2, "short", replication=2))
    assert writer.path == tmp_path / "life-00003" / "rank-00001.jsonl"
    head, begun = lines_of(writer)
    assert (head["smalti_ledger"], head["life"]) == (1, 3)
    assert head["world"] == {
        "rank": 1, "num_ranks": 4, "host": 0, "num_hosts": 2, "host_rank": 1, "ranks_on_host": 2,
    }  # fmt: skip
    assert set(head["versions"]) == {"smalti", "numpy", "python"}
    assert (begun["pass"], begun["batch_size"], begun["tail"], begun["replication"]) == (0, 2, "short", 2)
    assert Cursor.from_state(begun["cursor"]) == CURSOR


def test_a_step_is_one_line_and_an_even_stride_is_two_numbers(tmp_path):
    with LedgerWriter(tmp_path, life=1, world=World()) as writer:
        writer.begin_pass(PassStart(CURSOR, 3))
        writer.record(0, 0, np.array([3, 5, -1]), np.array([17, 4, 8]))
        writer.record(1, 0, np.array([9, 4, 6]), np.array([1, 0, 2]))
        writer.record(2, 0, np.array([7]), np.array([5]))
        writer.record(3, 0, np.array([-1]), np.array([6]))
    assert lines_of(writer)[2:] == [
        {"step": 0, "epoch": 0, "at": [3, 2], "ids": [17, 4], "repeats": [8]},
        {"step": 1, "epoch": 0, "positions": [9, 4, 6], "ids": [1, 0, 2]},
        {"step": 2, "epoch": 0, "at": [7, 1], "ids": [5]},
        {"step": 3, "epoch": 0, "positions": [], "ids": [], "repeats": [6]},
    ]


def test_concurrent_claims_of_lives_get_different_numbers(tmp_path):
    folder = tmp_path / "deep" / "ledger"
    with ThreadPoolExecutor(8) as pool:
        lives = list(pool.map(lambda _: claim_life(folder), range(24)))
    assert sorted(lives) == list(range(1, 25))
    assert claim_life(folder) == 25


def test_a_rank_cannot_write_a_life_twice(tmp_path):
    LedgerWriter(tmp_path, life=1, world=World()).close()
    with pytest.raises(StoreExists, match="rank 0 has written life 1 before; each start of a run needs a number"):
        LedgerWriter(tmp_path, life=1, world=World())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="no life can be claimed there"):
        claim_life(file)
    with pytest.raises(StoreError, match="cannot be written"):
        LedgerWriter(file, life=1, world=World())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
def test_a_full_disk_is_an_error(tmp_path):
    with LedgerWriter(tmp_path, life=1, world=World()) as writer:
        writer.begin_pass(PassStart(CURSOR, 1))
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._descriptor)
        os.close(full)
        with pytest.raises(StoreError, match="No space left on device"):
            writer.record(0, 0, np.array([0]), np.array([0]))


def test_a_step_before_a_pass_or_of_unequal_vectors_is_refused(tmp_path):
    with LedgerWriter(tmp_path, life=1, world=World()) as writer:
        with pytest.raises(ValueError, match="0 passes begun"):
            writer.record(0, 0, np.array([0]), np.array([0]))
        writer.begin_pass(PassStart(CURSOR, 1))
        with pytest.raises(ValueError, match=r"\(2,\) and \(1,\)"):
            writer.record(0, 0, np.array([0, 1]), np.array([0]))


KILLED = """
import sys, os, signal
import numpy as np
from smalti.ledger import LedgerWriter, PassStart
from smalti.world import World
from tests.ledger.test_writing import CURSOR
writer = LedgerWriter(sys.argv[1], life=1, world=World())
writer.begin_pass(PassStart(CURSOR, 2))
for step in range(3):
    writer.record(step, 0, np.array([2 * step, 2 * step + 1]), np.array([step, step + 4]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_recorded_lines_survive_sigkill(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=500, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    report = check_ledger(tmp_path)
    assert report.ok
    assert (report.epochs[0].taken, report.epochs[0].is_finished) == (6, False)
