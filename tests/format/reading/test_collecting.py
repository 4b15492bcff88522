"""The collector is paused while large files are parsed, and only then."""

import gc

import pytest

from smalti.errors import IndexFileError
from smalti.format import parse_index
from smalti.format.index import uncollected


def test_the_collector_runs_again_after_nested_blocks():
    assert gc.isenabled()
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_runs_again_after_a_file_that_is_refused():
    with pytest.raises(IndexFileError):
        parse_index(b'{"version": 2, "shards": [{}]}', where="index.json")
    assert gc.isenabled()
