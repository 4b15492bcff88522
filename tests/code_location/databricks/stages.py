"""Functions that the tests run on the stand-in's cluster."""

import os
import time
from pathlib import Path

import dagster as dg

from smalti.errors import StoreTimeout


def add(report, one, two):
    """Say and return a sum, and where the code is from."""
    import smalti

    report(f"adding {one} and {two}")
    return {"sum": one + two, "code": smalti.__file__, "secret": len(os.environ.get("AWS_SECRET_ACCESS_KEY", ""))}


def fail(report):
    """Fail with a message for people, which holds a secret."""
    raise dg.Failure(f"no such table; {os.environ['AWS_SECRET_ACCESS_KEY']}", allow_retries=False)


def lose(report):
    """Fail as a storage that does not answer."""
    raise StoreTimeout("the store has not answered for 120 s")


def wait(report, path):
    """Say that it runs, by a file with its process id, and wait for ever."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def documents_by_day(session):
    """Return documents of two days, with letters of more than one byte."""
    words = "concat('Straße ', id, ' ', repeat('köln ', int(5 + id % 7)))"
    return session.range(60).selectExpr(f"{words} AS text", "element_at(array('mon', 'tue'), int(id % 2) + 1) AS day")
