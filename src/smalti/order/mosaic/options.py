"""What fixes a MosaicML order besides the data set and the epoch; frozen, checked once."""

from dataclasses import dataclass

from smalti.order.mosaic.batching import BATCHINGS
from smalti.order.mosaic.partition import PARTITIONS
from smalti.order.mosaic.sampling import SAMPLINGS
from smalti.order.mosaic.shuffles import SHUFFLES

_MIXED_SAMPLES = 4_000_000  # samples that the peer's blocks of all canonical nodes hold together
_MIN_BLOCK = 1 << 18


@dataclass(frozen=True)
class MosaicOptions:
    """The choices of a run, named and defaulted as the peer's `StreamingDataset` has them.

    Only the first two are in the peer's `state_dict`: whoever continues a run gives the others as that run did.
    """

    canonical_nodes: int
    """`num_canonical_nodes`, from 1."""
    seed: int = 9176
    """`shuffle_seed`, from 0."""
    shuffle: bool = False
    """Whether samples are shuffled."""
    shuffle_algo: str = "py1e"
    """The shuffle, where there is one."""
    block_size: int | None = None
    """`shuffle_block_size`; None for the peer's default, 4,000,000 over all canonical nodes, at least 2^18 in each."""
    partition_algo: str = "relaxed"
    """How ids are dealt to hosts."""
    initial_hosts: int | None = None
    """`initial_physical_nodes`: hosts with which the run began; None in a first run."""
    sampling_method: str = "balanced"
    """Whether an epoch that takes a part of a stream takes another one each time."""
    sampling_granularity: int = 1
    """Samples of such a part that are taken at a time from one shard."""
    batching_method: str = "random"
    """How batches are made of several streams."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("shuffle_algo", SHUFFLES),
            ("partition_algo", PARTITIONS),
            ("sampling_method", SAMPLINGS),
            ("batching_method", BATCHINGS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, found {getattr(self, name)!r}.")
        for name, low in (("canonical_nodes", 1), ("seed", 0), ("sampling_granularity", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"`{name}` must be at least {low}, found {getattr(self, name)}.")

    @property
    def shuffle_block(self) -> int:
        """`block_size`, or the peer's default for it."""
        if self.block_size is not None:
            return self.block_size
        return max(_MIXED_SAMPLES // self.canonical_nodes, _MIN_BLOCK)

    @property
    def changes_with_epoch(self) -> bool:
        """Whether what an epoch takes, and the order of its streams, is drawn anew each time."""
        return self.shuffle and self.sampling_method == "balanced"


def default_mosaic_nodes(shuffle_algo: str, hosts: int) -> int:
    """The peer's canonical nodes for a first run on so many hosts: 64 for each with `py1s` and `py2s`, else one."""
    return 64 * hosts if shuffle_algo in {"py1s", "py2s"} else hosts
