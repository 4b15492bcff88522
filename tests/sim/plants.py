"""Bugs to plant, one at a time: what the simulator must find, or it proves nothing.

Each takes one thing away that the protocol rests on, in the real code or in how drivers behave, and nothing else.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from smalti.catalog import committing, indexing, publishing, successors, sweeping
from smalti.catalog.header import header_key
from smalti.errors import CommitConflict, CommitUnknown, DatasetExists, StoreError, StoreTimeout
from tests.sim.actors import Habits
from tests.sim.store import SimStore

_VACUUM = importlib.import_module("smalti.catalog.vacuum")
Plant = Callable[[], AbstractContextManager[Habits]]


@contextmanager
def unconditional_put() -> Iterator[Habits]:
    """The store ignores the condition of the one put that must have it."""

    def put(self: SimStore, key: str, data: bytes) -> None:
        self.put(key, data)

    with patch.object(SimStore, "put_if_absent", put):
        yield Habits()


@contextmanager
def published_before_uploads_end() -> Iterator[Habits]:
    """Tasks answer before their shards are stored, and nobody looks."""
    with patch.object(publishing, "check_stored", _nothing):
        yield Habits(waits_for_uploads=False)


@contextmanager
def all_attempts_taken() -> Iterator[Habits]:
    """The driver takes every answer, and not one of each task."""
    yield Habits(choose=lambda answers: sorted(answers, key=lambda answer: answer[0].task))


@contextmanager
def lost_reply_is_a_failure() -> Iterator[Habits]:
    """A put that was not answered counts as one that did not happen, and the shards are removed."""

    def commit(store: Any, header: Any, clock: Any) -> Any:
        del clock
        try:
            store.put_if_absent(header_key(header.version), header.emit())
        except StoreError as error:
            raise CommitConflict("taken for a failure") from error
        return header

    with patch.object(publishing, "commit", commit):
        yield Habits()


@contextmanager
def cleaned_up_although_unknown() -> Iterator[Habits]:
    """The driver removes its shards after any failure."""
    yield Habits(cleans_up_after=(CommitConflict, DatasetExists, CommitUnknown))


@contextmanager
def somebody_elses_version_is_ours() -> Iterator[Habits]:
    """After a refused put the write id is not compared."""
    real = committing._read_back

    def read_back(store: Any, header: Any, clock: Any) -> Any:
        found = real(store, header, clock)
        return None if found is None else replace(found, write_id=header.write_id)

    with patch.object(committing, "_read_back", read_back):
        yield Habits()


@contextmanager
def index_of_an_older_version() -> Iterator[Habits]:
    """Who writes the index files does not look whether a newer version came meanwhile."""

    def refresh(store: Any, manifest: Any) -> None:
        indexing._write(store, manifest, stale=set())

    with patch.object(publishing, "refresh_index", refresh):
        yield Habits()


@contextmanager
def rerun_writes_again() -> Iterator[Habits]:
    """A job that is started again takes a new write id."""
    yield Habits(keeps_write_id=False)


@contextmanager
def write_ids_forgotten() -> Iterator[Habits]:
    """A version does not say which writes came before it."""
    real = successors.following

    def following(content: Any, write_id: str, step: Any) -> Any:
        return replace(real(content, write_id, step), writes={})

    with patch.object(publishing, "following", following), patch.object(successors, "following", following):
        yield Habits()


@contextmanager
def unknown_is_a_refusal() -> Iterator[Habits]:
    """An outcome that cannot be told is said to be none."""
    real = committing.commit

    def commit(store: Any, header: Any, clock: Any) -> Any:
        try:
            return real(store, header, clock)
        except CommitUnknown as error:
            raise CommitConflict("taken for a failure") from error

    with patch.object(publishing, "commit", commit):
        yield Habits()


@contextmanager
def timeout_forgotten() -> Iterator[Habits]:
    """Of several tries the last one decides whether the outcome is known; as it was once."""
    real = committing.commit

    def commit(store: Any, header: Any, clock: Any) -> Any:
        try:
            return real(store, header, clock)
        except CommitUnknown as error:
            cause = error.__cause__
            if isinstance(cause, StoreError) and not isinstance(cause, StoreTimeout):
                raise cause from error
            raise

    with patch.object(publishing, "commit", commit):
        yield Habits()


@contextmanager
def append_without_its_parent() -> Iterator[Habits]:
    """An append that was overtaken goes on with the shards that it had read first."""
    kept: dict[Any, Any] = {}
    real = successors._shards

    def shards(store: Any, before: Any, draft: Any) -> Any:
        return kept.setdefault((store.disk, draft.write_id), real(store, before, draft))

    with patch.object(successors, "_shards", shards):
        yield Habits()


@contextmanager
def vacuum_without_a_limit() -> Iterator[Habits]:
    """Whatever no version names goes, however young it is."""
    yield Habits(older_than=0.0)


@contextmanager
def vacuum_without_markers() -> Iterator[Habits]:
    """An object of a write that goes on goes as soon as it is old itself."""
    real = sweeping.sweep

    def sweep(listing: Any, known: Any, cutoff: float) -> Any:
        writes = {info.key.split("/")[0] for info in listing if info.key.startswith("job")}
        return real(listing, replace(known, published={*known.published, *writes}), cutoff)

    with patch.object(_VACUUM, "sweep", sweep):
        yield Habits()


@contextmanager
def vacuum_without_a_fence() -> Iterator[Habits]:
    """A vacuum removes at once, and publishes nothing first."""
    with patch.object(_VACUUM, "commit_same", lambda _, newest, *__, **___: newest):
        yield Habits()


@contextmanager
def fence_ignored() -> Iterator[Habits]:
    """A writer publishes although a vacuum took it for dead."""
    real = publishing.check_target

    def check_target(store: Any, mode: Any, **options: Any) -> Any:
        newest = real(store, mode, **options)
        return newest if newest.header is None else replace(newest, header=replace(newest.header, fenced=()))

    with patch.object(publishing, "check_target", check_target), patch.object(publishing, "check_stored", _nothing):
        yield Habits()


def _nothing(*_: object) -> None:
    """Look at nothing."""


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        unconditional_put,
        published_before_uploads_end,
        all_attempts_taken,
        lost_reply_is_a_failure,
        cleaned_up_although_unknown,
        somebody_elses_version_is_ours,
        index_of_an_older_version,
        rerun_writes_again,
        write_ids_forgotten,
        unknown_is_a_refusal,
        timeout_forgotten,
        append_without_its_parent,
        vacuum_without_a_limit,
        vacuum_without_markers,
        vacuum_without_a_fence,
        fence_ignored,
    )
}
