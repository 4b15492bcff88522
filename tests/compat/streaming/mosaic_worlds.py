"""Random worlds and epochs for the tests of MosaicML's orders."""

from hypothesis import strategies as st

from smalti.compat.streaming.order.partition import PARTITIONS, WorldShape, make_partition
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicPlan
from smalti.compat.streaming.order.sampling import weigh_streams
from smalti.compat.streaming.order.shuffles import SHUFFLES
from smalti.order.mixture.planning import BATCHINGS, StreamWeight
from smalti.world import World

shapes = st.builds(
    WorldShape,
    hosts=st.sampled_from([1, 2, 3, 4]),
    ranks_on_host=st.integers(1, 3),
    workers=st.integers(1, 3),
    batch_size=st.integers(1, 4),
)
shards = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@st.composite
def mosaic_cases(draw, batchings=BATCHINGS, partitions=PARTITIONS, most_streams=3):
    """Draw a world, options and streams that MosaicML accepts: 12 canonical nodes fit 1, 2, 3 or 4 hosts."""
    options = MosaicOptions(
        canonical_nodes=12,
        seed=draw(st.integers(0, 1000)),
        shuffle=draw(st.booleans()),
        shuffle_algo=draw(st.sampled_from([name for name in SHUFFLES if name != "py1e"])),
        block_size=draw(st.sampled_from([64, 1 << 18])),
        partition_algo=draw(st.sampled_from(partitions)),
        batching_method=draw(st.sampled_from(batchings)),
    )
    sizes = draw(st.lists(st.lists(st.integers(1, 12), min_size=4, max_size=12), min_size=1, max_size=most_streams))
    weights = [StreamWeight(repeat=draw(st.sampled_from([1, 2, 1.5]))) for _ in sizes]
    return draw(shapes), options, weigh_streams(sizes, weights)


def partition_ids(algorithm, num_samples, shape, **options):
    """Return MosaicML's whole partition: hosts, ranks of a host, workers of a rank, batches, batch size."""
    partition = make_partition(algorithm, num_samples, shape, **options)
    return MosaicPlan.of(partition, partition.ids_at).all_ids()


def rank_of(shape, rank):
    """Return the world of rank number `rank`, hosts numbered by their first rank."""
    return World(
        rank=rank,
        num_ranks=shape.num_ranks,
        host=rank // shape.ranks_on_host,
        num_hosts=shape.hosts,
        host_rank=rank % shape.ranks_on_host,
        ranks_on_host=shape.ranks_on_host,
    )
