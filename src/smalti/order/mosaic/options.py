"""MosaicOptions: everything that determines a MosaicML order besides the data set and the epoch."""

from dataclasses import dataclass

from smalti.order.mosaic.batching import BATCHINGS
from smalti.order.mosaic.partition import PARTITIONS
from smalti.order.mosaic.sampling import SAMPLINGS
from smalti.order.mosaic.shuffles import SHUFFLES

_MIXED_SAMPLES = 4_000_000  # MosaicML's default: samples in the blocks of all canonical nodes together
_MIN_BLOCK = 1 << 18


@dataclass(frozen=True)
class MosaicOptions:
    """The options of a run, with the names and defaults of MosaicML's `StreamingDataset`.

    MosaicML's `state_dict` holds only the first two. To continue a run, give the others as that run had them.
    """

    canonical_nodes: int
    """`num_canonical_nodes`, from 1."""
    seed: int = 9176
    """`shuffle_seed`, from 0."""
    shuffle: bool = False
    """Shuffle the samples."""
    shuffle_algo: str = "py1e"
    """Name of the shuffle; used only with `shuffle`."""
    block_size: int | None = None
    """`shuffle_block_size`; None for MosaicML's default: 4,000,000 over all canonical nodes, at least 2^18 in each."""
    partition_algo: str = "relaxed"
    """Algorithm that partitions ids over hosts."""
    initial_hosts: int | None = None
    """`initial_physical_nodes`: hosts that the run began with; None in a first run."""
    sampling_method: str = "balanced"
    """Of a stream of which an epoch takes a part: `balanced` takes another part each epoch, `fixed` the same one."""
    sampling_granularity: int = 1
    """Samples that are drawn together from one shard."""
    batching_method: str = "random"
    """Method that makes batches from several streams."""

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
        """`block_size`, or MosaicML's default."""
        if self.block_size is not None:
            return self.block_size
        return max(_MIXED_SAMPLES // self.canonical_nodes, _MIN_BLOCK)

    @property
    def changes_with_epoch(self) -> bool:
        """True if the samples that an epoch takes, and the order of its streams, are drawn anew each epoch."""
        return self.shuffle and self.sampling_method == "balanced"


def default_mosaic_nodes(shuffle_algo: str, hosts: int) -> int:
    """Return MosaicML's canonical nodes for a first run: 64 per host with `py1s` and `py2s`, else one per host."""
    return 64 * hosts if shuffle_algo in {"py1s", "py2s"} else hosts
