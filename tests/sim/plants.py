"""Bugs to plant, one at a time: what the simulator must find, or it proves nothing.

Each takes one thing away that the protocol rests on, in the real code or in how drivers behave, and nothing else.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from smalti.catalog.header import INDEX, header_key
from smalti.catalog.index import refresh
from smalti.catalog.publishing import commit, next_version, publish
from smalti.catalog.reading import find_newest
from smalti.catalog.retention import sweep
from smalti.errors import CommitConflict, CommitUnknown, DatasetExists, StoreError, StoreTimeout
from tests.sim import keepers
from tests.sim.actors import Habits
from tests.sim.store import SimStore

_TAGS = importlib.import_module("smalti.catalog.tags")
_VACUUM = importlib.import_module("smalti.catalog.retention.vacuum")
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
    with patch.object(publish, "check_stored", _nothing):
        yield Habits(waits_for_uploads=False)


@contextmanager
def all_attempts_taken() -> Iterator[Habits]:
    """The driver takes every answer, and not one of each task."""
    yield Habits(choose=lambda answers: sorted(answers, key=lambda answer: answer[0].task))


@contextmanager
def lost_reply_is_a_failure() -> Iterator[Habits]:
    """A put that was not answered counts as one that did not happen, and the shards are removed."""

    def planted(store: Any, header: Any, clock: Any) -> Any:
        del clock
        try:
            store.put_if_absent(header_key(header.version), header.emit())
        except StoreError as error:
            raise CommitConflict("taken for a failure") from error
        return header

    with patch.object(publish, "commit", planted):
        yield Habits()


@contextmanager
def cleaned_up_although_unknown() -> Iterator[Habits]:
    """The driver removes its shards after any failure."""
    yield Habits(cleans_up_after=(CommitConflict, DatasetExists, CommitUnknown))


@contextmanager
def somebody_elses_version_is_ours() -> Iterator[Habits]:
    """After a refused put the write id is not compared."""
    real = commit._read_back

    def read_back(store: Any, header: Any, clock: Any) -> Any:
        found = real(store, header, clock)
        return None if found is None else replace(found, write_id=header.write_id)

    with patch.object(commit, "_read_back", read_back):
        yield Habits()


@contextmanager
def index_of_an_older_version() -> Iterator[Habits]:
    """Who writes the index files does not look whether a newer version came meanwhile."""

    def refresh(store: Any, manifest: Any) -> None:
        refresh._write(store, manifest, stale=set())

    with patch.object(publish, "refresh_index", refresh):
        yield Habits()


@contextmanager
def index_put_whatever_is_there() -> Iterator[Habits]:
    """The condition of an index file's put is ignored; who wrote it still looks for newer versions afterwards."""

    real = SimStore.put_if_match

    def put(self: SimStore, key: str, data: bytes, etag: str) -> str:
        if key != INDEX:
            return real(self, key, data, etag)
        self.disk.world.sleep(self.actor, 2.0)  # whoever is slow between looking and putting does no harm otherwise
        self.put(key, data)
        return ""

    with patch.object(SimStore, "put_if_match", put):
        yield Habits()


@contextmanager
def rerun_writes_again() -> Iterator[Habits]:
    """A job that is started again takes a new write id."""
    yield Habits(keeps_write_id=False)


@contextmanager
def write_ids_forgotten() -> Iterator[Habits]:
    """A version does not say which writes came before it."""
    real = next_version.next_header

    def next_header(content: Any, write_id: str, step: Any) -> Any:
        return replace(real(content, write_id, step), writes={})

    with patch.object(publish, "next_header", next_header), patch.object(next_version, "next_header", next_header):
        yield Habits()


@contextmanager
def unknown_is_a_refusal() -> Iterator[Habits]:
    """An outcome that cannot be told is said to be none."""
    real = commit.commit

    def planted(store: Any, header: Any, clock: Any) -> Any:
        try:
            return real(store, header, clock)
        except CommitUnknown as error:
            raise CommitConflict("taken for a failure") from error

    with patch.object(publish, "commit", planted):
        yield Habits()


@contextmanager
def timeout_forgotten() -> Iterator[Habits]:
    """Of several tries the last one decides whether the outcome is known; as it was once."""
    real = commit.commit

    def planted(store: Any, header: Any, clock: Any) -> Any:
        try:
            return real(store, header, clock)
        except CommitUnknown as error:
            cause = error.__cause__
            if isinstance(cause, StoreError) and not isinstance(cause, StoreTimeout):
                raise cause from error
            raise

    with patch.object(publish, "commit", planted):
        yield Habits()


@contextmanager
def append_without_its_parent() -> Iterator[Habits]:
    """An append that was overtaken goes on with the shards that it had read first."""
    kept: dict[Any, Any] = {}
    real = next_version._shards

    def shards(store: Any, before: Any, draft: Any) -> Any:
        return kept.setdefault((store.disk, draft.write_id), real(store, before, draft))

    with patch.object(next_version, "_shards", shards):
        yield Habits()


@contextmanager
def vacuum_without_a_limit() -> Iterator[Habits]:
    """Whatever no version names goes, however young it is."""
    yield Habits(older_than=0.0)


