"""Assertions of all test files are rewritten once, before the workers of xdist start: each would rewrite them all.

In a fresh clone, as CI has one, that is a quarter of what a worker does before its first test.
"""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

FOLDER = Path(__file__).parent


def rewrite_once(config: pytest.Config) -> None:
    """Leave the rewritten files where pytest looks for them, unless they are there, on all cores."""
    state = config.stash.get(rewrite.assertstate_key, None)
    if sys.dont_write_bytecode or state is None or state.mode != "rewrite":
        return
    files = sorted([*FOLDER.rglob("test_*.py"), *FOLDER.rglob("conftest.py")])
    fork, cores = multiprocessing.get_context("fork"), os.cpu_count() or 1
    parts = [fork.Process(target=_rewrite, args=(config, files[part::cores])) for part in range(cores)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()


def _rewrite(config: pytest.Config, files: Sequence[Path]) -> None:
    state = config.stash[rewrite.assertstate_key]
    for file in files:
        folder = rewrite.get_cache_dir(file)
        cached = folder / (file.stem + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(folder) and rewrite._read_pyc(file, cached, state.trace) is None:
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source_hash, cached)
