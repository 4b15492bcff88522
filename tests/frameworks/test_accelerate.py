"""Hugging Face Accelerate with a StreamingDataLoader: mid-epoch save_state and load_state, every sample once."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

from examples.accelerate_resume import Life, main, run, seen_by, write_set  # noqa: E402 - only where it is installed
from smalti.errors import CursorError  # noqa: E402
from smalti.torch import StreamingDataLoader, StreamingDataset  # noqa: E402
from tests.frameworks.page import run_section  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.torch, pytest.mark.process]

WORKERS = [(0, "auto"), (2, "thread"), pytest.param(2, "process", marks=pytest.mark.slow)]


@pytest.fixture
def folder(tmp_path):
    write_set(tmp_path)
    return tmp_path


def flat(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize(("workers", "kind"), WORKERS)
@pytest.mark.parametrize("taken", [1, 12, 13])
def test_the_second_life_reads_the_rest_in_the_order_of_an_uninterrupted_run(folder, workers, kind, taken):
    after_whole = run(Life(folder, "whole"))
    run(Life(folder, "next", checkpoint=after_whole))
    checkpoint = run(Life(folder, "first", max_steps=taken, num_workers=workers, worker_kind=kind))
    run(Life(folder, "second", checkpoint=checkpoint, num_workers=workers, worker_kind=kind))
    expected = seen_by(folder, "whole") + (seen_by(folder, "next") if taken == 13 else [])
    assert seen_by(folder, "first") + seen_by(folder, "second") == expected
    assert seen_by(folder, "next") != seen_by(folder, "whole")


def test_a_loader_that_was_passed_to_prepare_is_refused(tmp_path):
    write_set(tmp_path)
    loader = StreamingDataLoader(StreamingDataset(remote=str(tmp_path / "set")), 4)
    prepared = accelerate.Accelerator(cpu=True).prepare(loader)
    with pytest.raises(CursorError, match="leave the loader out of Accelerate's `prepare`"):
        next(iter(prepared))


# ---------------------------------------------------------------------- several processes

LIFE = """
import json, sys
from pathlib import Path
from examples.accelerate_resume import Life, run
options = json.loads(sys.argv[1])
run(Life(**options | {"folder": Path(options["folder"])}))
"""


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def run_life(folder, ranks, **options):
    """Run one life on several ranks, with the variables that `accelerate launch` and torchrun set."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
    }
    arguments = [sys.executable, "-c", LIFE, json.dumps({"folder": str(folder)} | options)]
    started = [
        subprocess.Popen(
            arguments,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=500)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(120)
    assert [process.returncode for process in started] == [0] * ranks, said


@pytest.mark.slow
@pytest.mark.nightly
def test_two_ranks_begin_an_epoch_and_any_number_end_it(folder):
    run_life(folder, 2, name="first", max_steps=3, num_workers=1)
    checkpoint = str(folder / "first-checkpoint")
    run_life(folder, 2, name="two", checkpoint=checkpoint)
    run(Life(folder, "one", checkpoint=checkpoint))
    first = flat(seen_by(folder, "first", 0) + seen_by(folder, "first", 1))
    assert len(first) == len(set(first)) == 24
    two = [seen_by(folder, "two", rank) for rank in range(2)]
    assert [len(batches) for batches in two] == [4, 4]  # 26 left: 4 steps of 2 x 4, six repeats
    one = seen_by(folder, "one")
    assert len(one) == 7
    for rest in (flat(flat(two)), flat(one)):
        assert set(first) | set(rest) == set(range(50))
        assert len(set(first) & set(rest)) == len(rest) - 26  # nothing twice but what fills the last step


def test_the_example_runs(capsys):
    main()
    assert "6 + 7 steps, 50 of 50 samples seen" in capsys.readouterr().out


def test_the_page_runs_as_it_is_printed(tmp_path):
    names = run_section("Accelerate", tmp_path)
    assert len(names["rest"]) == 7
