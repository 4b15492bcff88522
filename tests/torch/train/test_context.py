"""The context of a function of `launch`: evaluation loaders, limits of local copies, the ledger, measures."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smalti.cache import CacheOptions, Counters, stats_of
from smalti.dataset import OrderOptions
from smalti.errors import SmaltiError, TrainingError
from smalti.storage import open_store
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.loader import timed
from smalti.torch.train import launch, read_sample_order
from smalti.torch.train.data import EvaluationLoader
from smalti.torch.train.life import DONE, StopSignal
from smalti.torch.train.ranks import pace_figures
from smalti.world import World
from tests.torch.train.conftest import EVAL

pytestmark = pytest.mark.torch


@pytest.fixture
def options(squares, tmp_path):
    return {"data": str(squares), "run_dir": str(tmp_path / "run"), "timeout_seconds": 280.0, "device": "cpu"}


def test_a_loader_that_does_not_resume_yields_each_sample_once(options):
    def sizes(context):
        loader = context.dataloader("validation", batch_size=8, shuffle=False)
        padded = context.dataloader("validation", batch_size=8, shuffle=False, order=OrderOptions(tail="pad"))
        return [[len(batch["label"]) for batch in each] for each in (loader, padded)]

    assert launch(sizes, **options) == [[8, 6], [8, 8]]


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_ranks_share_an_evaluation_and_take_the_same_number_of_steps(squares, num_ranks):
    """Of 14 samples; of a last step with fewer samples than ranks, those without one have a marked repeat."""
    seen, steps = [], set()
    for rank in range(num_ranks):
        dataset = StreamingDataset(
            remote=str(squares),
            split="validation",
            batch_size=1,
            order=OrderOptions(tail="short"),
            include_ids=True,
            world=World.flat(rank, num_ranks),
        )
        batches = list(StreamingDataLoader(dataset))
        steps.add(len(batches))
        for batch in batches:
            real = batch["_position"] >= 0
            seen += batch["_sample_id"][real].tolist()
    assert sorted(seen) == list(range(EVAL))
    assert len(steps) == 1


class Collectives(TorchDispatchMode):
    """Counts the collectives of torch.distributed."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation.namespace == "c10d"
        return operation(*args, **(kwargs or {}))


def of_two_ranks(context):
    """Return what two ranks found, and let one of them end the run."""
    with Collectives() as exchanges:
        for _ in range(100):
            context.should_stop()
    held_out = context.dataloader("validation", batch_size=2, shuffle=False, include_ids=True)
    seen = [batch["_sample_id"].tolist() for batch in held_out]
    counts = context.reduce(torch.tensor([len(seen), context.rank]), "sum")
    mean = context.reduce(context.rank)
    # Of 50 samples in steps of 14, the last step has 8; in steps of 2 * 7 on two ranks both have some.
    odd = context.dataloader("train", batch_size=14, shuffle=False)
    steps = context.reduce(torch.tensor([len(odd), len(list(odd))], dtype=torch.float32), "sum")
    if context.rank == 1:
        context.stop("enough")
    calls = 0
    while not context.should_stop():
        calls += 1
    return [exchanges.count, counts.tolist(), str(counts.dtype), mean, steps.tolist(), calls < 20, context.stats()]


def test_ranks_reduce_values_and_one_of_them_ends_the_run_with_its_result(options):
    heard = []
    slow = {**options, "timeout_seconds": 280.0}
    result = launch(of_two_ranks, launcher="processes", num_processes=2, on_event=heard.append, **slow)
    # Whether to stop was exchanged at the calls 1, 3, 7, 15, 31, 47, 63, 79 and 95.
    assert result == [9, [14, 1], "torch.int64", 0.5, [8.0, 8.0], True, {}]
    assert heard[-1]["event"] == "end"
    assert heard[-1]["stopped"] == "enough"


def test_a_signal_comes_before_a_stop_that_ends_the_run():
    stop = StopSignal()
    stop.request(DONE, "enough")
    stop.request("SIGTERM")
    stop.request(DONE, "more than enough")
    assert (stop.cause, stop.reason) == ("SIGTERM", "enough")


@pytest.mark.parametrize(("num_samples", "num_ranks"), [(14, 1), (14, 4), (13, 4), (3, 4), (8, 4)])
def test_an_evaluation_repeats_no_sample_on_any_rank(squares, num_samples, num_ranks):
    seen = []
    for rank in range(num_ranks):
        dataset = StreamingDataset(
            remote=str(squares), split="validation", batch_size=1, epoch_size=num_samples,
            order=OrderOptions(tail="short"), include_ids=True, world=World.flat(rank, num_ranks),
        )  # fmt: skip
        loader = EvaluationLoader(dataset)
        for _ in range(2):  # epochs
            batches = list(loader)
            assert len(batches) == len(loader)
            assert all((batch["_position"] >= 0).all() for batch in batches)
        seen += [batch["_position"].item() for batch in batches]
    assert sorted(seen) == list(range(num_samples))


def test_a_value_is_reduced_as_a_mean_or_a_sum(options):
    def refused(context):
        with pytest.raises(TrainingError, match="`how` is 'max'; expected 'mean' or 'sum'"):
            context.reduce(1.0, "max")
        for value in (None, [1.0], "1", torch.tensor([1j])):
            with pytest.raises(TrainingError, match=r"`value` is .*; expected a number"):
                context.reduce(value)

    launch(refused, **options)
    assert launch(lambda context: context.reduce(3, "sum"), **{**options, "run_dir": options["run_dir"] + "-2"}) == 3.0


