"""One rank of a training job, from its start to its end or death: reads, steps with the others, checkpoints."""

import faulthandler
import os
import signal
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.soak.journal import Journal
from benchmarks.soak.reading import open_dataset, save_state, saved_state, steps, tell_stats
from benchmarks.soak.samples import Expected
from benchmarks.soak.told import ENDED, OTHER, TYPED, Told
from smalti.errors import SmaltiError
from smalti.torch import StreamingDataLoader, gather_world
from smalti.torch.loader import open_ledger


def live(told: Told) -> None:
    """The process; ends it with one of the statuses above."""
    journal = Journal(told.journal)
    stacks = Path(told.folder, f"{told.name}.stacks").open("w")  # noqa: SIM115 -- until the process ends
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    status = ENDED
    try:
        _train(told, journal, asked)
    except Exception as error:  # noqa: BLE001 -- it is told, and judged by whoever knows what was planted
        is_typed = isinstance(error, SmaltiError)
        status = TYPED if is_typed else OTHER
        journal.write(
            "error", kind=type(error).__name__, typed=is_typed, message=str(error), trace=traceback.format_exc()[-4000:]
        )
    if status != ENDED:
        os._exit(status)  # as a launcher would end it: its peers may be gone
    journal.write("end")


def _train(told: Told, journal: Journal, asked: list[int]) -> None:
    if told.num_ranks > 1:
        rendezvous = f"file://{told.folder}/group-{told.life}"
        limit = timedelta(seconds=told.deadline)
        dist.init_process_group("gloo", rendezvous, limit, rank=told.rank, world_size=told.num_ranks)
    world = gather_world()
    ledger = open_ledger(Path(told.folder, "ledger"), world)
    dataset = open_dataset(told.reads, world=world)
    loader = StreamingDataLoader(dataset, told.reads.batch_size, ledger=ledger, **told.reads.loader)
    state = saved_state(told.checkpoint)
    if state is not None:
        loader.load_state_dict(state)
    expected = Expected(told.reads.streams, write=1)
    journal.write("begin", pid=os.getpid(), state=state)
    is_over = _any(asked)
    while not is_over:
        taking = steps(loader, ledger, expected, journal)
        for number in taking:
            if "untyped" in told.reads.plants and number == 20 and told.life == 2:
                raise RuntimeError("planted: not one of ours")
            is_over = _any(asked)
            if is_over or number % told.save_every == 0:
                _save(told, loader.state_dict())
            if is_over:
                break
        else:
            _save(told, loader.state_dict())
        taking.close()
    tell_stats(dataset, journal)
    ledger.close()
    del loader
    dataset.close()
    if told.num_ranks > 1:
        dist.destroy_process_group()


def _any(asked: list[int]) -> bool:
    """Whether any rank was asked to end; all ranks step together here."""
    if not dist.is_initialized():
        return bool(asked)
    flag = torch.tensor([len(asked)])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def _save(told: Told, state: dict[str, Any]) -> None:
    if dist.is_initialized():
        states: list[Any] = [None] * told.num_ranks
        dist.all_gather_object(states, state)
        if any(each != state for each in states):
            raise AssertionError(f"states differ between ranks: {states}")
    if told.rank == 0:
        if "state-ahead" in told.reads.plants:
            state = {**state, "sample_in_epoch": state["sample_in_epoch"] + told.reads.batch_size}
        save_state(told.checkpoint, state)
