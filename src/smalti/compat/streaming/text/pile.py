"""`StreamingPile`."""

from typing import ClassVar

from smalti.compat.streaming.text.tokenized import TokenizedDataset

__all__ = ["StreamingPile"]


class StreamingPile(TokenizedDataset):
    """Tokens of the Pile, as MosaicML's script writes it."""

    _unknown_group_method: ClassVar[str] = 'Only group_method="truncate" is supported at this time. Found {}.'
