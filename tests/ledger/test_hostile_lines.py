"""Truncated, foreign and malicious files are reported; they do not count, and they cannot block the check."""

import json
import os

import numpy as np
import pytest

from smalti.cursor import Cursor
from smalti.errors import StoreError
from smalti.ledger import LedgerWriter, PassStart, check_ledger
from smalti.world import World

CURSOR = Cursor(
    epoch=0, samples=0, seed=7, canonical_nodes=2, initial_hosts=1, digest="d1", split=None, epoch_size=6,
    shuffle=True, block_size=4,
)  # fmt: skip


@pytest.fixture
def file(tmp_path):
    """The path of a valid ledger file of one rank: head, pass, three steps of two samples, end."""
    with LedgerWriter(tmp_path, life=1, world=World()) as writer:
        writer.begin_pass(PassStart(CURSOR, 2))
        for step in range(3):
            writer.record(step, 0, np.array([2 * step, 2 * step + 1]), np.array([5 - step, step]))
        writer.end_pass()
    return writer.path


def check_with_line(file, number, line):
    """Replace line `number` (from 0), and check the ledger."""
    lines = file.read_bytes().splitlines(keepends=True)
    lines[number] = line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode() + b"\n"
    file.write_bytes(b"".join(lines))
    return check_ledger(file.parents[1])


def check_with_fields(file, number, **changes):
    """Change fields of line `number`, and check the ledger."""
    return check_with_line(file, number, json.loads(file.read_bytes().splitlines()[number]) | changes)


def test_the_ledger_is_valid_before_it_is_damaged(file):
    report = check_ledger(file.parents[1])
    assert report.ok
    assert report.epochs[0].taken == 6
    assert report.notes == []


def test_a_truncated_last_line_is_noted_and_does_not_count(file):
    whole = file.read_bytes()
    for cut in range(whole.rfind(b'{"step":2') + 1, whole.rfind(b'{"end"')):
        file.write_bytes(whole[:cut])
        report = check_ledger(file.parents[1])
        assert report.ok
        assert report.notes == [f"{file}: its last line is cut off, as by a kill; it does not count."]
        assert (report.epochs[0].taken, report.epochs[0].is_finished) == (4, False)


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_file_without_a_complete_head_is_damaged(file, cut):
    file.write_bytes(file.read_bytes()[:cut])
    report = check_ledger(file.parents[1])
    assert [problem.kind for problem in report.problems] == ["damaged"]
    assert "the rank died before it began" in report.problems[0].message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ids": [1.5, 2]}, "`ids` is not a list"),
        ({"ids": [-1, 2]}, "`ids` is not a list"),
        ({"ids": [1 << 70, 2]}, "`ids` is not a list"),
        ({"ids": [[1], [2]]}, "`ids` is not a list"),
        ({"ids": [[1], 2]}, "`ids` is not a list"),
        ({"ids": ["a", 2]}, "`ids` is not a list"),
        ({"ids": [True, False]}, "`ids` is not a list"),
        ({"ids": None}, "`ids` is not a list"),
        ({"ids": [1]}, "2 positions and 1 ids"),
        ({"at": [0]}, "`at` is not"),
        ({"at": [0, 0]}, "`at` is not"),
        ({"at": [(1 << 62) - 2, 1 << 39]}, "`at` is not"),
        ({"repeats": "many"}, "`repeats` is not a list"),
        ({"epoch": 1}, "a step of epoch 1 in a pass of epoch 0"),
        ({"epoch": "0"}, "`epoch` is not a whole number"),
    ],
)
def test_a_damaged_step_is_named_and_its_samples_are_missing(file, changes, why):
    if "ids" in changes and changes["ids"] == [1]:
        changes = {"positions": [2, 3], "ids": [1]}
        step = {"step": 1, "epoch": 0, **changes}
        report = check_with_line(file, 3, step)
    else:
        report = check_with_fields(file, 3, **changes)
    assert report.counts == {"damaged": 1, "gap": 2}
    assert f"{file}, line 4: " in report.problems[0].message
    assert why in report.problems[0].message
    assert "positions 2 to 3 of epoch 0: never taken" in report.problems[1].message


