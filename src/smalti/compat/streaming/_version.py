"""MosaicML's module of the version, which programs import although it is private."""

from smalti.compat.streaming import __version__

__all__ = ["__version__"]
