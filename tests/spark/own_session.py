"""The Spark session of the tests: one per process while all tests use the same master, because a new one is expensive.

Each file has it as if it were new: with the settings that it had at first, and without views and cached tables.
"""

import atexit
import contextlib

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from smalti.spark.session import SparkOptions, build_session, forget_ended_java

_settings: dict[SparkContext, dict[str, str]] = {}
"""SQL settings that the running session had at first, by its context."""


@contextlib.contextmanager
def own_session(master="local[2,2]"):
    """Return the session of this process: two cores, and a failed task is tried once more."""
    forget_ended_java()
    context = SparkContext._active_spark_context
    if context is not None and (context.master != master or context not in _settings):
        stop_session()
    options = SparkOptions(master, "smalti-tests", "1g", {"spark.python.daemon.module": "tests.spark.warm_daemon"})
    session = build_session(options)
    if session.sparkContext not in _settings:
        _settings.clear()
        _settings[session.sparkContext] = settings_of(session)
    try:
        yield session
    finally:
        if SparkContext._active_spark_context is session.sparkContext:
            clear(session)


def settings_of(session):
    """Return the settings of a session that can be changed while it runs."""
    if hasattr(session.conf, "getAll"):
        settings = dict(session.conf.getAll)
    else:  # PySpark 3.5
        pairs = session._jsparkSession.conf().getAll().toSeq()
        settings = {pairs.apply(i)._1(): pairs.apply(i)._2() for i in range(pairs.size())}
    return {name: value for name, value in settings.items() if session.conf.isModifiable(name)}


def clear(session):
    """Undo what tests changed in a session."""
    first, now = _settings[session.sparkContext], settings_of(session)
    for name in now.keys() - first.keys():
        session.conf.unset(name)
    for name, value in first.items():
        if now.get(name) != value:
            session.conf.set(name, value)
    for table in session.catalog.listTables():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)
    session.catalog.clearCache()


def stop_session():
    """Stop the session of this process, so that the next one can be of another kind."""
    if (active := SparkSession.getActiveSession()) is not None:
        active.stop()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()


def _stop_at_exit():
    with contextlib.suppress(OSError, Py4JNetworkError):  # its JVM has ended before
        stop_session()


atexit.register(_stop_at_exit)
