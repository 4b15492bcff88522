"""The measurements over a slow link: how round trips are counted, whose time and memory count, what is sent."""

import json
import os
import struct
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from assets.drawing import draw_flowers
from benchmarks.link.server import LinkServer, num_bytes_sent, rounds, rounds_to_first, shard_bytes
from benchmarks.link_rows import LINK_ROWS
from benchmarks.measures.linked import _end_of, _read_epoch
from benchmarks.peers import Peer, find
from benchmarks.photos import Photos, number_in, numbered
from benchmarks.plan import planned, preparations
from benchmarks.scale import SCALES
from benchmarks.task import Task
from benchmarks.trees import children, cpu_seconds, tree_rss
from smalti.images import probe_image
from tests.faultstore import Logged

ROOT = Path(__file__).resolve().parents[2]


def asked(key, began, *, status=200, num_bytes=0):
    return Logged("GET", "bucket", key, {}, {}, "", status, num_bytes, [], began)


def test_requests_within_one_latency_are_one_round_trip():
    assert rounds([], 0.03) == 0
    assert rounds([5.0], 0.03) == 1
    assert rounds([5.0, 5.01, 5.02], 0.03) == 1
    assert rounds([5.0, 5.03, 5.01, 5.07], 0.03) == 3  # 5.01 cannot have waited for 5.0, which was answered at 5.03
    assert rounds([5.0, 5.02, 5.04, 5.05], 0.03) == 2  # 5.05 cannot have waited for 5.04


def test_round_trips_end_with_the_request_for_the_shard_that_comes_first():
    log = [asked("index.json", 1.0), asked("b/shard.00000.mds", 1.1), asked("b/shard.00001.mds", 1.2)]
    assert rounds_to_first(log, 1) == 2
    assert rounds_to_first([*log, asked("b/shard.00000.mds", 1.3)], 1) == 4
    assert rounds_to_first(log[:1], 1) == 1


def test_parts_behind_those_of_the_first_batch_are_no_round_trips_of_it():
    def part(begin, began):
        entry = asked("b/shard.00000.mds", began)
        entry.headers["range"] = f"bytes={begin}-{begin + 999}"
        return entry

    log = [asked("index.json", 1.0), part(0, 1.1), part(1000, 1.11), part(2000, 1.2), asked("b/shard.00001.mds", 1.3)]
    assert rounds_to_first(log, 1500) == 2
    assert rounds_to_first(log, 2001) == 3
    assert rounds_to_first(log) == 4  # the batch may lie anywhere


def test_refused_requests_send_no_bytes():
    log = [
        asked("a", 1.0, num_bytes=10), asked("b", 1.0, status=404, num_bytes=99),
        asked("c", 1.0, status=206, num_bytes=5),
    ]  # fmt: skip
    assert num_bytes_sent(log) == 15


def photo_folder(tmp_path):
    folder = tmp_path / "photos"
    draw_flowers(folder, per_class=1, size=(48, 32))
    return folder


def test_each_copy_of_a_photo_holds_its_number_and_still_is_a_photo(tmp_path):
    photos = Photos(12, photo_folder(tmp_path))
    samples = list(photos)
    assert [number_in(sample["image"]) for sample in samples] == list(range(12))
    assert [sample["name"] for sample in samples][:2] == ["00000000.jpg", "00000001.jpg"]
    assert len({sample["image"] for sample in samples}) == 12
    assert {sample["label"] for sample in samples} == {0, 1, 2, 3, 4}
    header = probe_image(samples[7]["image"])
    assert (header.width, header.height) == (48, 32)
    assert photos.num_bytes == sum(len(sample["image"]) + 8 + 12 for sample in samples)


def test_a_folder_without_photos_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="SMALTI_FLOWERS"):
        list(Photos(1, tmp_path))


def test_a_cache_is_filled_once_for_all_that_read_it_warm_and_a_local_folder_needs_none():
    rows = [row for row in LINK_ROWS if row.measure == "warm"]
    tasks = [each for row in rows for each in planned(row, SCALES["smoke"], 1, "/work", ["smalti"])]
    prepared = [(task.measure, task.peer) for task in preparations(tasks, fresh=True)]
    assert prepared == [("prepare", "smalti"), ("fill", "smalti")]
    local = [each for each in tasks if each.task.options.get("place") == "local"]
    assert [task.measure for task in preparations(local, fresh=True)] == ["prepare"]


