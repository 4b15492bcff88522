"""C1 to C7: publishing through s3fs to a store that loses replies, conflicts, is busy, or ignores conditions."""

import threading

import pytest

from smalti.catalog import load_manifest, publish, verify
from smalti.errors import CommitConflict, CommitUnknown, DatasetExists, StoreError, StoreTimeout
from tests.catalog.conftest import make_draft
from tests.faults.published_set import HEADER, drafted, published, rows_of
from tests.faultstore import Toxic
from tests.stores import MemoryStore

__all__ = ["make_draft"]

COMMIT = f"*{HEADER}"
ONCE = {"request_attempts": 1, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
"""No request is repeated, by Smalti nor by botocore."""


def at_once(work, count):
    """Return the result or the exception of each of so many threads."""
    results = [None] * count
    barrier = threading.Barrier(count, timeout=500)

    def one(who):
        barrier.wait()
        try:
            results[who] = work(who)
        except Exception as error:
            results[who] = error

    threads = [threading.Thread(target=one, args=(who,), daemon=True) for who in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.nightly)])
def test_c1_of_publishers_at_once_exactly_one_wins(faults, make_draft, count):
    drafts = [drafted(faults, make_draft, first=10 * who) for who in range(count)]
    faults.plant(Toxic("latency", method="PUT", seconds=0.05, jitter=0.1))
    results = at_once(lambda who: publish(faults.open("set"), drafts[who]), count)
    [winner] = [result for result in results if not isinstance(result, Exception)]
    assert {type(result) for result in results if result != winner} <= {CommitConflict, DatasetExists}
    assert load_manifest(faults.open("set")).write_id == winner.write_id


@pytest.mark.slow
def test_c1_appends_of_two_jobs_at_once_are_both_there(faults, make_draft):
    store = published(faults, make_draft)
    drafts = [drafted(faults, make_draft, first=10 + 10 * who) for who in range(2)]
    faults.plant(Toxic("latency", method="PUT", key="*_versions/*", seconds=0.2))
    results = at_once(lambda who: publish(faults.open("set"), drafts[who], mode="append"), 2)
    assert sorted(result.version for result in results) == [2, 3]
    assert rows_of(store) == [3, 6, 9]


def test_c2_a_commit_whose_reply_was_lost_is_found_by_its_write_id(faults, make_draft):
    """Neither it nor the one that aiohttp sends by itself is answered; what lies there is read back."""
    draft = drafted(faults, make_draft)
    faults.plant(Toxic("lost_ack", key=COMMIT, method="PUT", count=2))
    made = publish(faults.open("set", **ONCE), draft)
    assert (made.version, made.write_id) == (1, draft.write_id)
    assert {entry.status for entry in faults.log("PUT", HEADER)} == {0}


def test_c2_a_commit_that_never_arrived_is_made_again(faults, make_draft):
    draft = drafted(faults, make_draft)
    faults.plant(Toxic("lost_request", key=COMMIT, method="PUT", count=1))
    assert publish(faults.open("set", **ONCE), draft).version == 1
    assert [entry.status for entry in faults.log("PUT", HEADER)][-1] == 200


def test_c3_an_outcome_that_cannot_be_read_back_is_said_to_be_unknown_and_nothing_goes(faults, make_draft):
    draft = drafted(faults, make_draft)
    faults.plant(
        Toxic("lost_ack", key=COMMIT, method="PUT"),
        Toxic("http", status=500, key=COMMIT, method="GET", nth=2),
    )
    with pytest.raises(CommitUnknown, match=rf"version 1 .*{draft.write_id}"):
        publish(faults.open("set", **ONCE), draft)
    assert [entry.key for entry in faults.log("DELETE") if "/probe-" not in entry.key] == []
    faults.heal()
    assert publish(faults.open("set"), draft).version == 1, "the same write again returns what landed"
    assert verify(faults.open("set")).ok


def test_c3_a_put_that_timed_out_leaves_the_outcome_unknown_whatever_the_later_ones_said(make_draft):
    """Three tries that are refused follow one that may still land: that nothing is visible now says nothing."""
    store = MemoryStore()
    draft = make_draft(store)
    store.plant("put_if_absent", key=HEADER, times=1, error=StoreTimeout("no reply"))
    store.plant("put_if_absent", key=HEADER, at=2, error=StoreError("503"))
    with pytest.raises(CommitUnknown, match=draft.write_id):
        publish(store, draft)


def test_c3_an_index_file_that_cannot_be_replaced_is_no_failed_commit(make_draft):
    """Whoever takes a plain `StoreError` for a failure, and removes his shards, would break the version."""
    store = MemoryStore()
    draft = make_draft(store)
    store.plant("put*", key="index.json", error=StoreError("503"))
    with pytest.raises(CommitUnknown, match="version 1 is published"):
        publish(store, draft)
    assert load_manifest(store).write_id == draft.write_id
    store.heal()
    assert publish(store, draft).version == 1
    assert store.exists("index.json")


def test_c4_a_conflict_of_requests_is_not_a_lost_race(faults, make_draft):
    """S3 says 409 while another conditional put of the key is under way, and asks for a further attempt."""
    draft = drafted(faults, make_draft)
    faults.plant(Toxic("http", status=409, code="ConditionalRequestConflict", key=COMMIT, method="PUT", count=2))
    assert publish(faults.open("set"), draft).write_id == draft.write_id
    assert [entry.status for entry in faults.log("PUT", HEADER)] == [409, 409, 200]


def test_c5_a_refusal_of_our_own_second_put_is_a_success(faults, make_draft):
    """The first put landed and its reply was lost; the client's own second one is told that something is there."""
    draft = drafted(faults, make_draft)
    faults.plant(Toxic("lost_ack", key=COMMIT, method="PUT", count=1))
    assert publish(faults.open("set"), draft).write_id == draft.write_id
    assert [entry.status for entry in faults.log("PUT", HEADER)] == [0, 412]


@pytest.mark.slow
def test_c6_a_storm_of_which_a_third_is_refused_does_not_stop_a_commit(faults, make_draft):
    store = published(faults, make_draft)
    draft = drafted(faults, make_draft, first=10)
    faults.plant(Toxic("http", status=503, probability=0.2), Toxic("http", status=429, probability=0.1))
    assert publish(store, draft, mode="append").version == 2
    faults.heal()
    assert rows_of(store) == [3, 6]


def test_c6_a_storm_that_does_not_end_is_a_typed_error_and_nothing_is_visible(faults, make_draft):
    store = published(faults, make_draft)
    draft = drafted(faults, make_draft, first=10)
    faults.plant(Toxic("http", status=503, method="PUT"))
    with pytest.raises(StoreError):
        publish(faults.open("set", request_timeout=2, **ONCE), draft, mode="append")
    assert len(faults.log("PUT")) <= 20
    assert load_manifest(store).version == 1


def test_c7_a_store_that_ignores_conditions_is_refused_before_anything_is_visible(faults, make_draft):
    draft = drafted(faults, make_draft)
    faults.plant(Toxic("ignore_precondition"))
    with pytest.raises(StoreError, match="conditional"):
        publish(faults.open("set"), draft)
    assert faults.log("PUT", HEADER) == []


def test_c7_a_store_that_cannot_do_them_is_refused(faults, make_draft):
    draft = drafted(faults, make_draft)
    faults.plant(Toxic("http", status=501, code="NotImplemented", method="PUT", key="*_versions/*"))
    with pytest.raises(StoreError):
        publish(faults.open("set"), draft)
    assert faults.log("PUT", HEADER) == []
