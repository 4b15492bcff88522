"""Planted bugs, one at a time, which the simulation must find; else its passing would prove nothing.

Each removes one thing that the protocol relies on, in the real code or in the behaviour of drivers.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from smalti.catalog import commit, index, next_version, publishing
from smalti.catalog.manifest import INDEX, header_key
from smalti.catalog.opening import find_newest
from smalti.catalog.retention import sweep
from smalti.errors import CommitConflict, CommitUnknown, DatasetExists, StoreError, StoreTimeout
from tests.sim import maintenance
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
    """Tasks answer before their shards are stored, and publishing does not check them."""
    with patch.object(publishing, "check_stored", _do_nothing):
        yield Habits(waits_for_uploads=False)


@contextmanager
def all_attempts_taken() -> Iterator[Habits]:
    """The driver uses every answer instead of one of each task."""
    yield Habits(choose=lambda answers: sorted(answers, key=lambda answer: answer[0].task))


@contextmanager
def lost_reply_is_a_failure() -> Iterator[Habits]:
    """A put without a reply counts as failed, and the shards are removed."""

    def planted(store: Any, header: Any, clock: Any) -> Any:
        del clock
        try:
            store.put_if_absent(header_key(header.version), header.emit())
        except StoreError as error:
            raise CommitConflict("counted as a failure") from error
        return header

    with patch.object(publishing, "commit", planted):
        yield Habits()


@contextmanager
def cleaned_up_although_unknown() -> Iterator[Habits]:
    """The driver removes its shards after any failure."""
    yield Habits(cleans_up_after=(CommitConflict, DatasetExists, CommitUnknown))


@contextmanager
def another_writers_version_is_ours() -> Iterator[Habits]:
    """The write id is not compared after a refused put."""
    real = commit._read_back

    def read_back(store: Any, header: Any, clock: Any) -> Any:
        found = real(store, header, clock)
        return None if found is None else replace(found, write_id=header.write_id)

    with patch.object(commit, "_read_back", read_back):
        yield Habits()


@contextmanager
def index_of_an_older_version() -> Iterator[Habits]:
    """A publisher does not look for newer versions when it writes the index files."""

    def write_only(store: Any, manifest: Any, **_: Any) -> None:
        index._write(store, manifest, stale=set(), lists_shards=True)

    with patch.object(publishing, "refresh_index", write_only):
        yield Habits()


@contextmanager
def index_put_unconditionally() -> Iterator[Habits]:
    """Index files are put unconditionally; the publisher still looks for newer versions afterwards."""

    real = SimStore.put_if_match

    def put(self: SimStore, key: str, data: bytes, etag: str) -> str:
        if key != INDEX:
            return real(self, key, data, etag)
        self.disk.world.sleep(self.actor, 2.0)  # without a delay between reading and putting there is no harm
        self.put(key, data)
        return ""

    with patch.object(SimStore, "put_if_match", put):
        yield Habits()


@contextmanager
def rerun_writes_again() -> Iterator[Habits]:
    """A job that is started again uses a new write id."""
    yield Habits(keeps_write_id=False)


@contextmanager
def write_ids_forgotten() -> Iterator[Habits]:
    """Headers do not list earlier writes."""
    real = next_version.next_header

    def next_header(content: Any, write_id: str, step: Any) -> Any:
        return replace(real(content, write_id, step), writes={})

    with patch.object(publishing, "next_header", next_header), patch.object(next_version, "next_header", next_header):
        yield Habits()


@contextmanager
def unknown_is_a_refusal() -> Iterator[Habits]:
    """An unknown outcome is reported as a failure."""
    real = commit.commit

    def planted(store: Any, header: Any, clock: Any) -> Any:
        try:
            return real(store, header, clock)
        except CommitUnknown as error:
            raise CommitConflict("counted as a failure") from error

    with patch.object(publishing, "commit", planted):
        yield Habits()


@contextmanager
def timeout_forgotten() -> Iterator[Habits]:
    """Only the last of several attempts decides whether the outcome is known."""
    real = commit.commit

    def planted(store: Any, header: Any, clock: Any) -> Any:
        try:
            return real(store, header, clock)
        except CommitUnknown as error:
            cause = error.__cause__
            if isinstance(cause, StoreError) and not isinstance(cause, StoreTimeout):
                raise cause from error
            raise

    with patch.object(publishing, "commit", planted):
        yield Habits()


@contextmanager
def append_without_its_parent() -> Iterator[Habits]:
    """An append that was overtaken keeps the parent's shards that it read first."""
    kept: dict[Any, Any] = {}
    real = next_version._shards

    def shards(store: Any, before: Any, draft: Any) -> Any:
        return kept.setdefault((store.disk, draft.write_id), real(store, before, draft))

    with patch.object(next_version, "_shards", shards):
        yield Habits()


@contextmanager
def vacuum_without_a_limit() -> Iterator[Habits]:
    """A vacuum removes unreferenced objects of any age."""
    yield Habits(older_than=0.0)


@contextmanager
def vacuum_without_markers() -> Iterator[Habits]:
    """Objects of a write in progress are removed as soon as they are old themselves."""
    real = sweep.sweep

    def planted(listing: Any, known: Any, cutoff: float, unfinished: Any = ()) -> Any:
        writes = {info.key.split("/")[0] for info in listing if info.key.startswith("job")}
        return real(listing, replace(known, published={*known.published, *writes}), cutoff, unfinished)

    with patch.object(_VACUUM, "sweep", planted):
        yield Habits()


