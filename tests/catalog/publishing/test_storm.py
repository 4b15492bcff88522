"""Many writers on a bad store: a tenth of all calls fail, some replies are lost after the write took effect."""

import threading

import pytest

from smalti.catalog import publish
from smalti.errors import CommitConflict, CommitUnknown, StoreError, StoreTimeout
from tests.catalog.publishing.test_faults import check_chain
from tests.stores import MemoryStore


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))])
def test_appends_through_a_storm_are_each_in_the_chain_once(make_draft, seed):
    """Every writer repeats its write until it succeeds, as a retried job does; nothing is lost, nothing doubled."""
    store = MemoryStore(seed=seed)
    publish(store, make_draft(store, 2))
    drafts = [[make_draft(store, 3, first=100 * who + 10 * turn) for turn in range(3)] for who in range(4)]
    store.plant("*", chance=0.06, error=StoreError("503"))
    store.plant("put*", chance=0.04, lost_ack=True, error=StoreTimeout("the reply was lost"))
    failures: list[BaseException] = []
    versions: dict[str, set[int]] = {}

    def work(who: int) -> None:
        try:
            for draft in drafts[who]:
                for _ in range(60):
                    try:
                        made = publish(store, draft, mode="append")
                    except (StoreError, CommitUnknown, CommitConflict):
                        continue
                    versions.setdefault(draft.write_id, set()).add(made.version)
                    break
                else:
                    raise AssertionError("never succeeded")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who,), daemon=True) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failures == []
    store.heal()
    publish(store, drafts[0][0], mode="append")  # finishes the index files that the last failed writer did not write
    lines = check_chain(store)
    assert len(lines) == 13
    assert [line.rows for line in lines] == [2 + 3 * n for n in range(13)]
    assert {write: {line.version for line in lines if line.write_id == write} for write in versions} == versions
