"""The way in: starts the ranks of a run where the configuration says, and returns what they achieved."""

from smalti.errors import WorldMismatch
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.events import OnEvent
from smalti.torch.train.launch.processes import train_in_processes
from smalti.torch.train.launch.spark import train_on_spark
from smalti.torch.train.loop import train_here
from smalti.world import detect_world


def train(config: TrainConfig, *, on_event: OnEvent | None = None) -> TrainResult:
    """Trains a classifier on a shard set and returns what came of it; blocks until the run is over.

    A run goes on from the newest checkpoint in `run_dir` that verifies, on whatever number of processes; a finished run
    returns its result again. Call it from the main thread: only there can it be stopped by a signal.

    Args:
        config: what to train on, how, and where. `launcher` decides which processes do it: `inline` this one
            (also as a rank of torchrun, Slurm or Kubernetes), `processes` children on this machine,
            `spark-local` children that Spark's TorchDistributor starts on the driver, `spark` one task per
            process on Spark's executors.
        on_event: called with each event of the run (see events), as it happens, and with the output lines of child
            processes. What it raises ends the run.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines. Or the run was stopped; then a
            checkpoint was saved.
        WorldMismatch: the batch does not divide over the processes.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    config.batch_per_rank(config.num_processes)
    if config.launcher == "inline":
        return train_here(config, on_event)
    here = detect_world()
    if here.num_ranks > 1:
        raise WorldMismatch(
            f"this process is rank {here.rank} of {here.num_ranks} already, as RANK and WORLD_SIZE say, and "
            f"would start {config.num_processes} more: use launcher='inline' under torchrun and the like.",
            num_ranks=here.num_ranks,
        )
    if config.launcher == "processes":
        return train_in_processes(config, on_event)
    return train_on_spark(config, on_event)
