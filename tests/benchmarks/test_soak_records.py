"""What the soak concludes from its records: each conclusion is shown a run that is well, and one that is not."""

import json
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from benchmarks.soak.faults import Planted
from benchmarks.soak.journal import Journal, Tail
from benchmarks.soak.judging import Kill, judge_errors
from benchmarks.soak.processes import Held, slope
from benchmarks.soak.samples import Expected, SetOf, text_of, write_set
from benchmarks.soak.verdict import count_faults, judge_held, left_memory, settled_at
from benchmarks.soak.watch import Bound, leftovers, look, together
from smalti.dataset import open_dataset

DIGEST = "ab" * 32


def batch(*numbers, write=3):
    """Of a mixture of 4 `one` and 2 `two`, by hand: samples 0 to 3, and 4 and 5."""
    places = {0: ("one", 0), 1: ("one", 1), 3: ("one", 3), 4: ("two", 0), 5: ("two", 1)}
    return {
        "_sample_id": list(numbers),
        "id": [places[number][1] for number in numbers],
        "text": [text_of(places[number][0], write, places[number][1]) for number in numbers],
    }


EXPECTED = Expected([("one", 4), ("two", 2)], write=3)


def test_a_batch_is_right_when_each_text_is_the_one_of_its_set_write_and_id():
    assert text_of("one", 3, 1).startswith("one/3/1/")
    assert EXPECTED.problems(batch(5, 0, 3, 4)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda columns: columns["text"].__setitem__(1, columns["text"][1][:-1] + "~"), "another text"),
        (lambda columns: columns["text"].reverse(), "another text"),
        (lambda columns: columns["id"].__setitem__(0, 1), "has the id 1"),
        (lambda columns: columns["text"].pop(), "different lengths"),
    ],
    ids=["a character", "two exchanged", "an id", "a sample too few"],
)
def test_a_batch_with_one_thing_wrong_is_told(change, said):
    columns = batch(0, 3)
    change(columns)
    assert any(said in problem for problem in EXPECTED.problems(columns))


def test_samples_of_an_older_write_are_wrong():
    assert len(EXPECTED.problems(batch(0, 4, write=2))) == 2


def test_a_set_has_shards_of_many_sizes(tmp_path):
    write_set(SetOf("photos", 200, 24_000), str(tmp_path / "photos"))
    dataset = open_dataset(str(tmp_path / "photos"))
    sizes = {shard.raw.num_bytes for shard in dataset.manifest.shards}
    assert dataset[199]["text"] == text_of("photos", 1, 199)
    assert max(sizes) > 1.4 * min(sizes)
    dataset.close()


def test_half_a_line_of_a_journal_is_no_event_until_the_rest_is_there(tmp_path):
    journal, tail = Journal(tmp_path / "j"), Tail(tmp_path / "j")
    journal.write("one", number=1)
    with (tmp_path / "j").open("a") as file:
        file.write('{"event": "tw')
    assert [event["event"] for event in tail.new()] == ["one"]
    with (tmp_path / "j").open("a") as file:
        file.write('o"}\n')
    assert [event["event"] for event in tail.new()] == ["two"]
    journal.close()


def planted(kind, begin, end, *explains):
    return Planted(kind, begin, frozenset(explains), end, end=end)


def error(at, kind, who="A, life 1, rank 0", *, typed=True, message=""):
    return {"at": at, "kind": kind, "who": who, "typed": typed, "message": message}


def test_a_typed_error_is_explained_by_a_fault_of_its_time_that_may_raise_it():
    fault = planted("http_503", 100, 103, "StoreError")
    assert judge_errors([error(110, "StoreError")], [fault], [], 30) == (Counter(StoreError=1), [], 0)
    assert fault.errors == ["StoreError"]


@pytest.mark.parametrize(
    "told",
    [
        error(99, "StoreError"),
        error(140, "StoreError"),
        error(101, "ChecksumMismatch"),
        error(101, "RuntimeError", typed=False),
        error(101, "StoreTimeout"),
    ],
    ids=["before", "long after", "another class", "untyped", "a timeout on an idle machine"],
)
def test_any_other_error_is_not_explained(told):
    fault = planted("http_503", 100, 103, "StoreError")
    _, unexplained, _ = judge_errors([told], [fault], [], 30, [(100, 1.0)])
    assert len(unexplained) == 1


def test_an_untyped_error_is_a_peers_when_the_life_lost_somebody_else():
    kill = Kill(50, "rank", "A")
    peer = error(51, "RuntimeError", "A, life 1, rank 1", typed=False)
    assert judge_errors([peer], [], [kill], 30)[1] == []
    assert len(judge_errors([peer], [], [Kill(50, "rank", "B")], 30)[1]) == 1
    assert judge_errors([peer, error(50, "StoreError")], [planted("reset", 45, 48, "StoreError")], [], 30)[1] == []


def test_a_timeout_of_an_overloaded_machine_is_counted_by_itself():
    assert judge_errors([error(100, "StoreTimeout")], [], [], 30, [(90, 8.0)])[1:] == ([], 1)


