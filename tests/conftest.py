"""Fixtures shared by the tests of all packages."""

import gc
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from tests import jvm, seeds
from tests.egress import egress_guard
from tests.recap import ENDED_JAVA, Recap, ended_java

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
WATCHED = str(Path(__file__).parent / "egress")

seeds.settle_hypothesis()
# Of the workers and of programs that tests start; a process cannot change its own any more.
os.environ.setdefault("PYTHONHASHSEED", "0")

# Of programs that tests start: an unbuffered one loses the rest of a long line if a signal interrupts its write.
os.environ.pop("PYTHONUNBUFFERED", None)

jvm.set_options()

gc.disable()  # until all tests are collected: what is imported and parametrized lives to the end

# A forked child never collects what other tests have left in memory: their destructors are for this process.
os.register_at_fork(after_in_child=gc.freeze)

# A process has one fork server, which the first test that needs one starts: with what most of its children import.
multiprocessing.set_forkserver_preload(["tests.dataset.rank_process", "tests.dataset.mixture_rank_process"])

# google-auth looks at this once, when it is imported: a fixture would come too late where an earlier test imported it.
os.environ["NO_GCE_CHECK"] = "true"

# Of this process and of programs that tests start: no test reads or fills the cache of the user who runs them.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="smalti-user-cache-")

# Before any fixture: servers and sessions that live longer than a test are watched too.
log, os.environ[egress_guard.LOG] = tempfile.mkstemp(prefix="smalti-egress-")
os.close(log)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [WATCHED, os.environ.get("PYTHONPATH")]))
sys.path.append(WATCHED)  # tests hand their own path on to children
egress_guard.watch()


ARCHIVING = pytest.StashKey["subprocess.Popen[bytes] | None"]()
"""The process that makes the archive of Spark's classes."""
SLOW_TO_START = {"spark", "azurite_http", "azurite_https", "gcs_url", "sftp"}
"""A JVM, and servers that are programs of their own: seconds before the first test of theirs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave out of the inner loop what waits for one of those to start; mark what draws cases by the seed."""
    searches = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
    for test in {getattr(item.obj, "__func__", item.obj) for item in searches}:  # one of many parametrized items
        seeds.settle_examples(test)
    for item in searches:
        item.add_marker(pytest.mark.search)
    for item in items:
        waits = SLOW_TO_START.intersection(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("nightly") is not None and "SMALTI_NIGHTLY" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="`make test-nightly` runs it"))
        if waits or item.get_closest_marker("process") is not None:
            item.add_marker(pytest.mark.slow)
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests import scheduling

        scheduling.sort_longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from tests import scheduling

    return scheduling.LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


PYSPARK_3_WARNINGS = (
    "ignore:distutils Version classes are deprecated:DeprecationWarning",  # with them it compares versions
    "ignore:is_(datetime64tz|categorical)_dtype is deprecated:DeprecationWarning",  # of pandas 2.2, which it calls
    r"ignore:unclosed <socket\.socket .*127\.0\.0\.1:ResourceWarning",  # to its JVM, of which it closes the file alone
)
"""PySpark 3.5's own, at every collected row; PySpark 4 has none of them."""


def pytest_configure(config):
    with suppress(PackageNotFoundError):
        for warning in PYSPARK_3_WARNINGS if version("pyspark").startswith("3.") else ():
            config.addinivalue_line("filterwarnings", warning)
    if not hasattr(config, "workerinput"):  # the workers' reports come to the process that started them
        config.pluginmanager.register(Recap())
        if config.getoption("numprocesses", None) and config.args_source is config.ArgsSource.TESTPATHS:
            from tests import rewriting

            rewriting.rewrite_once(config)
            config.stash[ARCHIVING] = jvm.begin_archive()
        if os.environ.get("SMALTI_TEST_DURATIONS"):
            from tests import scheduling

            config.pluginmanager.register(scheduling.Stopwatch())


def pytest_collection_finish():
    """Keep what was imported out of all later collections, and so out of what forked processes copy."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header():
    return seeds.explanation()


def pytest_unconfigure(config):
    archiving = config.stash.get(ARCHIVING, None)
    if archiving is not None:
        jvm.end_archive(archiving)
    Path(os.environ[egress_guard.LOG]).unlink(missing_ok=True)
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine():
    """A test that connects to, or looks up, anything but this machine fails."""
    yield
    assert egress_guard.take() == []


@pytest.fixture(autouse=True)
def ended_java_is_noted(record_property):
    """The recap names the test during which the JVM of this process's session ended: others use it later."""
    was_there = ended_java() is None
    yield
    if was_there and (status := ended_java()) is not None:
        record_property(ENDED_JAVA, status)


@pytest.fixture(autouse=True)
def same_numbers_drawn_each_time():
    """Seed the global generators of Python and torch, so that every run draws the same numbers."""
    random.seed(seeds.seed_of(0))
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seeds.seed_of(0))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden data and photos beside the project; the test is skipped where it is absent."""
    if not (SHARED / "golden").is_dir():
        pytest.skip(f"needs the shared test data, expected at {SHARED}")
    return SHARED
