"""A file of a ledger in segments is read as one file, and none of its segments can be missing unnoticed."""

import os

import numpy as np
import pytest

from smalti.cursor import Cursor
from smalti.errors import StoreError
from smalti.ledger import LedgerWriter, PassStart, check_ledger, claim_life
from smalti.ledger.records import segment_name
from smalti.world import World

CURSOR = Cursor(
    epoch=0, samples=0, seed=7, canonical_nodes=2, initial_hosts=1, digest="d1", split=None, epoch_size=40,
    shuffle=True, block_size=4,
)  # fmt: skip


@pytest.fixture
def written(tmp_path):
    """The file of a rank that read an epoch of 40 samples in ten steps."""
    with LedgerWriter(tmp_path, life=claim_life(tmp_path), world=World()) as writer:
        writer.begin_pass(PassStart(CURSOR, 4))
        for step in range(10):
            at = np.arange(4 * step, 4 * step + 4)
            writer.record(step, 0, at, at[::-1].copy())
        writer.end_pass()
    return writer.path


def cut(path, size):
    """Divide a file into segments of so many bytes, as a run in a store puts it; return their number."""
    data = path.read_bytes()
    for number, at in enumerate(range(0, len(data), size)):
        path.with_name(segment_name(path.name, number)).write_bytes(data[at : at + size])
    return -(-len(data) // size)


@pytest.mark.parametrize("size", [1, 7, 100, 1_000, 1 << 20])
def test_a_ledger_in_segments_of_any_size_proves_the_same(written, size):
    whole = check_ledger(written.parents[1]).to_dict()
    assert cut(written, size) >= 1
    assert check_ledger(written.parents[1]).to_dict() == whole
    assert (whole["ok"], whole["epochs"][0]["taken"]) == (True, 40)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (2, "its segment rank-00000.jsonl.2 is missing"),
        (0, "rank-00000.jsonl is missing, and segments of it are there"),
    ],
)
def test_a_segment_that_is_missing_before_others_is_damage(written, lost, message):
    cut(written, 100)
    written.with_name(segment_name(written.name, lost)).unlink()
    report = check_ledger(written.parents[1])
    assert not report.ok
    assert message in " ".join(problem.message for problem in report.problems)


def test_a_segment_that_is_no_plain_file_is_refused(written):
    os.mkfifo(written.with_name(segment_name(written.name, 1)))
    assert "only regular files are read" in check_ledger(written.parents[1]).problems[0].message


@pytest.mark.parametrize("address", ["s3://bucket/ledger", "memory://x/y", "dbfs:/Volumes/a/b", "hf://datasets/a/b"])
def test_an_address_is_not_taken_for_a_path(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (claim_life, check_ledger, lambda folder: LedgerWriter(folder, life=1, world=World())):
        with pytest.raises(StoreError, match="is an address, and a ledger is written and checked in a local folder"):
            use(address)
    assert list(tmp_path.iterdir()) == []