@contextmanager
def vacuum_without_a_fence() -> Iterator[Habits]:
    """A vacuum removes objects without publishing a version first."""
    with patch.object(_VACUUM, "announce_removal", lambda _, newest, *__, **___: newest):
        yield Habits()


@contextmanager
def fence_ignored() -> Iterator[Habits]:
    """A writer publishes although its write id is fenced."""
    real = publishing.check_target

    def check_target(store: Any, mode: Any, **options: Any) -> Any:
        newest = real(store, mode, **options)
        return newest if newest.header is None else replace(newest, header=replace(newest.header, fenced=()))

    with patch.object(publishing, "check_target", check_target), patch.object(publishing, "check_stored", _do_nothing):
        yield Habits()


@contextmanager
def vacuum_that_forgets_tags() -> Iterator[Habits]:
    """A vacuum ignores tags."""
    with patch.object(_VACUUM, "tags", lambda _: {}):
        yield Habits()


@contextmanager
def vacuum_that_looks_at_tags_once() -> Iterator[Habits]:
    """A vacuum does not read the tags again after it has published its version."""
    real, announce, announced = _VACUUM.tags, _VACUUM.announce_removal, set()

    def planted(store: Any, *args: Any, **options: Any) -> Any:
        committed = announce(store, *args, **options)
        if committed is not None:
            announced.add(store)
        return committed

    def tags_of(store: Any) -> dict[str, int]:
        if store not in announced:
            return real(store)
        announced.remove(store)
        return {}

    with patch.object(_VACUUM, "tags", tags_of), patch.object(_VACUUM, "announce_removal", planted):
        yield Habits()


@contextmanager
def tag_without_a_second_look() -> Iterator[Habits]:
    """Tagging does not check afterwards whether the version was expired in between."""
    with patch.object(_TAGS, "_is_expired", lambda *_: False):
        yield Habits()


@contextmanager
def version_as_old_as_itself() -> Iterator[Habits]:
    """A version expires by its own age, though it was the newest until now."""
    with patch.object(_VACUUM, "header_key", lambda version: header_key(max(version - 1, 1))):
        yield Habits()


@contextmanager
def rollback_to_what_was_removed() -> Iterator[Habits]:
    """A rollback ignores expired versions, and checks neither the table of shards nor the shards."""
    real = publishing.find_newest

    def find_newest(store: Any, **options: Any) -> Any:
        newest = real(store, **options)
        return replace(
            newest, header=newest.header and replace(newest.header, expired=_Overlooked(newest.header.expired))
        )

    with (
        patch.object(publishing, "find_newest", find_newest),
        patch.object(publishing, "_check_rolled_back", _do_nothing),
    ):
        yield Habits()


class _Overlooked(tuple[int, ...]):
    """Numbers of versions that are carried on, but in which none is found."""

    def __contains__(self, _: object) -> bool:
        return False


@contextmanager
def compaction_over_a_newer_version() -> Iterator[Habits]:
    """A compaction replaces the newest version, whatever it is."""
    with patch.object(maintenance, "replace_content", _over_the_newest), patch.object(maintenance, "adder", _no_actor):
        yield Habits()


@contextmanager
def columns_beside_other_shards() -> Iterator[Habits]:
    """Added columns are published with the shards of their base over the newest version, whatever it is."""
    with (
        patch.object(maintenance, "replace_content", _over_the_newest),
        patch.object(maintenance, "compactor", _no_actor),
    ):
        yield Habits()


def _over_the_newest(store: Any, draft: Any, *, based_on: int, **options: Any) -> Any:
    newest = find_newest(store).header
    based_on = based_on if newest is None else newest.version
    return maintenance.replace_content_in_simulation(store, draft, based_on=based_on, **options)


@contextmanager
def append_that_keeps_columns() -> Iterator[Habits]:
    """Rows can be appended to a version with added columns, which the new rows lack."""

    def sidecars_after(parent: Any, draft: Any, mode: str) -> Any:
        return parent.sidecars if mode == "append" and parent is not None else tuple(draft.sidecars)

    with patch.object(next_version, "sidecars_after", sidecars_after):
        yield Habits()


@contextmanager
def vacuum_that_forgets_columns() -> Iterator[Habits]:
    """A vacuum keeps the shards of a version, but not those of its added columns."""
    with patch.object(_VACUUM, "live_keys", lambda *_: ()):
        yield Habits()


@contextmanager
def split_index_left_behind() -> Iterator[Habits]:
    """The index file of a split that the newest version does not have stays."""
    real = index._write

    def write(store: Any, manifest: Any, stale: set[str], **options: Any) -> None:
        real(store, manifest, set(), **options)

    with patch.object(index, "_write", write):
        yield Habits()


def _no_actor(*_: object) -> Any:
    """Return an actor that does nothing."""
    return lambda _: None


def _do_nothing(*_: object) -> None:
    """Skip a check."""


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        unconditional_put,
        published_before_uploads_end,
        all_attempts_taken,
        lost_reply_is_a_failure,
        cleaned_up_although_unknown,
        another_writers_version_is_ours,
        index_of_an_older_version,
        index_put_unconditionally,
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
