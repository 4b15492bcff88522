"""Datasets of text that MosaicML defines; the conversion scripts are in `convert`. Read `tokenized` first."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]

__getattr__, __dir__ = lazy_package(
    __name__,
    {"StreamingC4": "c4", "StreamingEnWiki": "enwiki", "StreamingPile": "pile"},
    ("c4", "convert", "enwiki", "pile"),
)