@contextmanager
def vacuum_without_markers() -> Iterator[Habits]:
    """An object of a write that goes on goes as soon as it is old itself."""
    real = sweep.sweep

    def planted(listing: Any, known: Any, cutoff: float, unfinished: Any = ()) -> Any:
        writes = {info.key.split("/")[0] for info in listing if info.key.startswith("job")}
        return real(listing, replace(known, published={*known.published, *writes}), cutoff, unfinished)

    with patch.object(_VACUUM, "sweep", planted):
        yield Habits()


@contextmanager
def vacuum_without_a_fence() -> Iterator[Habits]:
    """A vacuum removes at once, and publishes nothing first."""
    with patch.object(_VACUUM, "announce_removal", lambda _, newest, *__, **___: newest):
        yield Habits()


@contextmanager
def fence_ignored() -> Iterator[Habits]:
    """A writer publishes although a vacuum took it for dead."""
    real = publish.check_target

    def check_target(store: Any, mode: Any, **options: Any) -> Any:
        newest = real(store, mode, **options)
        return newest if newest.header is None else replace(newest, header=replace(newest.header, fenced=()))

    with patch.object(publish, "check_target", check_target), patch.object(publish, "check_stored", _nothing):
        yield Habits()


@contextmanager
def vacuum_that_forgets_tags() -> Iterator[Habits]:
    """A version that has a name goes with its age."""
    with patch.object(_VACUUM, "tags", lambda _: {}):
        yield Habits()


@contextmanager
def vacuum_that_looks_at_tags_once() -> Iterator[Habits]:
    """A tag that was made between the first look and the version that says what goes is not seen."""
    real, announce_removal, said = _VACUUM.tags, _VACUUM.announce_removal, set()

    def planted(store: Any, *args: Any, **options: Any) -> Any:
        committed = announce_removal(store, *args, **options)
        if committed is not None:
            said.add(store)
        return committed

    def tags_of(store: Any) -> dict[str, int]:
        if store not in said:
            return real(store)
        said.remove(store)
        return {}

    with patch.object(_VACUUM, "tags", tags_of), patch.object(_VACUUM, "announce_removal", commit):
        yield Habits()


@contextmanager
def tag_without_a_second_look() -> Iterator[Habits]:
    """Who names a version does not look whether it went meanwhile."""
    with patch.object(_TAGS, "_is_expired", lambda *_: False):
        yield Habits()


@contextmanager
def version_as_old_as_itself() -> Iterator[Habits]:
    """A version goes when it was made long ago, though it was the newest until now."""
    with patch.object(_VACUUM, "header_key", lambda version: header_key(max(version - 1, 1))):
        yield Habits()


@contextmanager
def rollback_to_what_was_removed() -> Iterator[Habits]:
    """A rollback does not ask what a vacuum has removed, and looks at no shard."""
    real = publish._target

    def target(store: Any, newest: Any, version: int) -> Any:
        return real(store, replace(newest, expired=()), version)

    with patch.object(publish, "_target", target), patch.object(publish, "check_stored", _nothing):
        yield Habits()


@contextmanager
def compaction_over_a_newer_version() -> Iterator[Habits]:
    """What was put together replaces whatever is the newest."""
    with patch.object(keepers, "replace_content", _over_the_newest), patch.object(keepers, "adder", _nobody):
        yield Habits()


@contextmanager
def columns_beside_other_shards() -> Iterator[Habits]:
    """Columns of a version are published with its shards over whatever is the newest, an append among it."""
    with patch.object(keepers, "replace_content", _over_the_newest), patch.object(keepers, "compactor", _nobody):
        yield Habits()


def _over_the_newest(store: Any, draft: Any, *, based_on: int, **options: Any) -> Any:
    newest = find_newest(store).header
    based_on = based_on if newest is None else newest.version
    return keepers.in_world(store, draft, based_on=based_on, **options)


@contextmanager
def append_that_keeps_columns() -> Iterator[Habits]:
    """Rows are appended to a version with added columns, which the new ones lack."""

    def sidecars_after(parent: Any, draft: Any, mode: str) -> Any:
        return parent.sidecars if mode == "append" and parent is not None else tuple(draft.sidecars)

    with patch.object(next_version, "sidecars_after", sidecars_after):
        yield Habits()


@contextmanager
def vacuum_that_forgets_columns() -> Iterator[Habits]:
    """Only the shards of a version are kept, and not what lies beside them."""
    with patch.object(_VACUUM, "live_keys", lambda *_: ()):
        yield Habits()


@contextmanager
def split_index_left_behind() -> Iterator[Habits]:
    """The index file of a split stays when no version has that split any more."""
    with patch.object(refresh, "_remove_older", _nothing):
        yield Habits()


def _nobody(*_: object) -> Any:
    """An actor who does nothing."""
    return lambda _: None


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
        index_put_whatever_is_there,
        rerun_writes_again,
        write_ids_forgotten,
        unknown_is_a_refusal,
        timeout_forgotten,
        append_without_its_parent,
        vacuum_without_a_limit,
        vacuum_without_markers,
        vacuum_without_a_fence,
        fence_ignored,
        vacuum_that_forgets_tags,
        vacuum_that_looks_at_tags_once,
        tag_without_a_second_look,
        version_as_old_as_itself,
        rollback_to_what_was_removed,
        compaction_over_a_newer_version,
        columns_beside_other_shards,
        append_that_keeps_columns,
        vacuum_that_forgets_columns,
        split_index_left_behind,
    )
}
