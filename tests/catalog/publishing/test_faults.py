"""Publishing under faults: races, lost replies, kills at every step. The invariant: the old version or the new one."""

import contextlib
import threading

import pytest

from smalti.catalog import history, load_manifest, publish, verify
from smalti.errors import (
    CommitConflict,
    CommitUnknown,
    DatasetExists,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import parse_index
from smalti.storage import LocalStore
from tests.stores import Killed, MemoryStore

HEADER = "_versions/00000001.json"


def run_all(work, count):
    """Run `work(0)` to `work(count - 1)` concurrently in threads; return what each returned or raised."""
    results: list = [None] * count
    barrier = threading.Barrier(count, timeout=500)

    def one(who):
        barrier.wait()
        try:
            results[who] = work(who)
        except BaseException as error:
            results[who] = error

    threads = [threading.Thread(target=one, args=(who,), daemon=True) for who in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert None not in results, "a writer hangs"
    return results


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


def check_chain(store):
    """Check that versions 1 to n are complete, without a gap, each write once, and that the index shows the newest."""
    lines = history(store)
    assert [line.version for line in lines] == list(range(1, len(lines) + 1))
    assert [line.parent for line in lines] == [None, *range(1, len(lines))]
    assert len({line.write_id for line in lines}) == len(lines)
    for line in lines:
        assert verify(store, version=line.version).ok
    shards, extra = parse_index(store.get("index.json"), where="x")
    assert extra["smalti"]["version"] == len(lines)
    assert tuple(shard.raw.basename for shard in shards) == tuple(
        shard.raw.basename for shard in load_manifest(store).shards
    )
    return lines


def winners_of_a_create_race(store, make_draft, count=8):
    drafts = [make_draft(store, 3, first=10 * who) for who in range(count)]
    results = run_all(lambda who: publish(store, drafts[who]), count)
    return [result for result in results if not isinstance(result, BaseException)], results


def test_of_eight_creators_exactly_one_wins(store, make_draft):
    winners, results = winners_of_a_create_race(store, make_draft)
    assert len(winners) == 1
    assert all(isinstance(result, CommitConflict | DatasetExists) for result in results if result not in winners)
    assert load_manifest(store) == winners[0]
    check_chain(store)


def test_of_eight_overwriters_each_success_is_one_version(store, make_draft):
    publish(store, make_draft(store, 2))
    drafts = [make_draft(store, 3, first=10 * who) for who in range(8)]
    results = run_all(lambda who: publish(store, drafts[who], mode="overwrite"), 8)
    made = [result for result in results if not isinstance(result, BaseException)]
    assert made
    assert all(isinstance(result, CommitConflict) for result in results if isinstance(result, BaseException))
    lines = check_chain(store)
    assert {line.write_id for line in lines[1:]} == {manifest.write_id for manifest in made}


def test_eight_appenders_all_get_in_and_no_row_is_lost(store, make_draft):
    publish(store, make_draft(store, 2))
    drafts = [make_draft(store, 3, first=10 * who) for who in range(8)]
    results = run_all(lambda who: publish(store, drafts[who], mode="append"), 8)
    assert [result for result in results if isinstance(result, BaseException)] == []
    lines = check_chain(store)
    assert [line.rows for line in lines] == [2 + 3 * n for n in range(9)]


def test_one_write_published_by_eight_processes_is_one_version(store, make_draft):
    draft = make_draft(store, 5)
    results = run_all(lambda who: publish(store, draft), 8)
    assert all(result == results[0] for result in results), results
    assert len(check_chain(store)) == 1


def test_the_race_test_can_fail(make_draft):
    """Negative control: on a store that ignores the condition, and hides it from the probe, several writers win."""
    store = MemoryStore()
    store.plant("put_if_absent", key=HEADER, ignore_if_absent=True, delay=0.05)
    winners, _ = winners_of_a_create_race(store, make_draft)
    assert len(winners) > 1


def test_a_store_that_ignores_conditions_is_refused(make_draft):
    store = MemoryStore()
    store.plant("put_if_absent", ignore_if_absent=True)
    with pytest.raises(StoreError, match="conditional"):
        publish(store, make_draft(store))
    assert not store.exists(HEADER)


def test_a_lost_reply_is_settled_by_reading_back(make_draft):
    store = MemoryStore()
    draft = make_draft(store)
    store.plant("put_if_absent", key=HEADER, lost_ack=True, times=1, error=StoreTimeout("no reply"))
    made = publish(store, draft)
    assert (made.version, made.write_id) == (1, draft.write_id)
    assert len(check_chain(store)) == 1


def test_a_conflict_with_our_own_retried_put_is_a_success(make_draft):
    """The client library retries by itself: the first put takes effect, the second finds an existing object."""
    store = MemoryStore()
    draft = make_draft(store)

    class Retrying(MemoryStore):
        def put_if_absent(self, key, data):
            super().put_if_absent(key, data)
            if key == HEADER:
                super().put_if_absent(key, data)

    twice = Retrying()
    twice.objects.update(store.objects)
    assert publish(twice, draft).version == 1


def test_a_put_that_did_not_take_effect_is_repeated(make_draft):
    store = MemoryStore()
    store.plant("put_if_absent", key=HEADER, error=StoreTimeout("no reply"), times=2)
    assert publish(store, make_draft(store)).version == 1
    check_chain(store)


def test_a_put_that_never_takes_effect_nor_answers_is_unknown(make_draft):
    store = MemoryStore()
    draft = make_draft(store)
    store.plant("put_if_absent", key=HEADER, error=StoreTimeout("no reply"))
    with pytest.raises(CommitUnknown, match=draft.write_id):
        publish(store, draft)
    store.heal()
    assert publish(store, draft).version == 1, "the same write again settles it"


def test_an_outcome_that_cannot_be_read_back_is_unknown_and_nothing_is_removed(make_draft):
    store = MemoryStore()
    draft = make_draft(store)
    store.plant("put_if_absent", key=HEADER, lost_ack=True)
    rule = store.plant("get_range", key=HEADER, at=2, error=StoreError("503"))
    before = set(store.objects)
    with pytest.raises(CommitUnknown, match="same write id") as caught:
        publish(store, draft)
    assert rule.seen > 2, "it tried to read back more than once"
    assert caught.value.write_id == draft.write_id
    assert before <= set(store.objects)
    store.heal()
    assert publish(store, draft).version == 1
    assert len(check_chain(store)) == 1


def test_refused_credentials_are_reported_as_such(make_draft):
    store = MemoryStore()
    store.plant("put_if_absent", key=HEADER, error=StoreAuthError("403"))
    with pytest.raises(StoreAuthError):
        publish(store, make_draft(store))
    with pytest.raises(StoreNotFound):
        load_manifest(store)


def writes_of_a_publish(make_draft, prepare, mode, splits):
    """Return the number of writes of one publish, counted on a store without faults."""
    store = MemoryStore()
    prepare(store)
    draft = make_draft(store, 4, splits=splits)
    before = len(store.calls)
    publish(store, draft, mode=mode)
    return sum(call.op in {"put", "put_if_absent", "put_if_match", "delete"} for call in store.calls[before:])


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
@pytest.mark.parametrize("splits", [(None,), ("train", "test")])
def test_a_publisher_killed_after_any_write_leaves_the_old_version_or_the_new_one(make_draft, mode, splits):
    def prepare(store):
        if mode != "create":
            publish(store, make_draft(store, 7, splits=splits, write_id="old-write"))

    total = writes_of_a_publish(make_draft, prepare, mode, splits)
    assert total >= 5
    seen = set()
    for survived in range(total + 1):
        store = MemoryStore()
        prepare(store)
        draft = make_draft(store, 4, splits=splits, first=100)
        store.die_after_writes(survived)
        try:
            publish(store, draft, mode=mode)
        except Killed:
            pass
        else:
            assert survived == total
        store.heal()

        try:
            found = load_manifest(store).write_id
        except StoreNotFound:
            found = None
        assert found in {"old-write" if mode != "create" else None, draft.write_id}
        seen.add(found == draft.write_id)
        if found is not None:
            assert verify(store).ok
        for key in ("index.json", *(f"{split}/index.json" for split in splits if split)):
            if store.exists(key):  # a stock reader: whatever it sees is complete
                shards, _ = parse_index(store.get(key), where=key)
                folder = key.removesuffix("index.json")
                assert all(store.exists(folder + shard.raw.basename) for shard in shards)

        again = publish(store, draft, mode=mode)
        assert again.write_id == draft.write_id
        assert load_manifest(store) == again
        check_chain(store)
    assert seen == {True, False}, "both outcomes happened"


def test_a_publisher_that_fails_at_any_call_can_simply_be_called_again(make_draft):
    """Every single call of a publish fails once, reads too."""
    clean = MemoryStore()
    draft = make_draft(clean, 4, splits=("train", "test"))
    before = len(clean.calls)
    publish(clean, draft)
    total = len(clean.calls) - before
    for place in range(1, total + 1):
        store = MemoryStore()
        draft = make_draft(store, 4, splits=("train", "test"))
        store.plant("*", at=place, times=1, error=StoreError("503"))
        try:
            publish(store, draft)
        except (StoreError, CommitUnknown):
            publish(store, draft)
        assert len(check_chain(store)) == 1


def test_a_slow_publisher_does_not_leave_an_old_index_over_a_newer_one(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 2))
    slow, fast = make_draft(store, 3, first=10), make_draft(store, 4, first=20)
    store.plant("put*", key="index.json", delay=0.3, times=1)
    results = run_all(
        lambda who: publish(store, (slow, fast)[who], mode="append"),
        2,
    )
    assert not [result for result in results if isinstance(result, BaseException)]
    assert len(check_chain(store)) == 3


def test_finishing_an_old_write_never_shows_the_old_version(make_draft):
    """A late process repeats its write after other versions were published, and is killed after each of its writes."""
    for survived in range(3):
        store = MemoryStore()
        old = make_draft(store, 2)
        publish(store, old)
        publish(store, make_draft(store, 3, first=10), mode="overwrite")
        store.die_after_writes(survived)
        with contextlib.suppress(Killed):
            assert publish(store, old).version == 1
        store.heal()
        _, extra = parse_index(store.get("index.json"), where="x")
        assert extra["smalti"]["version"] == 2


def test_a_reader_without_the_right_to_list_still_opens_the_newest(make_draft):
    """S3 answers 403, not 404, for a missing key if the credentials may only read."""
    store = MemoryStore()
    publish(store, make_draft(store, 2))
    store.plant("get_range", key="_versions/00000002.json", error=StoreAuthError("403"))
    assert load_manifest(store).version == 1
    store.plant("get_range", key="_versions/00000001.json", error=StoreAuthError("403"))
    with pytest.raises(StoreAuthError):
        load_manifest(store)


def test_a_reader_beside_writers_sees_whole_versions_only(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 2))
    stop = threading.Event()
    faults, seen = [], []

    def read():
        try:
            while not stop.is_set():
                manifest = load_manifest(store)
                assert manifest.rows == 2 + 3 * (manifest.version - 1)
                seen.append(manifest.version)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for turn in range(20):
        publish(store, make_draft(store, 3, first=10 * turn), mode="append")
    stop.set()
    thread.join(120)
    assert faults == []
    assert seen == sorted(seen), "versions never go back"