def test_the_set_that_another_library_wrote_and_its_shard_size_name_its_folder():
    task = Task("cold", "smalti", "photos", 512, "/work", {"set_of": "mosaicml", "shard_bytes": 1048576})
    assert task.set_folder == Path("/work/sets/mosaicml-photos-512-1048576")
    assert task.write_options.shard_bytes == 1048576
    assert Task("cold", "link", "photos", 512, "/work").set_folder == Path("/work/sets/smalti-photos-512")


def test_a_set_is_known_by_where_its_samples_end(tmp_path):
    shard = tmp_path / "shard.00000.mds"
    shard.write_bytes(struct.pack("<5I", 3, 20, 30, 45, 70) + b"x" * 50)
    assert [_end_of(shard, count) for count in (1, 2, 3, 64)] == [30, 45, 70, 70]


class Fake(Peer):
    """Gives these names, with photos that hold these numbers."""

    def __init__(self, *samples):
        self.batches = [{"name": [f"{name:08d}.jpg"], "image": [numbered(b"12345678", held)]} for name, held in samples]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([(0, 0), (1, 1)], None),
        ([(0, 0)], "1 samples, 1 different ones, of 2"),
        ([(0, 0), (0, 0)], "2 samples, 1 different ones, of 2"),
        ([(0, 0), (1, 1), (1, 1)], "3 samples, 2 different ones, of 2"),
        ([(0, 1), (1, 0)], "the data of others"),
    ],
)
def test_an_epoch_that_loses_repeats_or_mixes_up_samples_has_no_figure(samples, said):
    peer, task = Fake(*samples), Task("cold", "smalti", "photos", 2, "/work")
    with nullcontext() if said is None else pytest.raises(ValueError, match=said):
        _read_epoch(peer.batches, peer, task)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_time_and_memory_of_one_process_below_can_be_left_out():
    code = "held = b'x' * 50_000_000; sum(range(10_000_000)); print('done', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"done\n"
        own = os.getpid()
        # The kernel's list of children may leave some out while others end: once is enough.
        looks = (tree_rss(own) - tree_rss(own, without=child.pid) for _ in range(100))
        assert any(difference > 45_000_000 for difference in looks)
        assert any(child.pid in children(own) for _ in range(100))
        assert cpu_seconds(child.pid) > 0.02
        assert cpu_seconds(own) - cpu_seconds(own, without=child.pid) > 0.02
    finally:
        child.communicate(b"\n")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", ["link", "link-disk"])
def test_a_floor_reads_every_byte_and_its_server_is_told_apart(tmp_path, name):
    task = Task("cold", name, "photos", 1, str(tmp_path))
    task.set_folder.mkdir(parents=True)
    task.scratch.mkdir()
    contents = {"shard.00000.mds": b"a" * 3_000_000, "w/0/shard.00001.mds": b"b" * 10}
    for key, content in contents.items():
        (task.set_folder / key).parent.mkdir(parents=True, exist_ok=True)
        (task.set_folder / key).write_bytes(content)
    assert shard_bytes(task.set_folder) == 3_000_010
    with LinkServer(task) as server:
        begin = time.perf_counter()
        assert find(name).read_all(server.place(tmp_path / "cache"), list(contents)) == 3_000_010
        assert time.perf_counter() - begin > 0.03
        assert task.aside_file.read_text() == str(server.pid)
        assert num_bytes_sent(server.log()) == 3_000_010
        server.forget()
        assert server.log() == []
    cache = tmp_path / "cache"
    kept = {path.relative_to(cache).as_posix(): path.read_bytes() for path in cache.rglob("*.mds")}
    assert kept == ({} if name == "link" else contents)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.torch
@pytest.mark.nightly
def test_the_rows_over_the_link_run_with_smalti_alone(tmp_path):
    command = [
        sys.executable, "-m", "benchmarks", "--scale", "smoke", "--peers", "smalti", "--name", "test", "--only",
        "link-cold-small,link-first-batch-rounds,link-ranks",
        "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"),
    ]  # fmt: skip
    environment = os.environ | {"SMALTI_FLOWERS": str(photo_folder(tmp_path))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = (tmp_path / "results").glob("*-test.json")
    measured = json.loads(report.read_text())["measurements"]
    assert {line["status"] for line in measured} == {"ok"}
    figures = {(line["row"], line["label"]): line["figures"] for line in measured}
    assert figures["link-ranks", "smalti"]["fetched_share"] == 1.0
    assert figures["link-cold-small", "smalti"]["fetched_share"] == 1.0
    assert figures["link-first-batch-rounds", "smalti"]["round_trips"] >= 2
    page = report.with_suffix(".md").read_text()
    assert "**FAIL**" in page or "PASS" in page