def test_a_mean_of_whole_numbers_is_not_rounded_and_their_sum_does_not_overflow(options):
    def dtypes(context):
        values = [torch.tensor(True), torch.tensor([200], dtype=torch.uint8), torch.tensor(1.0, dtype=torch.float16)]
        return [[str(context.reduce(value, how).dtype) for value in values] for how in ("sum", "mean")]

    sums, means = launch(dtypes, **options)
    assert sums == ["torch.int64", "torch.int64", "torch.float16"]
    assert means == ["torch.float64", "torch.float64", "torch.float16"]


def test_each_epoch_of_a_functions_loader_is_an_event_with_its_speed(options):
    def read(context):
        loader = context.dataloader("train", batch_size=10)
        for _ in range(2):
            list(loader)
        return context.stats()

    heard = []
    stats = launch(read, on_event=heard.append, **options)
    passes = [event for event in heard if event["event"] == "pass"]
    assert [(event["split"], event["epoch"]) for event in passes] == [("train", 0), ("train", 1)]
    assert {name: passes[1][name] for name in stats} == stats
    assert stats["samples_per_second"] > 0
    assert 0 <= stats["data_fraction"] <= 1


def test_copies_of_a_function_are_limited_to_half_of_the_free_disk(options, squares, tmp_path):
    remote = "memory://limited-squares"
    for path in squares.rglob("*"):
        if path.is_file():
            open_store(remote).put(path.relative_to(squares).as_posix(), path.read_bytes())

    def limits(context):
        loaders = [
            context.dataloader(split, batch_size=4, shuffle=split == "train") for split in ("train", "validation")
        ]
        assert len(list(loaders[1])) == 4
        cache = CacheOptions(local=str(tmp_path / "cache"), cache_limit="1mb")
        loaders.append(context.dataloader("train", batch_size=4, resume=False, cache=cache))
        return [each.streaming_dataset.stream.cache.limit for each in loaders]

    far = {**options, "data": remote, "cache_dir": str(tmp_path / "cache")}
    first, second, chosen = launch(limits, **far)
    assert first == second
    assert 0 < first < shutil.disk_usage(tmp_path).total
    assert chosen == 1 << 20
    assert launch(limits, **{**far, "cache_limit": "2mb", "run_dir": options["run_dir"] + "-2"})[:2] == [1 << 21] * 2


def made_by_hand(context):
    shuffle, recorded = context.config
    dataset = StreamingDataset(remote=context.run.data, split="train", shuffle=shuffle)
    ledger = context.ledger if recorded else None
    return len(list(StreamingDataLoader(dataset, batch_size=10, ledger=ledger)))


def test_a_loader_made_by_hand_is_recorded_or_refused_in_a_run_with_a_ledger(options):
    logged = {**options, "log_samples": True}
    with pytest.raises(SmaltiError, match=r"pass `ledger=context\.ledger` to it"):
        launch(made_by_hand, (True, False), **logged)
    assert launch(made_by_hand, (True, True), **logged) == 5
    assert sorted(read_sample_order(options["run_dir"])[0]) == list(range(50))
    assert launch(made_by_hand, (False, False), **{**logged, "run_dir": options["run_dir"] + "-2"}) == 5
    assert launch(made_by_hand, (True, False), **{**options, "run_dir": options["run_dir"] + "-3"}) == 5


def test_the_share_of_waiting_for_data_is_in_the_statistics_and_the_reports(options):
    def read(context):
        loader = context.dataloader("train", batch_size=10)
        for step, _ in enumerate(loader, 1):
            context.report({"one": 1}, step=step)
        stats = loader.streaming_dataset.stats()
        return [stats.loop_samples, 0 < stats.loop_wait_seconds < stats.loop_seconds]

    reports = []
    assert launch(read, on_event=reports.append, **options) == [50, True]
    last = [event for event in reports if event["event"] == "report"][-1]["measures"]
    assert last["samples_per_second"] > 0
    assert 0 < last["data_fraction"] < 1


def test_waiting_is_the_time_until_a_batch_comes_and_the_rest_is_work():
    now, counters = [0.0], Counters()

    def batches():
        for number in range(3):
            now[0] += 0.5  # a slow transform
            yield number

    for _ in timed(batches(), counters, 8, lambda: now[0]):
        now[0] += 0.25
    stats = stats_of(counters)
    assert (stats.loop_samples, stats.loop_seconds, stats.loop_wait_seconds) == (24, 2.25, 1.5)
    assert stats.data_fraction == pytest.approx(2 / 3)
    assert pace_figures([stats], 4) == {"samples_per_second": 42.667, "data_fraction": 0.66667}
    assert pace_figures([stats_of(Counters())], 4) == {}


def test_a_stop_that_the_function_requested_is_named_so(options):
    def stop(context):
        context.request_stop()
        context.should_stop()

    with pytest.raises(TrainingError, match=r"^stopped by `request_stop`; no checkpoint was saved"):
        launch(stop, **options)


@pytest.mark.parametrize("emulates", [True, False])
def test_bfloat16_is_chosen_only_where_the_device_does_not_emulate_it(monkeypatch, emulates):
    import torch

    from smalti.torch.train.trainer.step import autocast

    def supported(including_emulation=True):
        return including_emulation or not emulates

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype, enabled: enabled)
    device = SimpleNamespace(type="cuda")
    assert autocast(SimpleNamespace(precision="auto"), device) is not emulates
    assert autocast(SimpleNamespace(precision="bfloat16"), device) is True