def seen(at):
    return SimpleNamespace(last_seen=at)


def test_a_fault_is_survived_when_everybody_read_on_after_it():
    exact, restarted = planted("reset", 10, 13), planted("reset", 20, 23, "StoreError")
    restarted.errors.append("StoreError")
    found = {kind["kind"]: kind for kind in count_faults([exact, restarted], Counter(gone=2), [seen(30), seen(40)])}
    assert [found["reset"][name] for name in ("planted", "exact", "restarted", "lost")] == [2, 1, 1, 0]
    assert found["gone"]["skipped"] == 2


def test_a_fault_is_lost_when_one_reader_never_read_on():
    found = {kind["kind"]: kind for kind in count_faults([planted("reset", 10, 13)], Counter(), [seen(12), seen(40)])}
    assert [found["reset"][name] for name in ("exact", "restarted", "lost")] == [0, 0, 1]


def copy(cache, name, size, within=DIGEST):
    path = cache / within / "write" / "0" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_bytes_count_together_only_when_they_were_there_at_one_moment(tmp_path):
    gone = copy(tmp_path, "shard.00000.mds", 100)
    copy(tmp_path, "shard.00001.mds", 10)
    first, _ = look(tmp_path)
    gone.unlink()
    copy(tmp_path, "shard.00002.mds", 50)
    then, _ = look(tmp_path)
    assert together(first, then) == 10


def test_a_cache_above_its_limit_is_noticed_and_one_at_it_is_not(tmp_path):
    copy(tmp_path, "shard.00000.mds", 100)
    copy(tmp_path, ".shard.00001.mds.7.ab.part", 1000)
    bounds = Bound(100, [DIGEST]), Bound(99, [DIGEST])
    for bound in bounds:
        bound.sample(tmp_path, 5.0)
    assert [(bound.most, bound.most_coming, bound.over) for bound in bounds] == [
        (100, 1000, []),
        (100, 1000, [(5.0, 100)]),
    ]


def test_everything_but_copies_is_a_leftover(tmp_path):
    copy(tmp_path, "shard.00000.mds", 1)
    (tmp_path / DIGEST / ".leases").mkdir()
    assert leftovers(tmp_path) == []
    copy(tmp_path, ".shard.00000.mds.7.ab.part", 1)
    copy(tmp_path, ".shard.00000.mds.lock", 0)
    (tmp_path / DIGEST / ".leases" / "7.ab").touch()
    (tmp_path / "elsewhere").touch()
    assert [name.rpartition("/")[2] for name in leftovers(tmp_path)] == [
        ".leases", "7.ab", ".shard.00000.mds.7.ab.part", ".shard.00000.mds.lock", "elsewhere",
    ]  # fmt: skip


def test_shared_memory_is_left_when_it_is_not_pythons_own_semaphore(tmp_path):
    (tmp_path / "sem.mp-abc").touch()
    (tmp_path / "torch_7").touch()
    assert left_memory(tmp_path) == ["torch_7"]


def test_the_slope_is_that_of_the_line_through_the_points():
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0, 2), (1, 0), (2, 0), (3, 2)]) == 0
    assert slope([(0, 1)]) == 0


def looks(memory, descriptors):
    return {"steady": [Held(float(at), descriptors(at), memory(at), memory(at)) for at in range(0, 600, 10)]}


def test_a_flat_process_holds_what_it_held():
    found, problems = judge_held(looks(lambda at: 100_000_000, lambda at: 30), 600)
    assert problems == []
    assert found["steady"]["descriptors_after"] == 30


def test_a_process_that_grows_by_two_percent_in_ten_minutes_is_noticed():
    _, problems = judge_held(looks(lambda at: 100_000_000 + 2_000_000 * at // 600, lambda at: 30), 600)
    assert ["memory grows" in problem for problem in problems] == [True]


def test_what_a_process_keeps_after_the_first_fault_of_each_kind_is_no_growth_and_what_comes_later_is():
    planted = [Planted(kind, begin, frozenset(), begin + 3) for kind, begin in [("a", 5), ("b", 200), ("a", 400)]]
    assert settled_at(planted) == 200
    _, problems = judge_held(looks(lambda at: 100_000_000 + 5_000_000 * (at >= 190), lambda at: 30), 600, 200)
    assert problems == []
    _, problems = judge_held(looks(lambda at: 100_000_000 + 5_000_000 * (at >= 400), lambda at: 30), 600, 200)
    assert ["memory grows" in problem for problem in problems] == [True]


def test_a_process_that_opens_a_file_a_minute_is_noticed():
    _, problems = judge_held(looks(lambda at: 100_000_000, lambda at: 30 + at // 60), 600)
    assert ["descriptors" in problem for problem in problems] == [True]


def test_what_a_journal_tells_is_json(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.write("seen", **asdict(Kill(1.0, "rank", "A")))
    journal.close()
    assert json.loads((tmp_path / "j").read_text())["what"] == "rank"
