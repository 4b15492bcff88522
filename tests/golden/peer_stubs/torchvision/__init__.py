"""Stands for `torchvision`: names that MosaicML needs at import; not used by the tests."""
