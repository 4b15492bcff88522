"""A run in a store: a checkpoint is whole or does not exist, only damage is skipped, and a superseded life stops."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from smalti.errors import CheckpointError, StoreError, StoreExists, TrainingError
from smalti.storage import Store
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.launchers.preflight import _check_here
from smalti.torch.train.result import TrainResult
from smalti.torch.train.run.checkpoint import CheckpointFolder
from smalti.torch.train.run.files import Snapshot, copy_files
from smalti.torch.train.run.store import StoreRun
from smalti.torch.train.trainer.task import save_model
from smalti.torch.tuning.journal import StoreJournal
from tests.stores.memory import Killed, MemoryStore

pytestmark = pytest.mark.torch

FILES = ("checksums.json", "model.safetensors", "optimizer.safetensors", "state.json")


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, {"model": {"w": torch.full((3,), float(step))}, "optimizer": {"m": torch.ones(2)}}, {})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def life(store, tmp_path):
    """Begin lives of one run, each on a machine of its own."""
    begun = []

    def begin(keep: int = 2) -> CheckpointFolder:
        scratch = tmp_path / f"machine-{len(begun)}"
        scratch.mkdir()
        run = StoreRun(store, "s3://bucket/run", scratch)
        body = run.begun(num_ranks=1)
        begun.append(body)
        return run.checkpoints(keep=keep, life=body.__enter__())

    return begin


def checkpoints_in(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for info in store.list("checkpoints"):
        _, name, file = info.key.split("/")
        found.setdefault(name, []).append(file)
    return found


def loaded_step(checkpoints: CheckpointFolder) -> int | None:
    loaded = checkpoints.load_newest()
    return None if loaded is None else loaded.snapshot.step


def test_a_checkpoint_is_put_with_its_checksums_last_and_loaded_on_another_machine(store, life):
    first = life()
    assert first.save(snapshot(10)) == "s3://bucket/run/checkpoints/step-00000010-00000"
    puts = [call.key for call in store.calls if call.op == "put_file"]
    assert puts[-1] == "checkpoints/step-00000010-00000/checksums.json"
    assert checkpoints_in(store) == {"step-00000010-00000": sorted(FILES)}
    loaded = life().load_newest()
    assert loaded.path == "s3://bucket/run/checkpoints/step-00000010-00000"
    assert torch.equal(loaded.snapshot.tensors["model"]["w"], torch.full((3,), 10.0))


def test_nothing_of_a_saved_checkpoint_stays_on_the_local_disk(life):
    checkpoints = life()
    checkpoints.save(snapshot(10))
    assert [path for path in checkpoints.remote.path.rglob("*") if path.is_file()] == []


def test_a_run_without_checkpoints_starts_fresh(life):
    assert life().load_newest() is None


@pytest.mark.parametrize("puts", range(4))
@pytest.mark.parametrize("kills", [True, False])
def test_a_save_that_ends_at_any_put_leaves_the_earlier_checkpoint(store, life, puts, kills):
    checkpoints = life(keep=1)
    checkpoints.save(snapshot(10))
    if kills:
        store.die_after_writes(puts)
    else:
        store.plant("put_file", at=puts + 1)
    with pytest.raises(Killed if kills else StoreError):
        checkpoints.save(snapshot(20))
    store.heal()
    again = life(keep=1)
    assert loaded_step(again) == 10
    again.save(snapshot(15))
    assert checkpoints_in(store) == {"step-00000015-00001": sorted(FILES)}


@pytest.mark.parametrize("file", FILES)
def test_a_lost_reply_to_a_put_ends_the_run_and_undoes_nothing(store, life, file):
    checkpoints = life()
    checkpoints.save(snapshot(10))
    store.plant("put_file", key=f"*/{file}", lost_ack=True)
    with pytest.raises(StoreError):
        checkpoints.save(snapshot(20))
    store.heal()
    assert loaded_step(life()) == (20 if file == "checksums.json" else 10)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["bit flip", "cut", "missing"])
def test_a_damaged_checkpoint_is_skipped_and_reported(store, life, file, damage):
    checkpoints = life()
    checkpoints.save(snapshot(10))
    newest = checkpoints.save(snapshot(20))
    key = f"checkpoints/step-00000020-00000/{file}"
    data = store.objects.pop(key)
    if damage != "missing":
        store.objects[key] = bytes([data[0] ^ 1]) + data[1:] if damage == "bit flip" else data[:-3]
    loaded = life().load_newest()
    assert loaded.snapshot.step == 10
    # Without its checksums it was never complete.
    expected = [] if (file, damage) == ("checksums.json", "missing") else [newest]
    assert [skip.path for skip in loaded.skipped] == expected


def test_a_file_that_was_damaged_in_the_transfer_alone_is_fetched_again(store, life):
    life().save(snapshot(10))
    store.plant("fetch", key="*/model.safetensors", flip=70, times=1)
    loaded = life().load_newest()
    assert (loaded.snapshot.step, loaded.skipped) == (10, ())


@pytest.mark.parametrize("op", ["fetch", "list"])
def test_a_fault_of_the_store_ends_the_run_where_skipping_would_undo_training(store, life, op):
    checkpoints = life()
    checkpoints.save(snapshot(10))
    checkpoints.save(snapshot(20))
    again = life()
    store.plant(op, key="checkpoints*", times=1)
    with pytest.raises(StoreError, match="planted"):
        again.load_newest()
    assert loaded_step(again) == 20


def test_if_no_checkpoint_verifies_it_is_an_error(store, life):
    life().save(snapshot(10))
    store.objects["checkpoints/step-00000010-00000/state.json"] = b"{}"
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints in s3://bucket/run/checkpoints verifies"):
        life().load_newest()


def test_the_newest_are_kept_and_older_ones_removed_after_the_new_one_is_listed(store, life):
    checkpoints = life(keep=2)
    for step in (1, 2, 3):
        checkpoints.save(snapshot(step))
    assert list(checkpoints_in(store)) == ["step-00000002-00000", "step-00000003-00000"]
    deleted = [call.key for call in store.calls if call.op == "delete" and "step-" in call.key]
    assert deleted[0] == "checkpoints/step-00000001-00000/checksums.json"


def test_a_put_that_the_store_lost_removes_nothing(store, life):
    checkpoints = life(keep=1)
    checkpoints.save(snapshot(10))
    store.plant("put_file", key="*/model.safetensors", truncate=9)
    with pytest.raises(CheckpointError, match="Nothing older was removed"):
        checkpoints.save(snapshot(20))
    store.heal()
    assert loaded_step(life()) == 10


def test_a_store_that_refuses_to_delete_does_not_end_the_run(store, life):
    checkpoints = life(keep=1)
    checkpoints.save(snapshot(10))
    store.plant("delete")
    checkpoints.save(snapshot(20))
    assert loaded_step(life_of(checkpoints)) == 20


def life_of(checkpoints: CheckpointFolder) -> CheckpointFolder:
    return checkpoints.remote.checkpoints()


def test_each_start_of_a_run_gets_a_number_of_its_own(store, life):
    assert [life().life for _ in range(3)] == [0, 1, 2]
    assert [info.key for info in store.list("lives")] == [f"lives/0000{n}.json" for n in range(3)]


@pytest.fixture(params=[StoreExists("after a retry"), StoreError("no reply")], ids=["repeated", "lost"])
def answered_badly(request, store):
    """Let the first conditional put of an object take effect, with this answer."""
    return lambda key: store.plant("put_if_absent", key=key, lost_ack=True, times=1, error=request.param)


def test_a_number_whose_claim_lost_its_reply_is_used_by_nobody_else(store, life, answered_badly):
    answered_badly("lives/00000.json")
    assert [life().life, life().life] == [0, 1]


def test_an_entry_of_a_study_whose_put_lost_its_reply_is_there_once(store, answered_badly):
    journal = StoreJournal(store.child("study"))
    answered_badly("study/*/00000000.json")
    journal.append_logs([{"trial": 0}])
    journal.append_logs([{"trial": 1}])
    assert list(StoreJournal(store.child("study")).read_logs(0)) == [{"trial": 0}, {"trial": 1}]


def test_the_object_by_which_a_launch_tries_the_folder_of_the_run_may_lose_its_reply(store, answered_badly):
    config = SimpleNamespace(data="", local_run_dir=None, run_dir=store.child("run"), run_dir_options=None)
    answered_badly("run/.preflight-*")
    _check_here(config)
    assert store.objects == {}


def test_a_life_that_was_superseded_stops_at_its_next_save_and_changes_nothing(store, life):
    zombie = life()
    zombie.save(snapshot(10))
    current = life()
    assert loaded_step(current) == 10
    current.save(snapshot(12))
    before = dict(store.objects)
    with pytest.raises(TrainingError, match="was started again elsewhere: this process was its life 0") as caught:
        zombie.save(snapshot(30))
    assert caught.value.is_superseded
    assert store.objects == before


def test_a_checkpoint_that_a_zombie_completes_does_not_go_before_those_of_the_newer_life(store, life, monkeypatch):
    zombie, current = life(), life()
    current.save(snapshot(12))
    monkeypatch.setattr(zombie.remote, "check_current", lambda: None)  # it looked just before the other one began
    zombie.save(snapshot(30))
    assert list(checkpoints_in(store)) == ["step-00000012-00001", "step-00000030-00000"]
    assert loaded_step(life()) == 12


def test_a_store_without_exclusive_puts_is_refused(store, life):
    store.plant("put_if_absent", ignore_if_absent=True)
    with pytest.raises(StoreError, match="ignores conditional puts"):
        life()


def test_the_model_is_put_before_the_result_and_files_of_an_earlier_one_are_removed(store, life):
    run = life().remote
    store.put("model/old.bin", b"x")
    config = TrainConfig(data="s3://b/set", run_dir="s3://bucket/run")
    figures = {"accuracy": 1.0, "loss": 0.0, "epochs": 1, "steps": 1, "history": (), "resumed_from": None}
    result = TrainResult(**figures, model_dir="", checkpoint="", images_per_second=0.0, seconds=0.0)
    run.write_result(result.to_json(), partial(save_model, torch.nn.Linear(4, 3), config))
    assert [call.key for call in store.calls if call.op == "put_file"][-1] == "result.json"
    assert [info.key for info in store.list("model")] == [
        "model/config.json", "model/model.safetensors", "model/smalti.json"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("run_dir", "path"),
    [
        ("/runs/1", Path("/runs/1")),
        ("runs/1", Path("runs/1")),
        ("file:///runs/a%20b", Path("/runs/a b")),
        ("s3://b/run", None),
        ("dbfs:/Volumes/c/s/v/run", None),
        ("/Volumes/c/s/v/run", None),
    ],
)
def test_a_folder_is_used_as_it_is_and_everything_else_is_a_store(run_dir, path):
    assert TrainConfig(data="x", run_dir=run_dir).local_run_dir == path


@pytest.mark.parametrize("run_dir", ["s3:///run", "what://b/run", "s3://u:hush-1597@b/run", "s3://b/run?sig=hush-1597"])
def test_an_address_that_cannot_be_opened_is_refused_without_showing_secrets(run_dir):
    with pytest.raises(StoreError) as caught:
        TrainConfig(data="x", run_dir=run_dir)
    assert "hush" not in str(caught.value)


def test_options_of_the_data_are_used_for_a_run_on_the_same_service_only():
    def options(run_dir, own=None):
        options_of_data = {"key": "hush"}
        config = TrainConfig(
            data="s3://b/set", run_dir=run_dir, storage_options=options_of_data, run_storage_options=own
        )
        assert "hush" not in repr(config)
        assert "storage_options" not in str(config.public_json())
        assert TrainConfig.from_json(config.to_json()) == config
        return config.run_dir_options

    assert options("s3a://other/run") == {"key": "hush"}
    assert options("gs://b/run") == {}
    assert options("/runs") == {}
    assert options("s3://b/run", {"key": "hush 2"}) == {"key": "hush 2"}
    assert options("s3://b/run", {}) == {}


def test_a_step_that_is_saved_again_exists_until_the_new_checkpoint_does(store, life):
    checkpoints = life(keep=2)
    checkpoints.save(snapshot(5))
    checkpoints.save(snapshot(10))
    store.plant("put_file", key="*/state.json", times=1)
    with pytest.raises(StoreError):
        checkpoints.save(snapshot(10))
    assert loaded_step(checkpoints) == 10
    assert checkpoints.save(snapshot(10)) == "s3://bucket/run/checkpoints/step-00000010-00000-2"
    whole = [name for name, files in checkpoints_in(store).items() if "checksums.json" in files]
    assert whole == ["step-00000005-00000", "step-00000010-00000-2"]
    assert loaded_step(life()) == 10


def test_files_that_were_given_stay_when_checkpoints_are_saved_and_those_that_were_only_verified_do_not(life, tmp_path):
    first = life()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "vocabulary").write_text("a b")
    first.begin(10)
    staging = first.staging(10, "token", 0)
    copy_files(tmp_path, ["files/vocabulary"], staging)
    written = first.contribute(10, staging, ["files/vocabulary"])
    address = first.save(snapshot(10), staging, written)
    second = life()
    assert loaded_step(second) == 10
    given = second.files(address)
    second.save(snapshot(20))
    assert (given / "files" / "vocabulary").read_text() == "a b"
    third = life()
    assert loaded_step(third) == 20
    third.save(snapshot(30))
    assert [path for path in third.remote.path.rglob("*") if path.is_file()] == []


def test_the_log_of_a_superseded_life_does_not_replace_that_of_the_newer_one(store, life):
    old = life().remote
    new = life().remote
    (new.path / "metrics.jsonl").write_text('{"n":1}\n')
    new.put_log()
    (old.path / "metrics.jsonl").write_text('{"n":1}\n{"n":2}\n')
    with pytest.raises(TrainingError, match="started again elsewhere"):
        old.put_log()
    assert store.objects["metrics.jsonl"] == b'{"n":1}\n'


def test_a_save_puts_the_last_segment_of_the_ledger_and_what_is_new(store, tmp_path, monkeypatch):
    monkeypatch.setattr("smalti.torch.train.run.store._SEGMENT_BYTES", 10)
    run, file = StoreRun(store, "s3://bucket/run", tmp_path), tmp_path / "samples" / "rank-00000.jsonl"
    file.parent.mkdir()
    put = []
    for size in (4, 4, 9, 20, 20, 35):
        file.write_bytes(bytes(range(size)))
        before = len(store.calls)
        run.samples_so_far(file)()
        put.append(
            [key.removeprefix("samples/rank-00000.jsonl") for key in (call.key for call in store.calls[before:])]
        )
    assert put == [[""], [""], [""], ["", ".1"], [], [".2", ".3"]]
    keys = ["samples/rank-00000.jsonl", *(f"samples/rank-00000.jsonl.{number}" for number in (1, 2, 3))]
    assert b"".join(store.get(key) for key in keys) == bytes(range(35))
