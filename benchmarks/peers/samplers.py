"""torch's own samplers, which know nothing of shards: the order of every map-style dataset under a DataLoader."""

from collections.abc import Callable
from itertools import islice

from benchmarks.peers.interface import Ids, OrderOptions, Peer


class TorchSampler(Peer):
    """`RandomSampler`, and the permutation that it is made of."""

    order_imports = ("torch.utils.data",)

    def order(self, options: OrderOptions) -> Callable[[int], Ids]:
        """All ids are drawn; a start is reached by dropping those before it, as torchdata's StatefulDataLoader does."""
        import torch
        from torch.utils.data import RandomSampler

        generator = torch.Generator().manual_seed(1)
        if options.algorithm == "randperm":
            drawn = torch.randperm(options.samples, generator=generator)
            return lambda count: drawn[options.start : options.start + count].numpy()
        places = iter(RandomSampler(range(options.samples), generator=generator))
        return lambda count: list(islice(places, options.start, options.start + count))
