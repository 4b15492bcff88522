"""Datasets of text that MosaicML defines, without its conversion scripts. Read `tokenized` first."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.text import enwiki as enwiki
    from smalti.compat.streaming.text.enwiki import StreamingEnWiki as StreamingEnWiki
    from smalti.compat.streaming.text.tokenized import StreamingC4 as StreamingC4
    from smalti.compat.streaming.text.tokenized import StreamingPile as StreamingPile

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]

__getattr__, __dir__ = lazy_package(
    __name__,
    {"StreamingC4": "tokenized", "StreamingEnWiki": "enwiki", "StreamingPile": "tokenized"},
    ("enwiki",),
)
