"""Stands for `transformers`, of which MosaicML's loader needs two class names at import; not used by the tests."""