@pytest.mark.parametrize("ids", [b"1,", b"1,,2", b",1", b"1 2", b"99999999999999999999999,1", b"1.5,2", b"0x1,2", b""])
def test_numbers_that_json_would_refuse_are_refused_in_plain_lines_too(file, ids):
    report = check_with_line(file, 3, b'{"step":1,"epoch":0,"at":[2,1],"ids":[%s]}\n' % ids)
    assert report.counts["gap"] == 2
    assert report.counts.get("damaged", 0) == (ids != b"")  # no ids at all is a step of repeats only


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"\xff\xfe\n",
        b'{"step":1\n',
        b'{"pass":5}\n',
        b'{"end":7}\n',
        b'{"steps":1}\n',
        b"[" * 5000 + b"\n",
    ],
    ids=["empty", "list", "binary", "step", "pass", "end", "other", "deep"],
)
def test_the_rest_of_a_file_after_a_foreign_line_is_ignored(file, line):
    report = check_with_line(file, 3, line)
    assert report.counts["damaged"] == 1
    assert f"{file}, line 4: " in report.problems[0].message
    assert "The rest of the file is ignored." in report.problems[0].message
    assert report.epochs[0].taken == 2


@pytest.mark.parametrize(
    ("number", "changes", "why"),
    [
        (0, {"smalti_ledger": 2}, "reads up to 1"),
        (0, {"smalti_ledger": True}, "no whole number `smalti_ledger`"),
        (0, {"life": 2}, "it was copied or renamed"),
        (0, {"world": {}}, "whose `world` is not"),
        (
            0,
            {"world": {"rank": 0, "num_ranks": 2, "host": 0, "num_hosts": 1, "host_rank": 0, "ranks_on_host": 1}},
            "impossible",
        ),
        (1, {"cursor": {}}, "damaged cursor"),
        (1, {"cursor": []}, "without a `cursor`"),
        (1, {"tail": "cut"}, "`tail`"),
        (1, {"batch_size": 0}, "`batch_size`"),
        (1, {"replication": 1 << 70}, "`replication`"),
        (1, {"pass": 1}, "pass 1 begins where pass 0 is due"),
    ],
)
def test_an_impossible_head_or_pass_is_reported(file, number, changes, why):
    report = check_with_fields(file, number, **changes)
    assert not report.ok
    assert why in report.problems[0].message


def test_absurd_numbers_do_not_exhaust_memory(file):
    state = (CURSOR.to_state()) | {"smalti": CURSOR.to_state()["smalti"] | {"epoch_size": (1 << 62) - 1}}
    report = check_with_fields(file, 1, cursor=state)
    assert report.counts["gap"] == (1 << 62) - 1 - 6
    scattered = [{"step": 2, "epoch": 0, "positions": [(number << 20) for number in range(2000)], "ids": [0] * 2000}]
    report = check_with_line(file, 4, scattered[0])
    assert report.counts["damaged"] == 1
    assert "scattered" in report.problems[0].message


def test_positions_outside_the_epoch_are_named(file):
    report = check_with_fields(file, 4, at=[5, 1])
    assert [problem.kind for problem in report.problems] == ["outside", "gap"]
    assert report.problems[0].message == (
        "position 6 of epoch 0: taken as sample 2 by rank 0 at step 2 in life 1; the epoch has 6 samples."
    )


def test_foreign_files_are_ignored_and_noted(file):
    folder = file.parents[1]
    (folder / "notes.txt").write_text("hello")
    (file.parent / "rank-0.jsonl").write_text("hello")
    report = check_ledger(folder)
    assert report.ok
    assert sorted(report.notes) == [
        f"{file.parent / 'rank-0.jsonl'} is not part of a ledger: ignored.",
        f"{folder / 'notes.txt'} is not part of a ledger: ignored.",
    ]


def test_a_foreign_file_with_a_ranks_name_is_damage(file):
    (file.parent / "rank-00001.jsonl").write_text('{"event":"start"}\n')
    report = check_ledger(file.parents[1])
    assert [problem.kind for problem in report.problems] == ["damaged"]
    assert "not the head of a ledger" in report.problems[0].message


def test_a_named_pipe_with_a_ranks_name_does_not_block_the_check(file):
    os.mkfifo(file.parent / "rank-00001.jsonl")
    report = check_ledger(file.parents[1])
    assert "only regular files are read" in report.problems[0].message


def test_a_folder_with_a_ranks_name_is_damage(file):
    (file.parent / "rank-00001.jsonl").mkdir()
    assert not check_ledger(file.parents[1]).ok


def test_a_file_that_cannot_be_opened_is_an_error(file):
    (file.parent / "rank-00001.jsonl").symlink_to(file.parent / "nowhere")
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        check_ledger(file.parents[1])
    with pytest.raises(StoreError, match="cannot be read: Not a directory"):
        check_ledger(file)
