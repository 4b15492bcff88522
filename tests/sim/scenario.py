"""One run of the simulation, from one seed: its actors, what they do, and whether every promise held.

python -m tests.sim.scenario 1234          # replays a seed, and prints its trace
"""

import sys
from dataclasses import dataclass
from unittest.mock import patch

from smalti.spark import reshard
from tests.sim import maintenance
from tests.sim.actors import Habits, SparkJob, Stage, old_reader, reader, roller, vacuumer
from tests.sim.oracle import BrokenPromiseError, Oracle
from tests.sim.store import Disk
from tests.sim.world import DAY, QUIET, Hang, World

FOREIGN = {"notes.txt": b"mine", "photos/shard.00000.mds": b"foreign", "_versions/notes.json": b"{}"}
NAPS = (0.0, 0.0, 2.0, 3 * DAY, 9 * DAY)


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    seed: int
    problem: str
    """The broken promise; empty if there is none."""
    trace: tuple[str, ...]
    versions: int


def run(seed: int, habits: Habits | None = None) -> Outcome:
    """Simulate the whole life of one small set."""
    world = World(seed)
    disk = Disk(world)
    stage = Stage(world, disk, Oracle(disk, FOREIGN), habits or Habits())
    _add_actors(stage)
    problem = ""
    try:
        with patch.object(reshard, "replace_content", maintenance.replace_content):  # uses the simulated clock
            world.run()
        stage.oracle.check_end(is_quiet=world.rates is QUIET and world.rates_of_commits is QUIET)
    except (Exception, Hang) as error:  # an unexpected error counts as a broken promise
        name = "" if isinstance(error, BrokenPromiseError) else f"{type(error).__name__}: "
        problem = f"seed {seed}: {name}{error}; replay: python -m tests.sim.scenario {seed}"
    return Outcome(seed, problem, tuple(world.trace), len(stage.oracle.versions))


def _add_actors(stage: Stage) -> None:
    """Add two or three jobs, each run by one or two drivers at once, and other actors."""
    _add_jobs(stage)
    _add_maintenance(stage)
    world = stage.world
    dice = world.dice
    if dice.random() < 0.3:
        world.enter("roller", roller(stage, "roll0"), after=dice.choice((5.0, 100.0, 8 * DAY, 9.5 * DAY)))
    if dice.random() < 0.4:
        after = dice.choice((8 * DAY, 9.5 * DAY)) if dice.random() < 0.8 else 5.0
        world.enter("vacuum", vacuumer(stage, times=dice.choice((1, 2))), after=after)
        world.enter("late", reader(stage), after=after + dice.choice((0.0, 3.0, 3 * DAY)))
        if dice.random() < 0.6:
            for number in range(dice.choice((1, 1, 2))):
                at = after + dice.uniform(0, 8) if dice.random() < 0.8 else 20.0
                world.enter(f"tagger{number}", maintenance.tagger(stage), after=at)
            world.enter("by tag", maintenance.reader_by_tag(stage), after=after + dice.choice((1.0, 30.0, 3 * DAY)))
    world.enter("reader", reader(stage), after=dice.choice((4.0, 20.0)))
    if dice.random() < 0.5:
        world.enter("old", old_reader(stage), after=dice.choice((4.0, 20.0)))


def _add_jobs(stage: Stage) -> None:
    world = stage.world
    dice = world.dice
    naps = NAPS if dice.random() < 0.5 else (0.0, 1.0)
    splits = ("train", "test") if dice.random() < 0.15 else ("",)
    for number in range(dice.choice((2, 2, 3))):
        mode = "create" if number == 0 else dice.choice(("append", "append", "append", "overwrite", "create"))
        name = f"job{number}"
        tasks, shards = dice.choice(((1, 1), (1, 2), (2, 1)))
        after = dice.choice((0.0, 0.0, 3.0, 60.0)) if number else 0.0
        for driver in range(dice.choice((1, 1, 1, 2))):
            own = splits if number < 2 else ("",)
            job = SparkJob(stage, name, mode, tasks, shards, sleeps=naps, splits=own)
            world.enter(f"{name}{'ab'[driver]}", job.work, after=after)


def _add_maintenance(stage: Stage) -> None:
    world = stage.world
    dice = world.dice
    times = (2.0, 5.0, 30.0, 100.0, 8 * DAY)
    if dice.random() < 0.25:
        world.enter("compactor", maintenance.compactor(stage, "pack0"), after=dice.choice(times))
    if dice.random() < 0.2:
        world.enter("adder", maintenance.adder(stage, "side0"), after=dice.choice(times))


if __name__ == "__main__":
    outcome = run(int(sys.argv[1]))
    sys.stdout.write("\n".join([*outcome.trace, outcome.problem or "no promise was broken", ""]))
