"""No test reads or fills the cache of the user who runs the tests."""

import os
import tempfile
from pathlib import Path

from smalti.cache.sources import detect_cache_folder


def test_the_cache_of_the_tests_is_a_temporary_folder():
    assert detect_cache_folder().parent == Path(os.environ["XDG_CACHE_HOME"])
    assert Path(os.environ["XDG_CACHE_HOME"]).parent == Path(tempfile.gettempdir())
