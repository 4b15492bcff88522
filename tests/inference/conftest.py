"""A shard set of coloured squares and a model trained on it, as the tests of training have them."""

from tests.torch.train.conftest import squares, trained

__all__ = ["squares", "trained"]
