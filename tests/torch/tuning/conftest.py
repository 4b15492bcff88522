"""The tiny shard set of the training tests."""

from tests.torch.train.conftest import config, squares

__all__ = ["config", "squares"]
