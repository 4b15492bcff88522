"""Events are delivered complete, once and in order; a line that a kill cut off is not delivered."""

import time

import pytest

from smalti.torch.train.run.events import EventLog, EventTail, following, read_lines

pytestmark = pytest.mark.torch


def test_events_go_to_the_file_and_to_the_listener(tmp_path):
    delivered = []
    log = EventLog(tmp_path / "m.jsonl", delivered.append)
    log.emit("step", step=3, loss=0.5)
    log.close()
    assert read_lines(tmp_path / "m.jsonl") == delivered
    assert {**delivered[0], "time": 0} == {"event": "step", "time": 0, "step": 3, "loss": 0.5}


def test_only_rank_0_emits_events(tmp_path):
    delivered = []
    EventLog(None, delivered.append).emit("step", step=1)
    assert delivered == []


def test_a_tail_delivers_only_new_and_complete_lines(tmp_path):
    path, delivered = tmp_path / "m.jsonl", []
    path.write_bytes(b'{"n":1}\n')
    tail = EventTail(path, delivered.append)
    with path.open("ab") as file:
        file.write(b'{"n":2}\n{"n"')
        file.flush()
        assert tail.poll() == 1
        file.write(b":3}\n")
    assert tail.poll() == 1
    assert tail.poll() == 0
    assert delivered == [{"n": 2}, {"n": 3}]


def test_a_tail_may_begin_before_the_file(tmp_path):
    delivered = []
    tail = EventTail(tmp_path / "m.jsonl", delivered.append)
    assert tail.poll() == 0
    (tmp_path / "m.jsonl").write_bytes(b'{"n":1}\n')
    tail.poll()
    assert delivered == [{"n": 1}]


def test_an_unfinished_line_is_cut_off_when_the_log_is_opened_again(tmp_path):
    path, delivered = tmp_path / "m.jsonl", []
    path.write_bytes(b'{"n":1}\n{"n":2,"lo')
    tail = EventTail(path, delivered.append)
    log = EventLog(path)
    log.append({"n": 3})
    log.close()
    tail.poll()
    assert read_lines(path) == [{"n": 1}, {"n": 3}]
    assert delivered == [{"n": 3}]


def test_a_long_unfinished_line_is_cut_off_too(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"n":1}\n' + b"x" * 200_000)
    EventLog(path).close()
    assert path.read_bytes() == b'{"n":1}\n'


def test_all_events_are_delivered_before_the_body_ends(tmp_path):
    path, delivered = tmp_path / "m.jsonl", []
    with following(path, delivered.append):
        log = EventLog(path)
        for number in range(50):
            log.append({"n": number})
        log.close()
    assert [event["n"] for event in delivered] == list(range(50))


def test_events_are_delivered_while_the_body_runs(tmp_path):
    path, delivered = tmp_path / "m.jsonl", []
    with following(path, delivered.append):
        EventLog(path).append({"n": 1})
        deadline = time.monotonic() + 120
        while not delivered and time.monotonic() < deadline:
            time.sleep(0.02)
        assert delivered == [{"n": 1}]


def test_an_exception_of_the_callback_is_raised_at_the_end_of_the_body(tmp_path):
    def fail(event):
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"), following(tmp_path / "m.jsonl", fail):
        EventLog(tmp_path / "m.jsonl").append({"n": 1})


def test_a_tail_of_a_log_that_was_replaced_begins_at_the_next_line():
    log, delivered = [b'{"n":1}\n'], []
    tail = EventTail(lambda offset: log[0][offset:], delivered.append)
    log[0] = b'{"life":2,"n":1}\n{"n":2}\n'  # the eighth byte is in the first line
    tail.poll()
    assert delivered == [{"n": 2}]
