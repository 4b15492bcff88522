"""Reading a source as `convert` does: parts are pickled, and their batches have the schema."""

import pickle
from pathlib import Path

from smalti.conversion.registry import open_source
from smalti.conversion.source import SourceOptions

DATA = Path(__file__).parent / "foreign"


def source_of(place, format=None, *, columns=None, **settings):
    """Return the source at a place."""
    return open_source(place, format, SourceOptions(columns=columns, settings=settings))


def rows_of(source):
    """Return all rows, part by part."""
    found = []
    for part in source.parts():
        again = pickle.loads(pickle.dumps(part))
        for batch in again.batches():
            assert batch.schema == source.schema()
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def read(place, format=None, **options):
    """Return all rows of a place."""
    return rows_of(source_of(place, format, **options))
