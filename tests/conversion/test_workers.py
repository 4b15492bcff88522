"""Processes of a conversion that are killed: their parts are repeated, or named; none outlives the program."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from smalti import SmaltiError, convert
from smalti.conversion import conversion
from smalti.errors import SchemaError
from tests.canary import paths_below
from tests.conversion.rows import Numbers, NumberSource, ids_of

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


def killing(tmp_path, kill_at, kills=1):
    """Return a source whose second part kills the process that reads it."""
    marker = tmp_path / "marker"
    marker.write_text("")
    fatal = Numbers(10, (20, 20), kill_at=kill_at, marker=str(marker), kills=kills)
    return NumberSource([Numbers(0, (10,)), fatal, Numbers(50, (10,))])


@pytest.mark.parametrize(
    "kill_at", [1, pytest.param(0, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)]
)
def test_the_part_of_a_killed_process_is_written_again(tmp_path, kill_at):
    """Killed before the first row, after shards were stored, and after the last row."""
    out = tmp_path / "out"
    manifest = convert(killing(tmp_path, kill_at), out, processes=2, part_bytes=1, size_limit=60, compression=None)
    assert ids_of(out) == list(range(60))
    named = {file.basename for shard in manifest.shards for file in shard.stored_files}
    assert {str(path.relative_to(out)) for path in out.rglob("*.mds")} == named


@pytest.mark.nightly
def test_a_part_that_kills_every_process_is_named(tmp_path):
    source = killing(tmp_path, 1, kills=9)
    with pytest.raises(
        SmaltiError, match=r"part 1 \(numbers from 10\): .* ended 3 times, the last one killed by SIGKILL"
    ):
        convert(source, tmp_path / "out", processes=2, part_bytes=1)
    assert not (tmp_path / "out" / "index.json").exists()


def test_the_error_of_a_part_ends_the_others_and_leaves_no_shards(tmp_path):
    bad = Numbers(-5, (5,))
    source = NumberSource([Numbers(0, (10,)), bad, Numbers(10, (10,))])
    with pytest.raises(SchemaError, match=r"part 1 \(numbers from -5\): .*sample 0") as caught:
        convert(source, tmp_path / "out", columns={"id": "uint8"}, processes=2, part_bytes=1)
    assert caught.value.column == "id"
    assert list((tmp_path / "out").rglob("*.mds*")) == []


class Late(conversion.Group):
    """A task whose process is ended between its last shard and its answer."""

    def __call__(self, plan, attempt, report):
        answer = super().__call__(plan, attempt, report)
        time.sleep(60)
        return answer


class BadOnceStored(Numbers):
    """A part that cannot be stored, whose rows come when a shard of another part is there."""

    def batches(self):
        until = time.monotonic() + 280
        while not any(path.suffix == ".mds" for path in paths_below(Path(self.marker))) and time.monotonic() < until:
            time.sleep(0.01)
        yield from super().batches()


@pytest.mark.parametrize("columns", [{"id": "uint8"}, None], ids=["without splits", "in splits"])
def test_shards_of_a_process_that_is_ended_before_it_answers_are_removed(tmp_path, monkeypatch, columns):
    monkeypatch.setattr(conversion, "Group", Late)
    source = NumberSource([Numbers(0, (10,)), BadOnceStored(-5, (5,), marker=str(tmp_path))])
    options = {"columns": columns} if columns else {"transform": split_or_fail, "partition_by": "split"}
    with pytest.raises(SmaltiError, match=r"part 1 \(numbers from -5\)|negative"):
        convert(source, tmp_path, processes=2, part_bytes=1, compression=None, **options)
    assert list(tmp_path.rglob("*.mds*")) == []


def split_or_fail(batch):
    if batch.column("id")[0].as_py() < 0:
        raise SmaltiError("negative")
    return batch.append_column("split", pa.array(["train"] * batch.num_rows))


_PROGRAM = """
import signal, sys
from pathlib import Path
from smalti import convert
from tests.conversion.rows import NumberSource
from tests.conversion.test_workers import Endless

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
folder = Path(sys.argv[1])
convert(NumberSource([Endless(str(folder / f"pid-{place}")) for place in range(2)]), folder / "out", processes=2)
"""


class Endless:
    """A part that writes down its process, and has rows for ever."""

    num_bytes = 0

    def __init__(self, path):
        self.path = path

    @property
    def name(self):
        return f"endless {self.path[-1]}"

    def batches(self):
        Path(self.path).write_text(str(os.getpid()))
        while True:
            yield from Numbers(0, (1,)).batches()
            time.sleep(0.01)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(signal.SIGKILL, marks=pytest.mark.nightly),
    ],
)
def test_no_process_outlives_the_program(tmp_path, number):
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        pids = [wait_for_pid(tmp_path / f"pid-{place}") for place in range(2)]
        os.kill(program.pid, number)
        _, said = program.communicate(timeout=500)
    finally:
        program.kill()
    for pid in pids:
        wait_for_end(pid)
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in said
    assert not (tmp_path / "out" / "index.json").exists()
    if number != signal.SIGKILL:
        assert list((tmp_path / "out").rglob("*.mds*")) == []


def wait_for_pid(path):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path.name} was not written in 60 s")


def wait_for_end(pid):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or ") Z " in state.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} still runs")
